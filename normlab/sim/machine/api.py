"""Define the `cuda` namespace that a simulated kernel sees in the place of `numba.cuda`.

There is one object per launch. `threadIdx` and `current` (the running thread) are plain attributes, which the scheduler
sets before it lets a thread run; everything else finds its thread through `current`.
"""

import math
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from normlab.sim.language.arrays import shape_of
from normlab.sim.language.functions import MATH, Namespace, brev, clz, ffs, fma, popc
from normlab.sim.language.half import BF16, FP16
from normlab.sim.language.integers import BOOLS, TYPES
from normlab.sim.language.libdevice import LIBDEVICE
from normlab.sim.language.vector_types import VECTOR_TYPES
from normlab.sim.machine.atomics import Atomics
from normlab.sim.machine.memory import ConstantMemory, LocalMemory, SharedMemory
from normlab.sim.machine.observe import Observer
from normlab.sim.machine.observed import ObservedArray
from normlab.sim.machine.shuffles import WarpOperations
from normlab.sim.machine.threads import WARP_SIZE, Dim3, Thread
from normlab.sim.machine.vector import load_block, store_block
from normlab.sim.protocols import Grid


class GridGroup:
    """The threads of the whole grid, as `cuda.cg.this_grid()` returns them."""

    def __init__(self, cuda: "Cuda"):
        """Belong to the launch of `cuda`."""
        self._cuda = cuda

    def sync(self) -> int:
        """Wait until every thread of the grid that has not returned is here."""
        thread = self._cuda.current
        # The scheduler resolves it: a grid sync waits for blocks that may not have begun.
        thread.block.at_grid_sync.append(thread)
        self._cuda.grid_run.stop(thread, "grid sync")
        return 0

    @property
    def size(self) -> int:
        """The number of threads of the grid."""
        grid = self._cuda.grid_run
        return len(grid.block_indices) * len(grid.thread_indices)


