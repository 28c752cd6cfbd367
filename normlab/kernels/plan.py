"""A plan: which kernels a step launches for a problem, on which grid, with which memory, and why.

`step.plan(problem, device)` makes it without a GPU and without a driver, from shapes, dtypes, addresses and the facts
of a `Device`. `Plan.launch` runs it. How many blocks of a persistent kernel the GPU holds at a time is known only to
the driver, so `step.run` asks it (`PersistentPlan.queried`), and `step.plan` estimates it (`PersistentPlan.estimated`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

from normlab.engine import (
    DeviceArray,
    block_shared_bytes,
    compute_capability,
    multiprocessors,
    resident_clusters,
)
from normlab.stages.vector import WARP, ThreadMap

CLUSTERS_FROM = (9, 0)  # the lowest compute capability that has clusters
MAX_CLUSTER = 16  # blocks; more than 8 need an attribute of the kernel, which `engine.launch` sets
# Blocks of a grid, at most, along x and along y. With more rows a block takes several, or the kernel refuses.
GRID_LIMIT, GRID_LIMIT_Y = 2**31 - 1, 65535
THREADS_PER_MULTIPROCESSOR = {(8, 6): 1536, (8, 9): 1536, (12, 0): 1536}  # by compute capability; the others have 2048


class Chains(NamedTuple):
    """The longest chain of additions in a kernel's sums: what its rounding error grows with.

    One thread adds `terms` values one after another, then a tree of `merges` levels adds up the threads' sums.
    """

    terms: int
    merges: int


def longest(*chains: Chains) -> Chains:
    """Return the most terms and the most merges of several chains, for a step that has several kernels."""
    return Chains(max(chain.terms for chain in chains), max(chain.merges for chain in chains))


def row_chains_of(thread_map: ThreadMap) -> Chains:
    """Return the chains of a row in a block's registers: a thread's elements, five levels of lanes, warps."""
    return Chains(thread_map.elements, 5 + (thread_map.warps - 1).bit_length())


def exchanged_row_chains_of(thread_map: ThreadMap, blocks: int) -> Chains:
    """Return the chains of a row whose warps, of one or several blocks, exchange their sums in shared memory.

    A thread adds its elements and then a lane adds its warps' sums, each before a butterfly of five levels.
    """
    return Chains(thread_map.elements + thread_map.warps * blocks // WARP, 10)


@dataclass(frozen=True)
class Device:
    """Hold what a plan has to know of a GPU.

    Attributes:
        multiprocessors: how many there are.
        capability: compute capability, such as (9, 0).
        shared_bytes: shared memory that one block may have, static and dynamic together.
        bandwidth: bytes per second of the memory, by the data sheet; None: unknown.
        registers: of a multiprocessor, 32 bits each.
    """

    multiprocessors: int
    capability: tuple[int, int]
    shared_bytes: int
    bandwidth: float | None = None
    registers: int = 65536  # of every GPU in `DEVICES`

    @staticmethod
    def of(array: Any) -> "Device":
        """Return the facts of the GPU that computes on an array, as the driver has them; the simulator is an H200."""
        return _facts(multiprocessors(array), compute_capability(array))

    @staticmethod
    def named(name: str) -> "Device":
        """Return a GPU of `DEVICES` by its short name.

        Raises:
            ValueError: another name.

        >>> Device.named("h100").multiprocessors
        132
        """
        try:
            return DEVICES[name.lower()]
        except KeyError:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {name!r}") from None

    @property
    def threads(self) -> int:
        """Return the threads that a multiprocessor holds at a time."""
        return THREADS_PER_MULTIPROCESSOR.get(self.capability, 2048)

    @property
    def largest_cluster(self) -> int:
        """Return the number of blocks that a cluster may have; 1 where there are no clusters."""
        return MAX_CLUSTER if self.capability >= CLUSTERS_FROM else 1

    def resident(self, threads: int, shared_bytes: int, cluster: int) -> int:
        """Return how many clusters of such blocks the GPU's threads and shared memory allow; registers may allow fewer.

        threads, shared_bytes: per block. cluster: blocks per cluster.
        """
        blocks = self.threads // threads
        # a multiprocessor has 1024 bytes more than one block may have; the driver takes 1024 per block
        if shared_bytes:
            blocks = min(blocks, (self.shared_bytes + 1024) // (shared_bytes + 1024))
        # at least one, so that no grid is empty
        return max(1, blocks * self.multiprocessors // cluster)


# Cached, because each call of a host function asks.
@cache
def _facts(processors: int, capability: tuple[int, int]) -> Device:
    return Device(processors, capability, block_shared_bytes(capability))


def _known(processors: int, capability: tuple[int, int], bandwidth: float) -> Device:
    return replace(_facts(processors, capability), bandwidth=bandwidth)


# NVIDIA's data sheets. The kernels have been timed on the first two.
DEVICES = {
    "h200": _known(132, (9, 0), 4.8e12),  # SXM, 141 GB of HBM3e
    "h100": _known(132, (9, 0), 3.35e12),  # SXM, 80 GB of HBM3
    "h100-pcie": _known(114, (9, 0), 2.0e12),  # 80 GB of HBM2e
    "a100": _known(108, (8, 0), 2.039e12),  # SXM, 80 GB of HBM2e
    "l40s": _known(142, (8, 9), 0.864e12),  # 48 GB of GDDR6
    "rtx4090": _known(128, (8, 9), 1.008e12),  # 24 GB of GDDR6X
}


@dataclass(frozen=True)
class Work:
    """One kernel of a plan, and how it is launched.

    `build(*options)` makes the kernel. `arguments` are its operands' names in their order, None for an absent operand.
    """

    build: Callable[..., Any]
    options: tuple
    grid: int | tuple[int, int]
    block: int | tuple[int, int]
    arguments: "tuple[str | View | None, ...]"
    shared_bytes: int = 0
    cluster: int = 1

    @property
    def kernel(self) -> Any:
        """Return the kernel, which `build` makes once."""
        return self.build(*self.options)

    @property
    def blocks(self) -> int:
        """Return the number of blocks of the grid."""
        return self.grid if isinstance(self.grid, int) else prod(self.grid)

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.block if isinstance(self.block, int) else prod(self.block)

    @property
    def how(self) -> dict[str, int]:
        """Return `engine.launch`'s keyword arguments that are not at their default."""
        # defaults are left out: a test's `launch` need not know of clusters
        how = {"shared_bytes": self.shared_bytes} if self.shared_bytes else {}
        if self.cluster > 1:
            how["cluster"] = self.cluster
        return how


