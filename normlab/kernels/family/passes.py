"""The family's passes as steps: what each would launch for an image, planned without a GPU.

The ways of a pass (`rows`, `fused`, `pieces`) launch their kernels as they decide on them. To plan, they are run on
arrays without memory, and what they would launch is written down.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from normlab.engine import DeviceArray
from normlab.kernels.family import BACKWARD_WAYS, FORWARD_WAYS, Gradients, Outputs, chains, walk
from normlab.kernels.family.sets import sets_of
from normlab.kernels.plan import Device, Plan, Refusal, Scratch, View, Work
from normlab.kernels.problem import DTYPES, at_least_one, check_alignment, one_of
from normlab.kernels.step import Rung

NORMS = "batch", "instance", "group"


@dataclass(frozen=True)
class ImageProblem:
    """A pass over an image (N, C, *spatial) to be planned, without arrays.

    Attributes:
        shape: at least (N, C), all sides at least 1.
        dtype: of all arrays like x, and of the parameters, by name.
        groups: of group norm, a divisor of C.
        channels_last: is the image laid out so?
        parameters: are there weight and bias?
        running: does the forward keep running statistics? (Then it needs the variance.)
        alignment: bytes, a power of two that all addresses are multiples of.

    Raises:
        ValueError: one of them is something else.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    groups: int = 1
    channels_last: bool = False
    parameters: bool = True
    running: bool = False
    alignment: int = 256

    def __post_init__(self) -> None:
        """Check what was given."""
        one_of("dtype", self.dtype, DTYPES)
        if len(self.shape) < 2:
            raise ValueError(f"shape must be (N, C, *spatial), got {self.shape}")
        for side in self.shape:
            at_least_one("each side of shape", side)
        at_least_one("groups", self.groups)
        if self.shape[1] % self.groups:
            raise ValueError(f"groups must divide the {self.shape[1]} channels, got {self.groups}")
        check_alignment(self.alignment, DTYPES[self.dtype].itemsize)