class Cuda(WarpOperations):
    """What `cuda` means inside a kernel."""

    warpsize = WARP_SIZE
    grid_run: Grid  # set by the launch
    current: Thread  # set by the scheduler, as are the two indices
    observer: Observer | None = None  # set by the launch
    random: Any  # set by the rewriter, if the kernel's own `cuda` has it
    threadIdx: Dim3  # noqa: N815
    blockIdx: Dim3  # noqa: N815

    popc = staticmethod(popc)
    clz = staticmethod(clz)
    ffs = staticmethod(ffs)
    brev = staticmethod(brev)
    fma = staticmethod(fma)
    cbrt = staticmethod(MATH["cbrt"])
    # Numba unrolls a loop over a tuple of several types; Python's loop takes any tuple.
    literal_unroll = staticmethod(lambda container: container)

    def __init__(self, grid: Dim3, block: Dim3, dynamic_shared_bytes: int):
        """Set up the namespace of one launch."""
        self.gridDim, self.blockDim = grid, block
        # Each of these keeps the namespace, through which it finds the running thread: Python gives it no other way.
        self.shared = SharedMemory(self, dynamic_shared_bytes)
        self.local = LocalMemory(self)
        self.shared_array, self.local_array = self.shared.array, self.local.array  # numba-cuda-mlir's names
        self.const = ConstantMemory()
        self.atomic = Atomics(self)
        self.libdevice, self.fp16, self.bf16 = LIBDEVICE, FP16, BF16
        self.cg = Namespace("cuda.cg", {"this_grid": partial(GridGroup, self)})
        self.types = Namespace("cuda.types", TYPES)
        self.vector = Namespace("cuda.vector", {"load": load_block, "store": store_block})

    # Python calls this for missing names only, so `cuda.float32` costs one failed lookup and `cuda.grid` none.
    def __getattr__(self, name: str) -> Any:
        """Return a type, or say what is missing and which name comes nearest."""
        if name in TYPES:
            return TYPES[name]
        if name in VECTOR_TYPES:
            return VECTOR_TYPES[name]
        nearest = get_close_matches(name, [one for one in dir(self) if not one.startswith("_")], n=1)
        hint = f"; did you mean cuda.{nearest[0]}?" if nearest else ""
        raise AttributeError(f"normlab's simulator has no cuda.{name}{hint}")

    @property
    def laneid(self) -> int:
        """The running thread's lane in its warp."""
        return self.current.lane

    def grid(self, ndim: int) -> Any:
        """Return the thread's position in the grid: an int for 1, a tuple for 2 and 3 dimensions."""
        return self._per_axis(
            ndim,
            lambda axis: getattr(self.blockIdx, axis) * getattr(self.blockDim, axis) + getattr(self.threadIdx, axis),
        )

    def gridsize(self, ndim: int) -> Any:
        """Return the number of threads of the grid along each of `ndim` axes."""
        return self._per_axis(ndim, lambda axis: getattr(self.blockDim, axis) * getattr(self.gridDim, axis))

    @staticmethod
    def _per_axis(ndim: int, of_axis: Any) -> Any:
        if ndim not in (1, 2, 3):
            raise ValueError(f"grid and gridsize take 1, 2 or 3 dimensions, not {ndim!r}")
        return of_axis("x") if ndim == 1 else tuple(map(of_axis, "xyz"[:ndim]))

    def _barrier(self, kind: str, given: Any) -> Any:
        if isinstance(given, BOOLS):
            raise TypeError(f"{kind} takes an int: Numba compiles no kernel that gives it a bool; 1 if … else 0 is one")
        thread = self.current
        thread.given = given
        thread.block.arrived.append(thread)
        self.grid_run.stop(thread, kind)
        return thread.result

    def syncthreads(self) -> None:
        """Wait for every thread of the block that has not returned."""
        # `_barrier` in place, without a predicate and a result: nearly all barriers are this one.
        thread = self.current
        thread.block.arrived.append(thread)
        self.grid_run.stop(thread, "syncthreads")

    def syncthreads_count(self, predicate: Any) -> int:
        """Wait as `syncthreads` does, and return how many threads gave a true predicate."""
        return self._barrier("syncthreads_count", predicate)

    def syncthreads_and(self, predicate: Any) -> int:
        """Wait as `syncthreads` does, and return 1 if every predicate was true, else 0."""
        return self._barrier("syncthreads_and", predicate)

    def syncthreads_or(self, predicate: Any) -> int:
        """Wait as `syncthreads` does, and return 1 if some predicate was true, else 0."""
        return self._barrier("syncthreads_or", predicate)

    def _fence(self, scope: str) -> None:
        """Tell the observer, and count as one turn of a spin loop."""
        if self.observer is not None:
            self.observer.fence(self.current, scope)
        # Nothing else is to do, because all threads see memory in one order. A loop that polls a plain load may have
        # this fence as its only call, so other threads must get their turn here.
        self.grid_run.turn(self.current)

    def threadfence(self) -> None:
        """Order this thread's memory accesses for all threads of the device."""
        self._fence("device")

    def threadfence_block(self) -> None:
        """Order this thread's memory accesses for its block."""
        self._fence("block")

    def threadfence_system(self) -> None:
        """Order this thread's memory accesses for the whole machine."""
        self._fence("system")

    def nanosleep(self, nanoseconds: Any) -> None:
        """Count as one turn of a spin loop."""
        # No time passes in the simulator. A thread that sleeps waits for another one, which runs after TURN such calls.
        self.grid_run.turn(self.current)

    def selp(self, condition: Any, if_true: Any, if_false: Any) -> Any:
        """Return `if_true` or `if_false`."""
        return if_true if condition else if_false

    def carray(self, pointer: Any, shape: Any, dtype: Any = None) -> Any:
        """Return the elements that a C pointer points to as an array; Numba wants its dtype, and no other."""
        return pointer[: math.prod(shape_of(shape))].reshape(shape)

    def farray(self, pointer: Any, shape: Any, dtype: Any = None) -> Any:
        """Return the elements that a C pointer points to as an array in Fortran order."""
        # The first index runs fastest in Fortran: a C array of the axes in reverse, transposed, is the same memory.
        return self.carray(pointer, shape_of(shape)[::-1]).T

    def ldca(self, array: np.ndarray, index: Any) -> Any:
        """Load `array[index]`; a cache hint changes no value."""
        return array[index]

    # The hints choose a cache and an eviction policy, and the simulator has no caches.
    ldcg = ldcs = ldlu = ldca

    def ldcv(self, array: np.ndarray, index: Any) -> Any:
        """Load `array[index]`, and count it as a turn of a loop that waits for another thread's store."""
        # ldcv bypasses the caches: kernels poll a flag with it, so it may be all that a spin loop does.
        plain = array.raw if isinstance(array, ObservedArray) else array
        try:
            seen = plain[index]
        except IndexError:  # the load below raises it, or under the sanitizer gives poison, for which a loop may wait
            seen = None
        self.grid_run.spin(self.current, (plain.ctypes.data, index), seen)
        return array.observer.poll(array, index) if isinstance(array, ObservedArray) else array[index]

    def stcg(self, array: np.ndarray, index: Any, value: Any) -> None:
        """Store `array[index] = value`; a cache hint changes no value."""
        array[index] = value

    stcs = stwb = stwt = stcg
