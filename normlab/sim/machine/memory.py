"""Make the memory that a kernel asks for: shared, local and constant arrays.

`fresh` makes all new memory, and fills it with NaN or large integers, on which no kernel may rely. Under observation
(observe.py) the arrays returned here are wrapped.
"""

import sys
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.arrays import adopt, as_kernel_array, dtype_of, shape_of
from normlab.sim.language.errors import SimulationError
from normlab.sim.language.source import name_given
from normlab.sim.machine.observed import ObservedArray, plain_array, pointer
from normlab.sim.protocols import Block, Cuda

INTEGER_POISON = 0x5A  # every byte of a fresh integer: 0x5a5a5a5a is as good as garbage, and easy to recognise
MAX_STATIC_SHARED = 48 * 1024  # bytes per block that ptxas accepts
MAX_LOCAL = 512 * 1024  # bytes per thread (CUDA programming guide, technical specifications per compute capability)
MAX_SHARED = 227 * 1024  # bytes per block, on an H200
SHARED_SPACING = 1 << 20  # bytes between the shared arrays of the imagined device: each begins at bank 0
DYNAMIC_ADDRESS = 1 << 40  # where dynamic shared memory begins on the imagined device
DYNAMIC_POISON = 0xFF  # every byte of dynamic shared memory: NaN in any float type


def fresh(shape: tuple[int, ...], dtype: np.dtype, alignment: int = 0) -> np.ndarray:
    """Return new memory, filled with NaN or with large integers.

    `alignment`: the address is a multiple of so many bytes, and not of twice as many; 0: any address.
    """
    if alignment:
        size = dtype.itemsize * prod(shape)
        room = np.empty(size + 2 * alignment, np.uint8)
        # An odd multiple of the alignment: a kernel that needs more than it asked for finds it out here, every time.
        start = (alignment - pointer(room)) % (2 * alignment)
        array = room[start : start + size].view(dtype).reshape(shape)
    else:
        array = np.empty(shape, dtype)
    if dtype.kind in "fc" or dtype == ml_dtypes.bfloat16:
        array.fill(np.nan)
    elif dtype.kind == "b":
        array.fill(True)
    else:
        # Bytes and not elements, so that records and integers of every width get the same pattern.
        array.view(np.uint8 if array.ndim else dtype).fill(INTEGER_POISON)
    return as_kernel_array(array)


@lru_cache(maxsize=64, typed=True)
def _pattern(shape: Any, dtype: Any) -> np.ndarray:
    """Return `fresh` memory of a shape and dtype; the caller copies it."""
    extents, kind = shape_of(shape), dtype_of(dtype)
    check_local(extents, kind)
    return fresh(extents, kind)