class Recording:
    """What `launch` and `memory` are for ways that are to be planned: written down, not run."""

    def __init__(self, operands: Any, alignment: int):
        # A way passes arrays on, not names. Without memory an array still has an address, by which it is found again.
        self.names = {one.pointer: name for name, one in vars(operands).items() if isinstance(one, DeviceArray)}
        self.alignment = alignment
        self.work: list[Work] = []
        self.scratch: list[Scratch] = []
        self.values: dict[str, Any] = {}
        # A kernel may take an operand in another shape, in the same memory: the plan then says `View`.
        self.shapes = {name: one.shape for name, one in vars(operands).items() if isinstance(one, DeviceArray)}

    def empty(self, shape: tuple[int, ...], dtype: Any, zeroed: bool = False) -> DeviceArray:
        """Return an array without memory, as scratch."""
        name = f"scratch {len(self.scratch)}"
        # An odd multiple of the alignment plus an even one is odd again.
        pointer = max(self.names) + 2 * self.alignment  # no more aligned than the others
        self.names[pointer], self.shapes[name] = name, tuple(shape)
        self.scratch.append(Scratch(name, tuple(shape), np.dtype(dtype), zeroed))
        return DeviceArray(pointer, tuple(shape), np.dtype(dtype), 0, None)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return an array without memory, as scratch that begins as zeros."""
        return self.empty(shape, dtype, zeroed=True)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        """Write a launch down."""
        arguments = tuple(map(self._named, args))
        # A way has built its kernel before it launches it, so `build` has nothing to do but return it.
        self.work.append(Work(lambda: kernel, (), grid, block, arguments, shared_bytes))

    def _named(self, value: Any) -> str | View | None:
        if value is None:
            return None
        if isinstance(value, DeviceArray):
            name = self.names[value.pointer]
            return name if value.shape == self.shapes[name] else View(name, value.shape)
        # A number: the plan keeps it under a name, because a `Work` lists its arguments by names.
        name = f"value {len(self.values)}"
        self.values[name] = value
        return name


@dataclass(frozen=True)
class Pass(Rung):
    """A norm of the family, forward or backward. norm: one of NORMS; backward: is it the backward?"""

    norm: str
    backward: bool

    def described(self, problem: Any) -> Outputs | Gradients:
        """Return the operands of this pass over an `ImageProblem`, without memory; operands as they are."""
        if not isinstance(problem, ImageProblem):
            return problem
        sets = sets_of(self.norm, problem.shape, problem.groups, problem.channels_last)
        dtype = DTYPES[problem.dtype]
        kept = DTYPES["float64" if problem.dtype == "float64" else "float32"]
        # Odd multiples: no address is more aligned than the problem says, and each array has an address of its own.
        pointers = iter(problem.alignment * (2 * number + 1) for number in range(12))

        def array(shape: tuple[int, ...], kind: np.dtype) -> DeviceArray:
            return DeviceArray(next(pointers), shape, kind, 0, None)

        x = array(sets.shape, dtype)
        weight, bias = (array((sets.parameters,), dtype) if problem.parameters else None for _ in range(2))
        mean, invvar = (array((sets.total,), kept) for _ in range(2))
        result = array(sets.shape, dtype)
        if not self.backward:
            variance = array((sets.total,), kept) if problem.running else None
            # eps is 0, because no plan depends on its value, only on its dtype.
            return Outputs(sets, x, weight, bias, kept.type(0), mean, variance, invvar, result)
        grads = (array((sets.parameters,), dtype) if problem.parameters else None for _ in range(2))
        return Gradients(sets, array(sets.shape, dtype), x, mean, invvar, weight, True, result, *grads)


def planned(way: Callable[..., bool], operands: Any, device: Device) -> Plan | Refusal:
    """Return the plan of a way: what it launches for operands without memory."""
    # the ways take arrays without memory as they take others: they look at shapes, dtypes and addresses alone
    walked = walk(operands.sets, *operands.reading, *operands.writing, device=device)
    # The lowest bit that is set in an address is the largest power of two that divides it: the alignment.
    recording = Recording(operands, operands.x.pointer & -operands.x.pointer)
    # A way answers False before it launches anything, so a refused recording is thrown away empty.
    if not way(recording.launch, recording, walked, operands):
        return Refusal(REFUSED[way.__name__])
    rows, columns = chains(walked)
    return Plan(
        way.__name__.removesuffix("_forward").removesuffix("_backward"),
        tuple(recording.work),
        WHY[way.__name__],
        rows,
        columns,
        # The pieces' kernels read x for the statistics and again for the result.
        reads=2 if "pieces" in way.__name__ else 1,
        scratch=tuple(recording.scratch),
        values=tuple(recording.values.items()),
    )


WHY = {
    "rows_forward": "a set lies in one piece, and a block's registers hold it: it is read once",
    "fused_forward": "one kernel for the whole pass: what the shared memory of all blocks keeps is read once",
    "fused_backward": "one kernel for the whole pass: what the shared memory of all blocks keeps is read once",
    "pieces_forward": "three kernels: pieces of sets, their merge, the output; does every shape and dtype",
    "pieces_backward": "three kernels: pieces of sets, their merge, the gradient; does every shape and dtype",
}
REFUSED = {
    "rows_forward": "a set is no row of up to 32,768 values, or float64, or running statistics are kept",
    "fused_forward": "no batch norm of channels last with rows for all multiprocessors of compute capability 9.0",
    "fused_backward": "no batch norm of channels last with rows for all multiprocessors of compute capability 9.0",
}


def _pass(norm: str, backward: bool) -> Pass:
    ways = tuple(partial(planned, way) for way in (BACKWARD_WAYS if backward else FORWARD_WAYS))
    name, what = (f"{norm}_backward", "gradients") if backward else (norm, "output and statistics")
    return Pass(name, f"{what} of {norm} norm", ways, norm, backward)


PASSES = tuple(_pass(norm, backward) for backward in (False, True) for norm in NORMS)
