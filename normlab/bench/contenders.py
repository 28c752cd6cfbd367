"""Call the contenders that are timed: normlab's own kernels, and the peers that can be imported here.

A contender has `forward(data)` and `backward(data)`. Each prepares what is not timed: a backward's forward, a cast of
the weights, a compilation. It returns a function without arguments, which makes the call that a user makes.
`normlab.bench.check` checks that call's results: (output, mean, invvar), or (grad_input, grad_weight, grad_bias), with
None for a result that the norm or the peer does not have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from normlab import oracle
from normlab.bench.peers import PEERS
from normlab.bench.problem import DIRECTIONS, EPS, Data, Problem
from normlab.host import norms
from normlab.host.checks import statistics_dtype, step_of

OURS = "normlab"
RECOMPUTED = "normlab-me"  # apex's memory_efficient: the backward from the saved output
Call = Callable[[], tuple]


class Contender(Protocol):
    """One implementation of both norms."""

    @property
    def name(self) -> str:
        """Return what the tables call it."""

    @property
    def memory_efficient(self) -> bool:
        """Return True if the backward reads the saved output."""

    @property
    def directions(self) -> tuple[str, ...]:
        """Return where it takes part: not in the forward if only its backward differs from another contender's."""

    def forward(self, data: Data) -> Call:
        """Return a call that gives (output, mean or None, invvar or None)."""

    def backward(self, data: Data) -> Call:
        """Return a call that gives (grad_input, grad_weight, grad_bias or None)."""


@dataclass(frozen=True)
class Ours:
    """normlab, by the best step or by one that is named; on torch tensors of any device."""

    name: str = OURS
    memory_efficient: bool = False
    step: str | None = None
    directions: tuple[str, ...] = DIRECTIONS

    def forward(self, data: Data) -> Call:  # noqa: D102
        x, shape = data.x, data.shape
        if data.bias is None:
            return lambda: _with_mean(norms.rms_norm_forward(x, shape, data.weight, eps=EPS, step=self.step))
        return lambda: norms.layer_norm_forward(x, shape, data.weight, data.bias, eps=EPS, step=self.step)

    def backward(self, data: Data) -> Call:  # noqa: D102
        output, mean, invvar = Ours().forward(data)()
        saved = output if self.memory_efficient else data.x
        rest: dict[str, Any] = {"eps": EPS, "memory_efficient": self.memory_efficient, "step": self.step}
        dy, shape = data.grad_output, data.shape
        if data.bias is None:
            return lambda: (*norms.rms_norm_backward(dy, saved, invvar, shape, data.weight, **rest), None)
        return lambda: norms.layer_norm_backward(dy, saved, mean, invvar, shape, data.weight, data.bias, **rest)

    def arithmetic(self, problem: Problem) -> oracle.Arithmetic:
        """Return how its steps round, from which its error bound follows."""
        forward: Any = step_of("forward", self.step if problem.direction == "forward" else None)
        row, column = forward.row_chains(problem.n2), None
        if problem.direction == "backward":
            backward: Any = step_of("backward", self.step)
            row, column = backward.row_chains(problem.n2), backward.column_chains(problem.n1, problem.n2)
        return oracle.Arithmetic.of(row, column, **formats(problem.dtype), statistics=forward.statistics)


def _with_mean(result: tuple) -> tuple:
    output, invvar = result
    return output, None, invvar


def unknown_arithmetic(problem: Problem) -> oracle.Arithmetic:
    """Return the longest sums there can be, one value after another, for a peer with an unknown order of summation."""
    return oracle.Arithmetic.of((problem.n2, 0), (problem.n1, 0), **formats(problem.dtype), statistics="welford")


def formats(dtype: str) -> dict[str, Any]:
    """Return the formats of a norm's arithmetic, all of whose arrays have one dtype."""
    return {"input": dtype, "output": dtype, "parameter": dtype, "accumulator": statistics_dtype(dtype)}


def ours(paths: str) -> list[Contender]:
    """Return normlab's entries; `paths` of the backward: from the "saved" input, x̂ "recomputed", or "both"."""
    saved = Ours(directions=("forward",) if paths == "recomputed" else DIRECTIONS)
    recomputed = Ours(RECOMPUTED, memory_efficient=True, directions=("backward",))
    return [saved] if paths == "saved" else [saved, recomputed]


def load_peers(names: list[str]) -> tuple[list[Contender], dict[str, str]]:
    """Return the peers that can be imported, and for every other one the reason why not."""
    found: list[Contender] = []
    absent: dict[str, str] = {}
    for name in names:
        try:
            found += PEERS[name]()
        except Exception as error:  # a peer that does not fit this PyTorch or GPU may raise anything
            absent[name] = (str(error).splitlines() or [type(error).__name__])[0]
    return found, absent
