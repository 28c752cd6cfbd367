"""Hold a contender's results against the oracle before it is timed, on the very problem that it is timed on.

Whole rows of the output or of grad_input, spread over all n1, are held against the oracle and its bound. Parameter
gradients are sums over all rows, too many for NumPy: `Columns` adds them up in float64 on the device. normlab's own
kernels have to stay within the bound of their arithmetic. A peer's order of additions and its roundings on the way are
unknown: it gets the bound of the longest chain of additions there can be, and PEER_ROUNDINGS.
"""

from functools import cached_property
from typing import Any

import numpy as np

from normlab import oracle
from normlab.bench.contenders import Contender, Ours, unknown_arithmetic
from normlab.bench.problem import EPS, Data, Problem
from normlab.oracle.floats import gamma_k

ROWS = 64
ROW_ELEMENTS = 2**16  # the oracle takes about 2 µs for one, in extended precision
CHUNK_ELEMENTS = 2**24  # of float64 on the device
# Roundings to storage that a peer may add, relative to a value and to the root mean square of all: x̂ or the product
# with the weight may be rounded in between, and partial sums of parameter gradients be kept in the parameters' dtype.
PEER_ROUNDINGS = {"output": 8, "grad_input": 8, "grad_weight": 64, "grad_bias": 64}
RESULTS = {"forward": ("output", "mean", "invvar"), "backward": ("grad_input", "grad_weight", "grad_bias")}
COLUMN_SUMS = ("grad_weight", "grad_bias")