def check_local(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise SimulationError for a local array that is larger than a thread's local memory: ptxas refuses it."""
    size = prod(shape) * dtype.itemsize
    if size > MAX_LOCAL:
        raise SimulationError(
            f"a local array of shape {shape} takes {size} bytes; a thread has at most {MAX_LOCAL} of local memory"
        )


class SharedMemory:
    """`cuda.shared`."""

    def __init__(self, cuda: Cuda, dynamic_bytes: int):
        """Belong to the launch of `cuda`."""
        self._cuda, self._dynamic_bytes = cuda, dynamic_bytes

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        """Return the block's array of this call; every thread and every repetition of the call gets the same array.

        Shape 0 stands for all of the launch's dynamic shared memory, which calls of every dtype share. Any other array
        begins at a multiple of `alignment` bytes, or of those that its dtype needs, and not of twice as many. A kernel
        whose vector access is aligned only by luck on a GPU thus fails here.
        """
        # The instruction of the call, not its line: two arrays made in one line are two. The globals are the calling
        # function's own (rewrite.py), and so tell apart two device functions that a closure made from one source.
        caller = sys._getframe(1)
        site = (id(caller.f_code), caller.f_lasti, id(caller.f_globals))
        block = self._cuda.current.block
        if site not in block.shared:
            watched = self._cuda.observer is not None
            name = name_given(caller.f_code, caller.f_lasti, "shared array") if watched else ""
            self._make(block, site, shape_of(shape), dtype_of(dtype), alignment, name)
        return block.shared[site]

    def _make(
        self, block: Block, site: Any, extents: tuple[int, ...], kind: np.dtype, alignment: int | None, name: str
    ) -> None:
        """Make the array of the call `site`, and keep it in `block`."""
        array = self._dynamic(block, kind) if extents == (0,) else self._static(block, extents, kind, alignment)
        if self._cuda.observer is not None:
            # Arrays of fixed shape stand 1 MiB apart, more than a block's 227 KiB: no address belongs to two of them.
            where = DYNAMIC_ADDRESS if extents == (0,) else len(block.shared) * SHARED_SPACING
            array = self._cuda.observer.made(array, name, "shared", where, block)
        block.shared[site] = array
        plain = plain_array(array)
        block.shared_spans.append((pointer(plain), pointer(plain) + plain.nbytes, site))

    def holds(self, array: np.ndarray) -> bool:
        """Return whether an array is in the running block's shared memory."""
        return self._site_of(array) is not None

    def _site_of(self, array: np.ndarray) -> Any:
        """Return the call that made the running block's shared memory that `array` is in; None for other memory."""
        address = pointer(array)
        # A block has a handful of arrays, so a search is as fast as any table of addresses.
        for start, end, site in self._cuda.current.block.shared_spans:
            if start <= address < end:
                return site
        return None

    def counterpart(self, array: Any, block: Block) -> Any:
        """Return the copy of `array` in the shared memory of `block`; `array` is the running thread's.

        Return None for an array that is not in shared memory. If `block` has not come to the call that makes the array,
        make it now.
        """
        plain = plain_array(array)
        site = self._site_of(plain)
        if site is None:
            return None
        mine = self._cuda.current.block.shared[site]
        if site not in block.shared:  # that block has not come to the call yet: make its array now
            dynamic = "dynamic" in self._cuda.current.block.shared and np.may_share_memory(
                plain, self._cuda.current.block.shared["dynamic"]
            )
            name = mine.buffer.name if isinstance(mine, ObservedArray) else ""
            alignment = pointer(plain_array(mine)) & -pointer(plain_array(mine))
            self._make(block, site, (0,) if dynamic else mine.shape, mine.dtype, alignment, name)
        theirs = block.shared[site]
        memory = np.asarray(plain_array(theirs)).reshape(-1).view(np.uint8)
        # `array` may be a slice or a view of the shared array: the same bytes of the other block's copy are wanted.
        offset = pointer(plain) - pointer(plain_array(mine))
        view = as_kernel_array(np.ndarray(plain.shape, plain.dtype, memory, offset, plain.strides))
        return theirs.viewed(view) if isinstance(theirs, ObservedArray) else view

    def _static(self, block: Block, shape: tuple[int, ...], dtype: np.dtype, alignment: int | None) -> np.ndarray:
        """Return a new array; raises SimulationError where a block's shared memory is full."""
        array = fresh(shape, dtype, alignment or dtype.alignment)
        block.static_bytes += array.nbytes
        # ptxas stops here with "uses too much shared data", whatever the GPU has.
        if block.static_bytes > MAX_STATIC_SHARED:
            raise SimulationError(
                f"the block's shared arrays take {block.static_bytes} bytes with this one, of shape {shape}; a GPU has "
                f"at most {MAX_STATIC_SHARED} for arrays of fixed shape (more only as dynamic shared memory)"
            )
        if block.static_bytes + self._dynamic_bytes > MAX_SHARED:
            raise SimulationError(
                f"the block's shared arrays take {block.static_bytes} bytes and its dynamic shared memory "
                f"{self._dynamic_bytes}; a block has at most {MAX_SHARED} together"
            )
        return array

    def _dynamic(self, block: Block, dtype: np.dtype) -> np.ndarray:
        """Return the block's dynamic shared memory as an array of as many `dtype` as fit."""
        # One piece of memory for all calls, as `extern __shared__` in CUDA: two arrays of shape 0 overlap.
        if "dynamic" not in block.shared:
            block.shared["dynamic"] = np.full(self._dynamic_bytes, DYNAMIC_POISON, np.uint8)
        # The bytes that are left over at the end hold no whole element.
        usable = self._dynamic_bytes // dtype.itemsize * dtype.itemsize
        return as_kernel_array(block.shared["dynamic"][:usable].view(dtype))


class LocalMemory:
    """`cuda.local`."""

    def __init__(self, cuda: Cuda):
        """Belong to the launch of `cuda`."""
        self._cuda = cuda

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        """Return a new array that only the calling thread has."""
        try:  # kernels make the same arrays all the time, and a copy takes a third of the time
            array = _pattern(shape, dtype).copy()
        except TypeError:  # the shape is unhashable: `shape_of` raises the usual error for it
            array = fresh(shape_of(shape), dtype_of(dtype))
        if self._cuda.observer is None:
            return array
        caller = sys._getframe(1)
        name = name_given(caller.f_code, caller.f_lasti, "local array")
        return self._cuda.observer.made(array, name, "local", 0, self._cuda.current.block)


class ConstantMemory:
    """`cuda.const`."""

    def array_like(self, array: np.ndarray) -> np.ndarray:
        """Return the array, read-only."""
        array = adopt(array).view()
        # A store raises here, where the compiler would refuse it.
        array.flags.writeable = False
        return array
