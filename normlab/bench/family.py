"""Measure batch, instance, group and layer norm beside PyTorch on images, channels first and last: `bench family`.

A record has a row per problem, as in `normlab.bench.norm`, but with (N, C, H, W) as its shape. normlab and PyTorch are
both checked before they are timed, on the same data, against the float64 oracle. The oracle is slow, so it computes
only a part of the problem that no other part changes. For batch and instance norm this is one whole channel, for group
norm one whole group. Layer norm is checked by `normlab.bench.check`: on one sample, and on the sums over all samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from normlab import oracle
from normlab.bench import check as rows
from normlab.bench import contenders
from normlab.bench.check import RESULTS, to_numpy
from normlab.bench.contenders import OURS
from normlab.bench.norm import measured, race
from normlab.bench.peers import ByAutograd
from normlab.bench.problem import DIRECTIONS, EPS, Data, Problem
from normlab.host import family
from normlab.host.arrays import FLOATS
from normlab.measure.timing import Timer
from normlab.oracle.family import IndexSets, batch_sets, family_norm, family_norm_backward, group_sets, instance_sets
from normlab.oracle.family_bounds import family_norm_backward_bound, family_norm_bound, stored

NORMS = ("batch", "instance", "group", "layer")
DTYPES = ("float32", "bfloat16")
LAYOUTS = ("NCHW", "NHWC")
SHAPES = ((32, 256, 56, 56), (64, 1024, 14, 14), (8, 64, 224, 224))
GROUPS = 32
CHECKED = 1  # channels that are checked of batch and instance norm


@dataclass(frozen=True)
class FamilyProblem:
    """A norm with weight and bias on x of shape (N, C, H, W); layout: "NCHW", or "NHWC" for channels last in memory.

    Layer norm normalises over (C, H, W), and its parameters have this shape; other norms' parameters have C elements.
    For layer norm, PyTorch and normlab both copy an x with channels last, and return y with channels first.
    """

    norm: str
    direction: str
    dtype: str
    layout: str
    shape: tuple[int, ...]

    @property
    def groups(self) -> int | None:
        """Return the number of groups of group norm: 32, or C if C is smaller; None for other norms."""
        return min(GROUPS, self.shape[1]) if self.norm == "group" else None

    @property
    def parameters(self) -> tuple[int, ...]:
        """Return the shape of weight and bias."""
        return self.shape[1:] if self.norm == "layer" else self.shape[1:2]

    @property
    def array_bytes(self) -> int:
        """Return the bytes of x."""
        return prod(self.shape) * FLOATS[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Return the fewest bytes that the problem has to move: x and y forward; x and both gradients backward.

        A forward that reads x twice from DRAM therefore reaches 2/3 of a copy's speed. A backward that reads both of
        its inputs twice reaches 3/5. Layer norm's parameters are as large as a sample, so they count too: weight and
        bias forward; weight and both gradients of parameters backward.
        """
        arrays = 2 if self.direction == "forward" else 3
        of_parameters = arrays * self.array_bytes // self.shape[0] if self.norm == "layer" else 0
        return arrays * self.array_bytes + of_parameters

    def draw(self, device: str) -> Data:
        """Return random data, the same at every call: weight in [0.5, 1.5), all else standard normal."""
        import torch

        dtype, parameters = getattr(torch, self.dtype), self.parameters
        generator = torch.Generator(device).manual_seed(self.shape[1])
        layout = torch.contiguous_format if self.layout == "NCHW" else torch.channels_last

        def normal(*shape: int) -> Any:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        weight = torch.rand(parameters, generator=generator, device=device).add(0.5).to(dtype)
        x, grad = (normal(*self.shape).to(memory_format=layout) for _ in range(2))
        return Data(x, weight, normal(*parameters), grad)


def problems(norms: list[str], directions: list[str], dtypes: list[str]) -> list[FamilyProblem]:
    """Return all combinations of the arguments, each with every layout and shape."""
    return [
        FamilyProblem(norm, direction, dtype, layout, shape)
        for direction, norm, dtype, layout, shape in product(directions, norms, dtypes, LAYOUTS, SHAPES)
    ]


class Ours:
    """normlab's norms as a contender: `forward` and `backward` return a call that the timer can repeat."""

    name, memory_efficient, directions = OURS, False, DIRECTIONS

    def __init__(self, problem: FamilyProblem):
        self.problem = problem

    def forward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        affine = data.weight, data.bias
        if self.problem.norm == "layer":
            return lambda: family.layer_norm(data.x, data.shape, *affine, eps=EPS)
        if self.problem.norm == "group":
            return lambda: family.group_norm(data.x, self.problem.groups or 1, *affine, eps=EPS)
        function = family.batch_norm if self.problem.norm == "batch" else family.instance_norm
        return lambda: function(data.x, None, None, *affine, eps=EPS)

    def backward(self, data: Data) -> Callable[[], tuple]:  # noqa: D102
        _, mean, invvar = self.forward(data)()
        given, affine = (data.grad_output, data.x, mean, invvar), (data.weight, data.bias)
        if self.problem.norm == "layer":
            return lambda: family.layer_norm_backward(*given, data.shape, *affine)
        if self.problem.norm == "group":
            return lambda: family.group_norm_backward(*given, self.problem.groups or 1, *affine)
        function = family.batch_norm_backward if self.problem.norm == "batch" else family.instance_norm_backward
        return lambda: function(*given, *affine)