class Check:
    """The truth about one problem: computed once, on at most `at_most` rows, and held against every contender."""

    def __init__(self, problem: Problem, data: Data, at_most: int = ROWS):
        self.problem, self.data = problem, data
        self._bounds: dict[tuple, Any] = {}
        count = min(problem.n1, at_most, max(2, ROW_ELEMENTS // problem.n2))
        self.rows = np.unique(np.linspace(0, problem.n1 - 1, count).round().astype(int))

    def worst(self, contender: Contender, results: tuple) -> dict[str, float]:
        """Return the largest error over bound of each result; above 1 (infinite for a NaN) the contender is wrong."""
        problem, own = self.problem, isinstance(contender, Ours)
        arithmetic = contender.arithmetic(problem) if isinstance(contender, Ours) else unknown_arithmetic(problem)
        recompute = contender.memory_efficient
        bounds, ratios = self._row_bounds(arithmetic, recompute), {}
        for name, got in zip(RESULTS[problem.direction], results, strict=True):
            if got is None:
                continue
            if name in COLUMN_SUMS:
                want, bound = getattr(self.columns, name)(arithmetic, recompute)
            else:
                want, bound = (getattr(one, name).reshape(len(self.rows), -1) for one in (self.truth, bounds))
                got = got.reshape(problem.n1, -1)[self.rows]
            if not own:
                bound = bound + allowance(name, want, problem.dtype)
            ratios[name] = oracle.ratio(to_numpy(got), want, bound)
        return ratios

    @cached_property
    def _sample(self) -> tuple[Any, ...]:
        """Return the chosen rows as the oracle takes them: (grad_output, x, n2, weight, and for LayerNorm bias)."""
        data = self.data
        arrays = (data.grad_output[self.rows], data.x[self.rows], *data.parameters)
        dy, x, *parameters = map(to_numpy, arrays)
        return dy, x, self.problem.n2, *parameters

    @cached_property
    def truth(self) -> Any:
        """Return the oracle's results on the chosen rows."""
        layer = self.problem.norm == "layer"
        forward: Any = oracle.layer_norm if layer else oracle.rms_norm
        backward: Any = oracle.layer_norm_backward if layer else oracle.rms_norm_backward
        if self.problem.direction == "forward":
            return forward(*self._sample[1:], EPS)
        return backward(*self._sample, EPS)

    def _row_bounds(self, arithmetic: oracle.Arithmetic, memory_efficient: bool) -> Any:
        """Return the bounds of the chosen rows, computed once for all peers, whose arithmetic is the same."""
        # functools.cache of a method would keep the arrays alive until Python next collects garbage.
        key = arithmetic, memory_efficient
        if key not in self._bounds:
            self._bounds[key] = self._compute_row_bounds(*key)
        return self._bounds[key]

    def _compute_row_bounds(self, arithmetic: oracle.Arithmetic, memory_efficient: bool) -> Any:
        layer = self.problem.norm == "layer"
        forward: Any = oracle.layer_norm_bound if layer else oracle.rms_norm_bound
        backward: Any = oracle.layer_norm_backward_bound if layer else oracle.rms_norm_backward_bound
        left = forward(*self._sample[1:], EPS, arithmetic)
        if self.problem.direction == "forward":
            return left
        handed: dict[str, Any] = {
            "memory_efficient": memory_efficient,
            "invvar_error": left.invvar,
            "output_error": left.output,
        }
        if layer:
            handed["mean_error"] = left.mean
        return backward(*self._sample, EPS, arithmetic, **handed)

    @cached_property
    def columns(self) -> "Columns":
        """Return the sums over all rows."""
        return Columns(self.problem, self.data)


class Columns:
    """grad_weight and grad_bias in float64 over all rows, and how far off a kernel may be.

    Each term dy x̂ inherits the errors of its row's mean and invvar, which come from a chain of additions along the row;
    then it goes through the additions of its column. For the standard normal data of a `Problem` the error is at most
    2 γ_k Σ |dy| (|x̂| + 1), with k the roundings of both chains, and 2 for mean and invvar. Recomputing adds what the
    rounded output costs: `oracle.recompute_error` for every term. At the end there is one rounding to storage.
    """

    def __init__(self, problem: Problem, data: Data):
        import torch

        self.problem = problem
        zeros = torch.zeros(problem.n2, dtype=torch.float64, device=data.x.device)
        sums = {name: zeros.clone() for name in ("weight", "bias", "weight_size", "bias_size", "recompute_size")}
        gamma = data.weight.double()
        beta = 0.0 if data.bias is None else data.bias.double().abs()
        step = max(1, CHUNK_ELEMENTS // problem.n2)
        for first in range(0, problem.n1, step):
            x, dy = (array[first : first + step].double() for array in (data.x, data.grad_output))
            if problem.norm == "layer":
                x = x - x.mean(1, keepdim=True)  # not in place: a float64 x is the problem's own array
            xhat = x * (x.square().mean(1, keepdim=True) + EPS).rsqrt()
            sums["weight"] += (dy * xhat).sum(0)
            sums["bias"] += dy.sum(0)
            dy, xhat = dy.abs(), xhat.abs()
            sums["weight_size"] += (dy * (xhat + 1)).sum(0)
            sums["bias_size"] += dy.sum(0)
            sums["recompute_size"] += (dy * (beta + gamma * xhat)).sum(0) / gamma
        self.sums = {name: to_numpy(value) for name, value in sums.items()}

    def grad_weight(self, arithmetic: oracle.Arithmetic, memory_efficient: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return value and bound."""
        roundoff = oracle.unit_roundoff(arithmetic.output)
        bound = 2 * self._gamma(arithmetic.row_sum + arithmetic.column_sum, arithmetic) * self.sums["weight_size"]
        if memory_efficient:
            bound += 1.1 * roundoff * self.sums["recompute_size"]  # 1.1: |y| as held is a little more than exact |y|
        return self._stored(self.sums["weight"], bound, arithmetic)

    def grad_bias(self, arithmetic: oracle.Arithmetic, memory_efficient: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return value and bound, which do not depend on the saved array."""
        bound = self._gamma(arithmetic.column_sum, arithmetic) * self.sums["bias_size"]
        return self._stored(self.sums["bias"], bound, arithmetic)

    def _gamma(self, roundings: float, arithmetic: oracle.Arithmetic) -> float:
        return float(gamma_k(roundings + 8, arithmetic.u))  # 8: the few operations that each term goes through alone

    def _stored(
        self, want: np.ndarray, bound: np.ndarray, arithmetic: oracle.Arithmetic
    ) -> tuple[np.ndarray, np.ndarray]:
        return want, bound + oracle.unit_roundoff(arithmetic.parameter) * (np.abs(want) + bound)


def allowance(name: str, want: np.ndarray, dtype: str) -> np.ndarray | float:
    """Return by how much more than its bound a peer's result may be off, because the peer may round on the way."""
    roundings = PEER_ROUNDINGS.get(name, 0) * oracle.unit_roundoff(dtype)
    return roundings * (np.abs(want) + np.sqrt(np.mean(want**2)))


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor's values, widened to float64 without a loss (NumPy has no bfloat16)."""
    return tensor.detach().double().cpu().numpy()
