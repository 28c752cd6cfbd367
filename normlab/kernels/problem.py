"""What a step is asked to do: the operands with their arrays, or a `Problem`, which describes them without any."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from normlab.engine import DeviceArray
from normlab.stages.gate import Gate
from normlab.stages.row_map import RowMap

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


class Operands:
    """What the operands of a forward and of a backward pass have in common. invvar: (n1,), accumulator dtype."""

    invvar: Any

    @property
    def statistics(self) -> Any:
        """Return an array of the accumulator's dtype."""
        return self.invvar

    @property
    def in_float64(self) -> bool:
        """Return True if the accumulator is float64, False if it is float32."""
        return self.invvar.dtype.itemsize == 8


@dataclass(frozen=True)
class ForwardProblem(Operands):
    """The operands of a forward pass.

    x, output: (n1, n2), n1 > 0; weight, bias: (n2,) or None; mean: (n1,), or None for RMSNorm; invvar: (n1,); eps: a
    NumPy scalar of invvar's dtype.
    """

    x: Any
    weight: Any
    bias: Any
    eps: Any
    output: Any
    mean: Any
    invvar: Any
    # (n1, n2), or both None. With them x + residual is normalised, as rounded to new_residual.
    residual: Any = None
    new_residual: Any = None
    # Added to the weight where it is read. A Python number, and not an array: a kernel is built for it.
    offset: float = 0.0
    # None, or where the rows of x lie, which then is (places, n2); `gate_map`: the same of the gate.
    row_map: RowMap | None = None
    # (n1, n2), x's dtype, and where silu(gate) goes; or both None.
    gate: Any = None
    gating: Gate | None = None
    gate_map: RowMap | None = None
    # Whether weight and bias are (samples, n2): a row for each of as many parts of n1 rows.
    sampled: bool = False

    @property
    def matrices(self) -> tuple:
        """Return the arrays whose vectors must be aligned: with the parameters, for all are read together."""
        # one width for all: a thread moves its columns of x and the same columns of the parameters as vectors
        return self.x, self.weight, self.bias, self.output, self.residual, self.new_residual, self.gate

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n1, n2)."""
        # Not x's: with a row_map x has rows of memory between its own.
        return self.output.shape

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        return tuple(array for array in (self.x, self.residual, self.gate) if array is not None)

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.output,) if self.residual is None else (self.output, self.new_residual)


@dataclass(frozen=True)
class BackwardProblem(Operands):
    """The operands of a backward pass.

    grad_output, saved, grad_input: (n1, n2), n1 > 0; mean: (n1,), or None for RMSNorm and when memory_efficient;
    invvar: (n1,); weight, bias, grad_weight, grad_bias: (n2,) or None; eps: a NumPy scalar of invvar's dtype; `rms`:
    RMSNorm; `memory_efficient`: `saved` is the output, else the input, whose dtype grad_input has either way.
    `offset`, `gate`, `gating`, `gate_map`, `sampled`: as in `ForwardProblem`; `row_map`: the same of `saved`.
    `grad_gate`: (n1, n2), the gate's dtype, or None.
    """

    grad_output: Any
    saved: Any
    mean: Any
    invvar: Any
    weight: Any
    bias: Any
    eps: Any
    rms: bool
    memory_efficient: bool
    grad_input: Any
    grad_weight: Any
    grad_bias: Any
    # None, or in the exact mode (3, n1), accumulator dtype: what a step adds to each row's sum of g x̂, and where it
    # leaves mean(g) and mean(g x̂).
    row_sums: Any = None
    # None, or (n1, n2), grad_input's dtype: the gradient at the array that was normalised, if this array was a result
    # of the forward, too (`new_residual`). It is added to grad_input.
    grad_residual: Any = None
    offset: float = 0.0
    row_map: RowMap | None = None
    gate: Any = None
    gating: Gate | None = None
    gate_map: RowMap | None = None
    grad_gate: Any = None
    sampled: bool = False

    @property
    def matrices(self) -> tuple:
        """Return the arrays with rows: what a vector must be aligned in."""
        # without the parameters: narrower vectors than the rows' may read them (`Kind.together` of backward.pipelined)
        return self.grad_output, self.saved, self.grad_input, self.grad_residual, self.gate, self.grad_gate

    @property
    def samples(self) -> int:
        """Return how many parts of the rows have parameters of their own."""
        return self.weight.shape[0] if self.sampled else 1

    @property
    def gradients(self) -> tuple:
        """Return the parameters' gradients."""
        return self.grad_weight, self.grad_bias

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n1, n2)."""
        return self.grad_input.shape

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        given = self.saved, self.grad_output, self.grad_residual, self.gate
        return tuple(array for array in given if array is not None)

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.grad_input,) if self.grad_gate is None else (self.grad_input, self.grad_gate)


@dataclass(frozen=True)
class Problem:
    """A forward or backward pass to be planned: shapes, dtypes and alignment, without arrays.

    Attributes:
        direction: "forward" or "backward".
        norm: "layer" or "rms".
        n1, n2: rows and columns, both at least 1.
        dtype: of x, by name. parameters: of weight, bias and the output; None: dtype.
        weight, bias: are there such parameters? None for bias: where the norm is LayerNorm.
        saved: what the backward recomputes from, "input" or "output".
        alignment: bytes, a power of two that all addresses are multiples of.
        residual: is one added before the norm (`kernels.add_norm`)? It has x's dtype. A backward then gets a gradient
            at the sum.
        gate: of an RMSNorm, "after" the norm or "before" it (`kernels.gated_norm`); None: it has none.
        heads: (heads, places) of an RMSNorm whose rows are heads of tokens that have so many places each in memory.
        samples: parts of the rows of a LayerNorm that have a scale and a shift of their own (`kernels.modulated_norm`).
        offset: of an RMSNorm: gamma is weight + offset.

    Raises:
        ValueError: an attribute has a value that is not listed above, or two attributes exclude each other.
    """

    direction: str
    norm: str
    n1: int
    n2: int
    dtype: str = "float32"
    parameters: str | None = None
    weight: bool = True
    bias: bool | None = None
    saved: str = "input"
    alignment: int = 256
    residual: bool = False
    gate: str | None = None
    heads: tuple[int, int] | None = None
    samples: int | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Check what was given."""
        one_of("direction", self.direction, ("forward", "backward"))
        one_of("norm", self.norm, ("layer", "rms"))
        one_of("saved", self.saved, ("input", "output"))
        one_of("dtype", self.dtype, DTYPES)
        # float64 is not mixed: it has no half parameters to widen, and float32 ones would round its results
        mixed = {"float64": (), "float32": ("float16", "bfloat16")}.get(self.dtype, ("float32",))
        if self.parameters is not None:
            one_of(f"parameters of a {self.dtype} norm", self.parameters, (self.dtype, *mixed))
        for name in ("n1", "n2"):
            at_least_one(name, getattr(self, name))
        # None takes what the norm has, so only an explicit True is a contradiction
        if self.norm == "rms" and self.bias:
            raise ValueError("bias must be None or False with norm='rms', which has none, got True")
        check_alignment(self.alignment, self.itemsize)
        self._check_extras()

    def _check_extras(self) -> None:
        """Raise ValueError for extras that the kernels do not take, or do not take together."""
        if self.gate is not None:
            one_of("gate", self.gate, ("after", "before"))
        given = {name: getattr(self, name) for name in ("residual", "gate", "heads", "samples")}
        asked = [name for name, value in given.items() if value]
        # No kernel does two of them in one norm.
        if len(asked) > 1:
            raise ValueError(f"a norm has one of residual, gate, heads and samples, got {' and '.join(asked)}")
        for name in ("gate", "heads", "offset"):
            if getattr(self, name) and self.norm != "rms":
                raise ValueError(f"{name} needs norm='rms', got norm={self.norm!r}")
        if not math.isfinite(self.offset):
            raise ValueError(f"offset must be finite, got {self.offset}")
        if self.offset and (self.gate or self.samples):
            raise ValueError(f"offset goes with residual or heads, or alone, got {' and '.join(asked)}")
        if self.saved == "output" and (self.heads or self.samples or self.gate == "before"):
            raise ValueError(f"saved must be input with {' and '.join(asked)}, got 'output'")
        if self.samples is not None and (self.norm, self.weight, self.has_bias) != ("layer", True, True):
            found = f"norm={self.norm!r}, weight={self.weight} and {'a' if self.has_bias else 'no'} bias"
            raise ValueError(f"samples needs norm='layer' with weight and bias, got {found}")
        if self.heads is not None:
            if not isinstance(self.heads, tuple) or len(self.heads) != 2:
                raise ValueError(f"heads must be a pair (heads, places), got {self.heads!r}")
            at_least_one("heads", self.heads[0])
            at_least_one("places of heads", self.heads[1])
            if self.heads[0] > self.heads[1]:
                raise ValueError(f"heads must be (heads, places), at least as many places as heads, got {self.heads}")
        for name, parts in (("heads", self.heads and self.heads[0]), ("samples", self.samples)):
            if parts is not None:
                at_least_one(name, parts)
                if self.n1 % parts:
                    raise ValueError(f"n1 must be a multiple of {name}, got {self.n1} rows and {parts} {name}")

    @property
    def extras(self) -> str:
        """Return what the norm has beside rows and parameters, in words; empty for a plain norm."""
        said = {
            " of x + residual": self.residual,
            f" with a gate {self.gate} it": self.gate,
            f" of {self.heads and self.heads[0]} heads in {self.heads and self.heads[1]} places": self.heads,
            f" modulated by {self.samples} samples": self.samples,
            f" with gamma = weight + {self.offset:g}": self.offset,
        }
        return "".join(words for words, there in said.items() if there)

    @property
    def itemsize(self) -> int:
        """Return the bytes of the widest element."""
        return max(DTYPES[name].itemsize for name in (self.dtype, self.parameters or self.dtype))

    @property
    def has_bias(self) -> bool:
        """Return whether there is a bias."""
        return self.norm == "layer" if self.bias is None else self.bias

    def described(self) -> ForwardProblem | BackwardProblem:
        """Return operands whose arrays have shapes, dtypes and alignments, but no memory."""
        # t, u, v: input, accumulator and output dtypes, as apex calls its template arguments
        t, v = DTYPES[self.dtype], DTYPES[self.parameters or self.dtype]
        u = DTYPES["float64" if self.dtype == "float64" else "float32"]
        recomputed, rms, shape = self.saved == "output", self.norm == "rms", (self.n1, self.n2)

        def array(shape: tuple, dtype: np.dtype) -> DeviceArray:
            return DeviceArray(self.alignment, shape, dtype, 0, None)

        parameters = (self.n2,) if self.samples is None else (self.samples, self.n2)
        weight = array(parameters, v) if self.weight else None
        bias = array(parameters, v) if self.has_bias else None
        statistics = array((self.n1,), u)
        mean = None if rms else statistics  # mean and invvar may share an address: nothing is read or written
        gated = None if self.gate is None else Gate(self.gate == "after", recomputed)
        gate = None if gated is None else array(shape, t)
        row_map = None if self.heads is None else RowMap(*self.heads)
        # A whole stride for each token except the last, after whose heads no memory is needed.
        rows = self.n1 if row_map is None else (self.n1 // row_map.heads - 1) * row_map.stride + row_map.heads
        memory = rows, self.n2  # with the rows of memory between x's own
        # scale is used as 1 + scale
        offset = 1.0 if self.samples is not None else self.offset
        extras: dict[str, Any] = {"offset": offset, "row_map": row_map, "gating": gated, "gate": gate}
        extras["sampled"] = self.samples is not None
        residual = array(shape, t) if self.residual else None
        if self.direction == "forward":
            return ForwardProblem(
                array(memory, t), weight, bias, u.type(0), array(shape, v), mean, statistics,
                residual=residual, new_residual=residual, **extras,
            )  # fmt: skip
        return BackwardProblem(
            grad_output=array(shape, v), saved=array(memory, v if recomputed else t), mean=None if recomputed else mean,
            invvar=statistics, weight=weight, bias=bias, eps=u.type(0), rms=rms,
            memory_efficient=recomputed and gated is None,  # the gate's stages recompute x̂, not the norm's
            grad_input=array(shape, t), grad_weight=weight, grad_bias=bias, grad_residual=residual, grad_gate=gate,
            **extras,
        )  # fmt: skip


def with_arrays(described: Any, eps: float, array: Callable[[str, DeviceArray], Any]) -> Any:
    """Return what a step's `described` returned, with `array(name, like)` for each array `like`, and with this eps."""
    arrays = {name: array(name, one) for name, one in vars(described).items() if isinstance(one, DeviceArray)}
    numbers = {"eps": described.eps.dtype.type(eps)} if hasattr(described, "eps") else {}
    return replace(described, **arrays, **numbers)


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ValueError unless a value is one of those that are allowed."""
    if value not in tuple(allowed):
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_alignment(alignment: int, itemsize: int) -> None:
    """Raise ValueError unless an alignment in bytes is possible for elements of so many bytes."""
    at_least_one("alignment", alignment)
    if alignment < itemsize or alignment & (alignment - 1):
        raise ValueError(
            f"alignment must be a power of two and at least the {itemsize} bytes of an element, got {alignment}"
        )


def at_least_one(name: str, value: object) -> None:
    """Raise ValueError unless a value is a whole number from 1 on."""
    # bool is an int to Python, but True rows are a mistake of the caller
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number and at least 1, got {value!r}")