class Scratch(NamedTuple):
    """Memory that a plan needs beside its operands.

    name: how `Work.arguments` calls it. zeroed: True if it must begin as zeros.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    zeroed: bool = False


class View(NamedTuple):
    """An operand as an array of another shape, in the same memory."""

    name: str
    shape: tuple[int, ...]


def reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the array in another shape, in the same memory."""
    return array._replace(shape=shape) if isinstance(array, DeviceArray) else array.reshape(shape)


class Chosen(NamedTuple):
    """What a table gives for a problem: the layout, and the reason with the number that decided."""

    layout: Any
    why: str


class Refusal(NamedTuple):
    """Why a kernel does not do a problem."""

    reason: str


FLOAT32_ALONE = Refusal("it computes in float32, and float64 is asked for")


@dataclass(frozen=True)
class Plan:
    """What a step does for a problem on a device.

    Attributes:
        step: whose kernels these are: the step's own, or those that it hands the problem on to: an earlier step's, or
            some beside the steps, such as `short_rows`.
        work: the kernels, in the order of their launches.
        why: the reason, with the number that decided.
        rows: the chains of additions along a row (of a set, in the family).
        columns: those of the sums over rows (over a channel, in the family); None: there are none.
        reads: how often the input matrices are read.
        scratch: memory that the kernels need.
        values: (name, value) of further operands, such as 1 / n2; None for an operand that is absent.
        layout: what the first kernel is built for; its `words` describe it in words. None if nothing was to be chosen.
    """

    step: str
    work: tuple[Work, ...]
    why: str
    rows: Chains
    columns: Chains | None = None
    reads: int = 1
    scratch: tuple[Scratch, ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    layout: Any = None

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes of all scratch together."""
        # math.prod over plain ints: NumPy's product would overflow 64 bits silently
        return sum(prod(one.shape) * one.dtype.itemsize for one in self.scratch)

    def launch(self, launch: Callable[..., None], memory: Any, operands: Any) -> None:
        """Queue the kernels.

        Args:
            launch: as `engine.launch`.
            memory: `memory.empty(shape, dtype)` and `memory.zeros(shape, dtype)` give scratch; None for a plan that
                needs no scratch.
            operands: the problem that the plan was made for, with arrays. Its attributes are operands by name.
        """
        named = _named(operands, self.values)
        # allocated here and not with the plan: a plan that is only explained takes no memory
        for needed in self.scratch:
            named[needed.name] = (memory.zeros if needed.zeroed else memory.empty)(needed.shape, needed.dtype)
        for one in self.work:  # on one stream, so that a kernel sees what the one before it has written
            arguments = [
                reshaped(named[name.name], name.shape) if isinstance(name, View) else named[name]
                for name in one.arguments
            ]
            launch(one.kernel, one.grid, one.block, *arguments, **one.how)


class PersistentPlan(NamedTuple):
    """A plan that depends on how many clusters the GPU holds at a time: its kernel stays there and takes row after row.

    Attributes:
        first: the kernel, with a grid of any size.
        scratch, values: as in a `Plan`, to compile the kernel for; the sizes do not matter.
        plan: the function that returns the plan for a number of clusters (of blocks, without clusters).
    """

    first: Work
    scratch: tuple[Scratch, ...]
    values: tuple[tuple[str, Any], ...]
    plan: Callable[[int], Plan]

    def estimated(self, device: Device) -> Plan:
        """Return the plan for as many clusters as threads and shared memory allow, without the driver."""
        return self.plan(device.resident(self.first.threads, self.first.shared_bytes, self.first.cluster))

    def queried(self, operands: Any) -> Plan:
        """Return the plan for as many clusters as the driver says that the GPU holds of the compiled kernel."""
        first = self.first
        # the driver is asked about a compiled kernel, which depends on the dtypes and dimensions of the arguments only
        named = _named(operands, self.values)
        for one in self.scratch:  # nothing is launched: the address of another array stands for scratch
            like = operands.statistics
            named[one.name] = like._replace(shape=one.shape, dtype=one.dtype) if isinstance(like, DeviceArray) else None
        arguments = [named[name] for name in first.arguments]
        return self.plan(resident_clusters(first.kernel, first.block, *arguments, **first.how))


def _named(operands: Any, values: tuple[tuple[str, Any], ...]) -> dict[Any, Any]:
    """Return the arrays and numbers that kernels take, by name; scratch is not among them yet."""
    return {**vars(operands), **dict(values), None: None}
