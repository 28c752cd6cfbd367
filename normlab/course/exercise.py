"""What an exercise is made of: drawn inputs, launches, right answers with their bounds, budgets, hints.

`checks/` describes the exercises in these words, a file each; `grading` works through them. Nothing here runs a kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Budgets are in Nsight Compute's words, from `normlab.sim.METRICS`; messages have plainer ones.
LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
LOADED_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORES = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
STORED_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
SHUFFLES = "normlab__shuffles.sum"
BARRIERS = "normlab__barriers.sum"
WORDS = {
    LOADS: "loads by warps",
    LOADED_SECTORS: "sectors loaded",
    STORES: "stores by warps",
    STORED_SECTORS: "sectors stored",
    LOAD_CONFLICTS: "bank conflicts of loads",
    STORE_CONFLICTS: "bank conflicts of stores",
}

Extent = int | tuple[int, ...]


class Launch(NamedTuple):
    """One launch of a kernel of the solution; an argument that is a string stands for the array of that name."""

    kernel: str
    grid: Extent
    block: Extent
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """What an array must hold afterwards, and how far off it may be: NaN bounds ask for equal NaNs."""

    value: ArrayLike
    bound: ArrayLike


@dataclass(frozen=True)
class Case:
    """One input. Arrays named in `want` or `scratch` reach the kernel poisoned, and count as never written."""

    launches: list[Launch]
    arrays: dict[str, np.ndarray]
    want: dict[str, Answer]
    scratch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Size:
    """A size that is drawn: its range, and the edges that every check visits."""

    smallest: int
    largest: int
    edges: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """All that a case is made from: its sizes, a kind of data (`data.values`), a seed."""

    sizes: dict[str, int]
    kind: str
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        """The generator of this case's numbers."""
        return np.random.default_rng(self.seed)

    def __getitem__(self, name: str) -> int:
        """Return the size `name`."""
        return self.sizes[name]

    def __str__(self) -> str:
        """Return the sizes and the kind, as messages name them."""
        return ", ".join([*(f"{name} = {size}" for name, size in self.sizes.items()), f"{self.kind} values"])


@dataclass(frozen=True)
class Budget:
    """How often a solution may do something on the exercise's example; `why` follows "at most" in messages."""

    metric: str
    at_most: int
    why: str


@dataclass(frozen=True)
class Exercise:
    """One exercise. `make` turns a draw into a case; kinds of data stand in order, the easiest to read first."""

    name: str  # of its file, without the number
    title: str
    make: Callable[[Drawn], Case]
    sizes: dict[str, Size]
    example: dict[str, int]  # sizes of the one input on which budgets are counted and pictures drawn
    hints: tuple[str, ...]
    kinds: tuple[str, ...] = ("counting", "normal", "offset")
    budgets: tuple[Budget, ...] = ()
    lines: int | None = None  # of code that may be added at most
    elements: int | None = None  # of global memory that one thread may touch on the example: threads share the work
    picture: str = "tree"  # what --show draws: "tree", "banks" or "sectors"

    def draws(self, seed: int, count: int) -> list[Drawn]:
        """Return the smallest input, every edge of every size, the example and `count` draws more, small ones first."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        chosen = [{name: size.smallest for name, size in self.sizes.items()}]
        chosen += [{name: edge} for name, size in self.sizes.items() for edge in size.edges]
        chosen += [self.example] + [{}] * count
        drawn = []
        for number, fixed in enumerate(chosen):
            free = {name: int(rng.integers(size.smallest, size.largest + 1)) for name, size in self.sizes.items()}
            kind = self.kinds[number % len(self.kinds)]
            drawn.append(Drawn(free | fixed, kind, int(rng.integers(1 << 31))))
        return sorted(drawn, key=lambda one: (np.prod([*one.sizes.values()]), self.kinds.index(one.kind)))

    def simpler(self, drawn: Drawn) -> list[Drawn]:
        """Return draws that are simpler than `drawn` in one respect, the simplest first."""
        found = []
        for name, size in self.sizes.items():
            less = drawn[name] - size.smallest
            while less > 0:  # as in a search by halves
                found.append(Drawn(drawn.sizes | {name: drawn[name] - less}, drawn.kind, drawn.seed))
                less //= 2
        kinds = self.kinds[: self.kinds.index(drawn.kind)] if drawn.kind in self.kinds else ()
        return found + [Drawn(drawn.sizes, kind, drawn.seed) for kind in kinds]

    @property
    def example_case(self) -> Drawn:
        """The one input on which budgets are counted and pictures drawn."""
        return Drawn(self.example, self.kinds[0], 0)