def torch_s(problem: FamilyProblem) -> ByAutograd:
    """Return PyTorch's norm as a contender, eager."""
    from torch.nn import functional

    functions: dict[str, Callable[..., Any]] = {
        "batch": lambda x, _, weight, bias: functional.batch_norm(x, None, None, weight, bias, True, 0.1, EPS),
        "instance": lambda x, _, weight, bias: functional.instance_norm(x, None, None, weight, bias, True, 0.1, EPS),
        "group": lambda x, _, weight, bias: functional.group_norm(x, problem.groups or 1, weight, bias, EPS),
        "layer": lambda x, shape, weight, bias: functional.layer_norm(x, shape, weight, bias, EPS),
    }
    return ByAutograd("torch", functions[problem.norm])


class Check:
    """The oracle's results on the last channel of one problem, or on the last group of group norm.

    These channels' statistics, and their gradients, depend on no other channel, so they are a problem of their own.
    """

    def __init__(self, problem: FamilyProblem, data: Data):
        self.problem, self.data = problem, data
        n, c, *spatial = problem.shape
        count = c // problem.groups if problem.groups else min(CHECKED, c)
        self.channels = slice(c - count, c)
        self.shape = (n, count, *spatial)
        x, dy = (to_numpy(array[:, self.channels]) for array in (data.x, data.grad_output))
        self.x, self.dy = x, dy
        self.weight, self.bias = (to_numpy(array[self.channels]) for array in (data.weight, data.bias))

    @property
    def sets(self) -> IndexSets:
        """Return the sets of elements that are normalised together, in the checked channels alone."""
        if self.problem.norm == "group":
            return group_sets(self.shape, 1)
        return (batch_sets if self.problem.norm == "batch" else instance_sets)(self.shape)

    def arithmetic(self, own: bool) -> oracle.Arithmetic:
        """Return how a contender rounds, from which its error bound follows; `own`: the contender is normlab.

        A peer's order of additions is unknown. It gets the bound of the longest chain: one value after another.
        """
        # Each is (terms, merges), as in `normlab.kernels.plan.Chains`; a peer may add up without a tree.
        over_set: tuple[int, int] = (self.sets.values, 0)
        over_channel: tuple[int, int] = (prod(self.shape) // self.shape[1], 0)
        if own:
            over_set, over_channel = family.chains(self.problem.norm, self.data.x, self.problem.groups)
        method: Any = "merged" if own else "welford"
        return oracle.Arithmetic.of(over_set, over_channel, **contenders.formats(self.problem.dtype), statistics=method)

    @cached_property
    def truth(self) -> Any:
        """Return the oracle's results, computed once for all contenders."""
        given = self.x, self.sets, self.weight, self.bias, EPS
        return family_norm(*given) if self.problem.direction == "forward" else family_norm_backward(self.dy, *given)

    def worst(self, contender: Any, results: tuple) -> dict[str, float]:
        """Return the largest error over bound of each result; above 1 the contender is wrong."""
        own, ratios = contender.name == OURS, {}
        how, given, truth = self.arithmetic(own), (self.x, self.sets, self.weight, self.bias, EPS), self.truth
        bound: Any = family_norm_bound(*given, how)
        if self.problem.direction == "backward":
            bound = stored(family_norm_backward_bound(self.dy, *given, how, bound), truth, how.parameter)
        for name, got in zip(RESULTS[self.problem.direction], results, strict=True):
            if got is None:
                continue
            want, limit = getattr(truth, name), getattr(bound, name)
            if not own:
                limit = limit + rows.allowance(name, want, self.problem.dtype)
            ratios[name] = oracle.ratio(to_numpy(self._part(got)), want, limit)
        return ratios

    def _part(self, result: Any) -> Any:
        """Return the checked part of a result, which depends on the result's shape.

        One number per channel: the channels lie along the first axis. Group norm's statistics, (N, groups): the last
        group. All else, (N, C, …): the channels lie along the second axis.
        """
        if result.ndim == 1:
            return result[self.channels]
        return result[:, -1:] if result.ndim == 2 and self.problem.norm == "group" else result[:, self.channels]


class CheckOfRows:
    """Layer norm's check: with each sample as a row, `normlab.bench.check` compares one row with the oracle."""

    def __init__(self, problem: FamilyProblem, data: Data):
        n = problem.shape[0]
        as_rows = Problem("layer", problem.direction, problem.dtype, n, prod(problem.parameters))
        weight, bias = (one.reshape(-1) for one in data.parameters)
        given = Data(data.x.reshape(n, -1), weight, bias, data.grad_output.reshape(n, -1))
        self.check = rows.Check(as_rows, given, 1)

    def worst(self, contender: Any, results: tuple) -> dict[str, float]:
        """Return the largest error over bound of each result; above 1 the contender is wrong."""
        who = contenders.Ours() if contender.name == OURS else contender
        return self.check.worst(who, tuple(None if one is None else one.reshape(-1) for one in results))


def compete(
    wanted: list[FamilyProblem], timer: Timer, device: str, advance: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Return a row of the record for every problem; `advance` is called after each.

    After Ctrl-C, return the rows that are done.
    """

    def row(problem: FamilyProblem) -> dict[str, Any]:
        data = problem.draw(device)
        check: Any = (CheckOfRows if problem.norm == "layer" else Check)(problem, data)
        return race(problem, data, [Ours(problem), torch_s(problem)], check, timer)

    return measured(wanted, row, advance)
