"""What the family's tests run on: a norm with its inputs, and its results held to the oracle's bounds."""

from dataclasses import dataclass, replace
from importlib import import_module

import devices
import numpy as np
from draws import DTYPES
from examine import formats, hold

from normlab import oracle
from normlab.host import family
from normlab.oracle import family as truth
from normlab.oracle import family_bounds as bounds

NORMS = ("batch", "instance", "group")

# Shapes of which an H200 has a batch norm of channels last in one kernel a pass: lanes without channels in the only
# stack of blocks and in the last one, a matrix in two stacks, three stacks, and more rows than shared memory holds.
FUSED = [
    ((1, 60, 113, 113), "float32"),
    ((1, 120, 113, 113), "bfloat16"),
    ((3300, 256), "float32"),
    ((2, 192, 67, 89), "bfloat16"),
    ((2, 64, 240, 240), "float32"),
    ((2, 128, 240, 240), "bfloat16"),
]


@dataclass(frozen=True)
class Example:
    """A norm and all that it takes; groups: of group norm."""

    norm: str
    x: np.ndarray  # (N, C, *spatial)
    grad_output: np.ndarray
    weight: np.ndarray | None  # (C,)
    bias: np.ndarray | None
    eps: float = 1e-5
    groups: int = 1

    @property
    def sets(self) -> truth.IndexSets:
        shape = self.x.shape
        if self.norm == "group":
            return truth.group_sets(shape, self.groups)
        return {"batch": truth.batch_sets, "instance": truth.instance_sets}[self.norm](shape)

    @property
    def arithmetic(self) -> oracle.Arithmetic:
        row, column = family.chains(self.norm, self.x, self.groups if self.norm == "group" else None)
        parameter = next((one.dtype for one in (self.weight, self.bias) if one is not None), self.x.dtype)
        found = formats(self.x.dtype, self.x.dtype, parameter)
        return oracle.Arithmetic.of(row, column, **found, statistics="merged")

    def walked(self) -> tuple:
        """The walk of the GPU or simulator that computes, with x and dy as kernels take them."""
        view = family.view_of(self.x)
        sets = view.sets(self.norm, self.groups if self.norm == "group" else self.x.shape[1])
        arrays = view.as_stored(self.x), view.as_stored(self.grad_output)
        x, dy = (np.ascontiguousarray(array).reshape(sets.shape) for array in arrays)
        return family.kernels.walk(sets, x, dy), x, dy

    def forward(self) -> tuple:
        rest = self.weight, self.bias
        if self.norm == "group":
            return family.group_norm(self.x, self.groups, *rest, eps=self.eps)
        function = {"batch": family.batch_norm, "instance": family.instance_norm}[self.norm]
        return function(self.x, None, None, *rest, eps=self.eps)

    def backward(self, mean: np.ndarray, invvar: np.ndarray) -> tuple:
        given = self.grad_output, self.x, mean, invvar
        if self.norm == "group":
            return family.group_norm_backward(*given, self.groups, self.weight, self.bias)
        function = {"batch": family.batch_norm_backward, "instance": family.instance_norm_backward}[self.norm]
        return function(*given, self.weight, self.bias)

    def examine(self) -> tuple:
        """Hold forward and backward to their bounds; returns all results."""
        forward = self.forward()
        results = *forward, *self.backward(*forward[1:])
        self.hold(results, self.arithmetic)
        return results

    def examine_some(self) -> tuple:
        """As `examine`, of a batch norm in one kernel a pass: a few channels, each a norm of its own, are held."""
        assert self.walked()[0].fused is not None, f"{self.x.shape} are three kernels a pass on this GPU"
        forward = self.forward()
        results = *forward, *self.backward(*forward[1:])
        some = slice(3, None, self.x.shape[1] // 8)
        x, dy = self.x[:, some], self.grad_output[:, some]
        part = replace(self, x=x, grad_output=dy, weight=self.weight[some], bias=self.bias[some])
        of_part = [result[:, some] if result.ndim > 1 else result[some] for result in results]
        part.hold(tuple(of_part), self.arithmetic)
        return results

    def hold(self, results: tuple, arithmetic: oracle.Arithmetic):
        """Hold all results to their bounds."""
        affine = self.weight, self.bias, self.eps
        want = truth.family_norm(self.x, self.sets, *affine)
        errors = bounds.family_norm_bound(self.x, self.sets, *affine, arithmetic)
        for what, got, right, limit in zip(want._fields, results[:3], want, errors, strict=True):
            hold(f"family {self.norm} {what}", got, right, limit)
        want = truth.family_norm_backward(self.grad_output, self.x, self.sets, *affine)
        unstored = bounds.family_norm_backward_bound(self.grad_output, self.x, self.sets, *affine, arithmetic, errors)
        limits = bounds.stored(unstored, want, arithmetic.parameter)
        for what, got, right, limit in zip(want._fields, results[3:], want, limits, strict=True):
            hold(f"family {self.norm} {what}", got, right, limit)


def channels_last(array: np.ndarray) -> np.ndarray:
    """The same values, with neighbouring channels side by side in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def example(
    norm, shape, dtype="float32", parameters=None, groups=1, affine="both", last=False, offset=0.0, eps=1e-5, seed=0
) -> Example:
    """Random inputs; parameters: their dtype, x's for None; affine: both, weight, bias or none; offset: of x."""
    rng = np.random.default_rng([seed, *shape])
    x, dy = (rng.normal(size=shape) + at for at in (offset, 0.1))
    x, dy = (array.astype(DTYPES[dtype]) for array in (x, dy))
    if last:
        x, dy = channels_last(x), channels_last(dy)
    weight, bias = rng.normal(size=(2, shape[1])).astype(DTYPES[parameters or dtype])
    given = weight if affine in ("both", "weight") else None, bias if affine in ("both", "bias") else None
    return Example(norm, x, dy, *given, eps, groups)


def few_blocks(monkeypatch, ring=2):
    """Let batch norms of channels last be one kernel a pass, of 3 small blocks, whose shared memory holds few rows.

    It has 6 slots in float32, 5 in 16 bits, and in the backward 3 and 2; `ring` of them are the ring.
    """
    fused = import_module("normlab.kernels.family.fused")  # as it is now: tests of mutants import it afresh
    for name, value in {
        "THREADS": 64,
        "BUSY": 0.1,
        "RING": ring,
        "RING_OF_TWO": ring,
    }.items():
        monkeypatch.setattr(fused, name, value)
    devices.plan_for(monkeypatch, multiprocessors=3, shared_bytes=8 * 1024)
