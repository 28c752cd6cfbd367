"""Launch a kernel: on a GPU through the driver, or in the simulator.

On a GPU the host first prepares a launch, then calls it. Preparing finds the function and packs the arguments. A call
passes the stream to the driver, and in a cached launch also the arrays' new addresses. A call neither allocates GPU
memory nor waits for the GPU, so a CUDA graph can capture it.
"""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from normlab.engine.compile.lengths import check_lengths
from normlab.engine.compile.signatures import dimensions, kind_of, parameters
from normlab.engine.launching.arrays import SIMULATED_MULTIPROCESSORS, DeviceArray, to_device, to_host
from normlab.engine.launching.driver import (
    CLUSTER_DIMENSION,
    COOPERATIVE,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    LaunchAttribute,
    LaunchConfig,
    driver,
)
from normlab.engine.launching.functions import Function, function
from normlab.engine.launching.worlds import schedule, use_gpu
from normlab.sim import simulate


def launch(
    kernel: Any,
    grid: int | tuple,
    block: int | tuple,
    *args: Any,
    stream: int = 0,
    shared_bytes: int = 0,
    cluster: int = 1,
) -> None:
    """Run a kernel on its arguments, in place.

    `DeviceArray` arguments run on their GPU. NumPy arrays run on a GPU if `use_gpu()` is True, else in the simulator.

    Args:
        kernel: a function under `cuda.jit`.
        grid: number of blocks, an int or a tuple of up to three ints.
        block: threads per block, an int or a tuple of up to three ints.
        args: arrays (all on the device, or all on the host), NumPy or Python scalars, or None for an absent array.
            Python ints become int64 and Python floats float64, so pass `np.float32(eps)` to stay in single precision.
        stream: the handle of a CUDA stream. With arguments on the device, the call returns once the work is queued.
        shared_bytes: dynamic shared memory per block.
        cluster: neighbouring blocks along x per thread-block cluster; the grid's x must be a multiple of it.

    Raises:
        ValueError: no GPU can have the configuration, or the arrays lie on different GPUs.
        TypeError: an argument has none of the types listed above.
        RuntimeError: the driver refuses; the message names the kernel, the configuration and the driver's reason.
    """
    if any(isinstance(arg, DeviceArray) for arg in args):
        prepare(kernel, grid, block, *args, shared_bytes=shared_bytes, cluster=cluster)(stream)
    elif use_gpu():
        views = [to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        prepare(kernel, grid, block, *views, shared_bytes=shared_bytes, cluster=cluster)(stream)
        for arg, view in zip(args, views, strict=True):
            if isinstance(arg, np.ndarray) and arg.flags.writeable:
                arg[...] = to_host(view)
    else:
        check_lengths(kernel, args)
        simulate(kernel, schedule=schedule(), cluster=cluster)[grid, block, 0, shared_bytes](*args)


def prepare(
    kernel: Any, grid: int | tuple, block: int | tuple, *args: Any, shared_bytes: int = 0, cluster: int = 1
) -> "Launch":
    """Prepare a launch on a GPU, and return it to be called with a stream; arguments and errors as for `launch`."""
    devices = {arg.device for arg in args if isinstance(arg, DeviceArray)} or {0}
    if len(devices) > 1:
        raise ValueError(f"the arrays of one launch lie on different GPUs: {sorted(devices)}")
    found = function(driver(), kernel, tuple(map(kind_of, args)), devices.pop())
    return Launch(found, dimensions(grid), dimensions(block), args, shared_bytes, cluster)


def resident_clusters(kernel: Any, block: int | tuple, *args: Any, shared_bytes: int = 0, cluster: int = 1) -> int:
    """Return how many clusters of a kernel the GPU holds at a time (blocks if `cluster` is 1); at least 1.

    All blocks of a grid of that size run at once, from beginning to end. Arguments as for `launch`. For arrays in host
    memory, the function assumes an H200 with one block on each multiprocessor.
    """
    if not any(isinstance(arg, DeviceArray) for arg in args):
        return SIMULATED_MULTIPROCESSORS // cluster
    return max(1, prepare(kernel, cluster, block, *args, shared_bytes=shared_bytes, cluster=cluster).resident())


class Launch:
    """A kernel with its configuration and its packed arguments. Any number of threads may call it at the same time.

    Attributes:
        words: for each argument, the index of its first word. A word is 8 bytes of the packed arguments.
        slots: for each array among the arguments, the index of the word with its address.
        patches: the words that each call replaces, at first none. An entry (slot, source, offset) sets the word `slot`
            to `pointers[source] + offset`.
    """

    def __init__(self, function: Function, grid: tuple, block: tuple, args: tuple, shared_bytes: int, cluster: int):
        if cluster < 1 or grid[0] % cluster:
            raise ValueError(
                f"a grid of clusters has a multiple of the cluster's {cluster} blocks along x, got grid {grid}"
            )
        if shared_bytes < 0:
            raise ValueError(f"shared_bytes is at least 0, got {shared_bytes}")
        function.allow(shared_bytes, cluster)
        self.function = function
        self.grid, self.block, self.shared_bytes, self.cluster = grid, block, shared_bytes, cluster
        wanted: dict[int, tuple[int, ...]] = {CLUSTER_DIMENSION: (cluster, 1, 1)} if cluster > 1 else {}
        if function.early:
            wanted[PROGRAMMATIC_STREAM_SERIALIZATION] = (1,)
        if function.cooperative:
            wanted[COOPERATIVE] = (1,)
        self._attributes = [LaunchAttribute(number, value=value) for number, value in wanted.items()]
        self.slots: list[int] = []
        self.words: list[int] = []
        self.patches: tuple[tuple[int, int, int], ...] = ()
        self._guarded = function.driver.devices > 1  # another GPU's context may be current: ask before each launch
        self._launch = function.driver.launch
        self._bytes = bytearray()  # the packed arguments: every kernel parameter, padded to whole words
        self._starts: list[int] = []  # where each parameter begins in them
        self._frames: list[tuple] = []  # of earlier calls, to be used again: see `_frame`
        seen: dict[str, int] = {}
        for arg, names in zip(args, function.lengths, strict=True):
            self.words.append(len(self._bytes) // 8)
            if isinstance(arg, DeviceArray):
                self.slots.append(self.words[-1])
            for parameter in parameters(arg, names, seen):
                self._starts.append(len(self._bytes))
                self._bytes += parameter + bytes(-len(parameter) % 8)

    def __call__(self, stream: int = 0, pointers: Sequence[int] = ()) -> None:
        """Queue the kernel on a stream; `patches` take their addresses from `pointers`.

        A launch needs the GPU's context to be current. On a machine with one GPU it nearly always is, so the first
        attempt does not check. If it fails, or was left out, the second attempt makes the context current first. It
        serves a thread that has not used the GPU yet.
        """
        try:  # a frame in use is off the list, so no other thread can write into it
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame()
        words, config, call = frame
        for slot, source, offset in self.patches:
            words[slot] = pointers[source] + offset
        config.stream = stream
        # -1 stands for the error of an attempt that was left out
        code = -1 if self._guarded and not self.function.is_current() else self._launch(*call)
        if code:
            with self.function.driver.current(self.function.device):
                code = self._launch(*call)
        self._frames.append(frame)
        if code:
            self.function.driver.check(f"launch {self}", code)

    def resident(self) -> int:
        """Return how many clusters the GPU holds at a time; if `cluster` is 1, how many blocks."""
        driver, device = self.function.driver, self.function.device
        with driver.current(device):
            if self.cluster == 1:
                blocks = driver.resident_blocks(self.function.handle, prod(self.block), self.shared_bytes)
                return blocks * driver.multiprocessors(device)
            _, config, _ = self._frame()
            return driver.resident_clusters(self.function.handle, config)

    def _frame(self) -> tuple:
        """Return the buffers of one call: the arguments' words, the configuration, and the driver call's arguments."""
        words = (ctypes.c_uint64 * (len(self._bytes) // 8)).from_buffer_copy(self._bytes)
        addresses = [ctypes.addressof(words) + start for start in self._starts]
        attributes = (LaunchAttribute * len(self._attributes))(*self._attributes)
        config = LaunchConfig(self.grid, self.block, self.shared_bytes, 0, attributes, len(attributes))
        function = ctypes.c_void_p(self.function.handle)
        return words, config, (ctypes.byref(config), function, (ctypes.c_void_p * len(addresses))(*addresses), None)

    def __str__(self) -> str:
        """Return the kernel's name and its configuration, for messages."""
        grid, block = (_shortest(size) for size in (self.grid, self.block))
        return f"{self.function.name}[{grid}, {block}], shared_bytes={self.shared_bytes}, cluster={self.cluster}"


def _shortest(size: tuple[int, int, int]) -> int | tuple:
    """Return a size in its shortest form: an int if y and z are 1, else the tuple."""
    return size[0] if size[1:] == (1, 1) else size
