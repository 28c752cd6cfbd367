"""Define the counters of a trace, for a source line or a launch, and compute Nsight Compute's metrics from them."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from normlab.sim.tracing.model import SECTOR


@dataclass(slots=True)
class Memory:
    """The requests of one kind: loads, say, of global memory."""

    requests: int = 0
    lanes: int = 0
    sectors: int = 0  # of global memory, and of shared memory in other blocks
    wavefronts: int = 0  # shared memory only
    fewest: int = 0  # wavefronts that the same lanes would take without conflicts

    def add(self, other: "Memory") -> None:
        """Add the counters of `other`."""
        # All counters are sums over requests, so those of lines or operations simply add up.
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(slots=True)
class Unique:
    """Bytes of global memory that were touched at least once."""

    ld: int = 0
    st: int = 0


class Counts:
    """Counters of a launch, or of one source line of it."""

    __slots__ = ("barriers", "cluster_syncs", "grid_syncs", "memory", "shuffles", "unique", "votes", "warp_syncs")

    def __init__(self) -> None:
        """Start all counters at 0."""
        self.memory: dict[tuple[str, str], Memory] = {}  # (space, operation)
        self.shuffles = self.votes = self.warp_syncs = self.barriers = self.cluster_syncs = self.grid_syncs = 0
        self.unique = Unique()

    def of(self, space: str, operation: str) -> Memory:
        """Return the counters of an operation ("ld", "st", "atom", "ldgsts") on a space.

        Spaces are "global", "shared" and, for shared memory of another block of the cluster, "dshared".
        """
        # Made when asked for: a line uses one or two of a dozen pairs, and metrics may ask for any.
        key = space, operation
        if key not in self.memory:
            self.memory[key] = Memory()
        return self.memory[key]

    def add(self, other: "Counts") -> None:
        """Add the counters of `other`, except unique bytes: two lines may touch the same byte."""
        for (space, operation), memory in other.memory.items():
            self.of(space, operation).add(memory)
        for name in ("shuffles", "votes", "warp_syncs", "barriers", "cluster_syncs", "grid_syncs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def loaded(self) -> Memory:
        """Return the counters of loads of global memory, asynchronous copies included."""
        # ldgsts has a counter of its own in Nsight, and is part of the loads' counter as well.
        memory = Memory()
        for operation in ("ld", "ldgsts"):
            memory.add(self.of("global", operation))
        return memory

    def metrics(self) -> dict[str, float]:
        """Return every metric by its name; a ratio over nothing is 0."""
        # All of them, also those that are 0: two traces then have the same names, in the same order.
        return {name: metric.value(self) for name, metric in METRICS.items()}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: the function that computes it from the counts, its short title, and its meaning."""

    value: Callable[[Counts], float]
    short: str  # the head of a table's column
    meaning: str


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0


def _of_global(operation: str, word: str, of: Callable[[Counts], Memory]) -> dict[str, Metric]:
    return {
        # The names are those that `ncu --metrics` takes on sm_90, so that a profile and a trace can be laid side by
        # side. `tests/hardware` compares the values on an H200.
        f"l1tex__t_requests_pipe_lsu_mem_global_op_{operation}.sum": Metric(
            lambda counts: of(counts).requests,
            f"{operation} requests",
            f"Global {word}: instructions, one for each warp with at least one active lane. Atomics are apart, and so "
            "is local memory. The compiler may merge, hoist or drop accesses of the source; this counts the source's.",
        ),
        f"l1tex__t_sectors_pipe_lsu_mem_global_op_{operation}.sum": Metric(
            lambda counts: of(counts).sectors,
            f"{operation} sectors",
            # At the level of requests, before L1: Nsight's counter, too, does not ask whether a sector is cached.
            f"Global {word}: 32-byte sectors that the requests touch, each once per request, cached or not. Arrays are "
            "taken to begin at a multiple of 32 bytes, as every allocation does.",
        ),
        f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{operation}.ratio": Metric(
            lambda counts: _ratio(of(counts).sectors, of(counts).requests),
            f"{operation} sectors/request",
            f"Sectors over requests of global {word}: 4 for a warp on 32 neighbouring float32, 32 at the worst.",
        ),
    }


def _of_shared(operation: str, word: str) -> dict[str, Metric]:
    return {
        f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{operation}.sum": Metric(
            lambda counts: counts.of("shared", operation).wavefronts,
            f"shared {operation} wavefronts",
            f"Shared {word}: passes through the 32 banks of 4 bytes, one per request unless lanes want different words "
            "of one bank, or more than 128 bytes together.",
        ),
        f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{operation}.sum": Metric(
            # Above the fewest and not above 1: a load of 16 bytes per lane takes four wavefronts without any conflict.
            lambda counts: counts.of("shared", operation).wavefronts - counts.of("shared", operation).fewest,
            f"shared {operation} conflicts",
            f"Shared {word}: wavefronts above the fewest that the lanes could take: one, two for 8 bytes per lane, "
            "four for 16 (half of that where lanes want the same in pairs).",
        ),
    }


def _of_copies() -> dict[str, Metric]:
    return {
        "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum": Metric(
            lambda counts: counts.of("global", "ldgsts").requests,
            "copy requests",
            "Asynchronous copies from global to shared memory (cp.async): instructions, one for each warp with at "
            "least one active lane. They are among the loads, too.",
        ),
        "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum": Metric(
            lambda counts: counts.of("global", "ldgsts").sectors,
            "copy sectors",
            "Asynchronous copies: 32-byte sectors of global memory that the requests read, each once per request.",
        ),
        "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum": Metric(
            lambda counts: counts.of("shared", "ldgsts").wavefronts,
            "shared copy wavefronts",
            "Asynchronous copies: passes through the 32 banks to write what has arrived, taken to be those of stores "
            "of the same size at the same addresses.",
        ),
    }


def _of_other_blocks(operation: str, word: str) -> dict[str, Metric]:
    return {
        f"l1tex__t_requests_pipe_lsu_mem_dshared_op_{operation}.sum": Metric(
            lambda counts: counts.of("dshared", operation).requests,
            f"remote {operation} requests",
            f"Distributed shared memory, {word} in the shared memory of a block of the cluster: instructions, one for "
            "each warp with at least one active lane. A load from the block's own is one of shared memory.",
        ),
        f"l1tex__t_sectors_pipe_lsu_mem_dshared_op_{operation}.sum": Metric(
            lambda counts: counts.of("dshared", operation).sectors,
            f"remote {operation} sectors",
            f"Distributed shared memory, {word}: 32-byte sectors that the requests touch, those of each block apart. "
            "What they cost the other block's banks is not modelled.",
        ),
    }


METRICS: dict[str, Metric] = {
    **_of_global("ld", "loads, asynchronous copies among them", Counts.loaded),
    **_of_global("st", "stores", lambda counts: counts.of("global", "st")),
    **_of_shared("ld", "loads"),
    **_of_shared("st", "stores"),
    **_of_copies(),
    **_of_other_blocks("ld", "loads"),
    **_of_other_blocks("st", "stores"),
    **{
        f"normlab__bytes_unique_mem_global_op_{operation}.sum": Metric(
            # As a default value: without it both functions would see the comprehension's last operation.
            lambda counts, operation=operation: getattr(counts.unique, operation),  # type: ignore[misc]
            f"{operation} unique bytes",
            f"Bytes of global memory with at least one {word}, under whatever name: the compulsory traffic, if caches "
            "were perfect. An asynchronous copy is a load; atomics are apart.",
        )
        for operation, word in (("ld", "load"), ("st", "store"))
    },
    **{
        # A copy to shared memory (ldgsts) moves its bytes as a load does, so the two are one sum.
        f"normlab__bytes_moved_mem_global_op_{kinds[0]}.sum": Metric(
            lambda counts, kinds=kinds: (
                SECTOR  # type: ignore[misc]
                * sum(counts.of("global", kind).sectors for kind in kinds)
            ),
            f"{kinds[0]} moved bytes",
            f"32 bytes for every sector of global {word} between the cores and L1; L1 and L2 are not modelled, so "
            "what reaches DRAM lies between the unique and the moved bytes.",
        )
        for kinds, word in ((("ld", "ldgsts"), "loads and asynchronous copies"), (("st",), "stores"))
    },
    "normlab__atomics_mem_global.sum": Metric(
        # Lanes and not requests: one lane's atomic and 32 lanes' on one address are a request each.
        lambda counts: counts.of("global", "atom").lanes,
        "global atomics",
        "Atomic operations on global memory, each lane's; the hardware may combine those of a warp.",
    ),
    "normlab__atomics_mem_shared.sum": Metric(
        lambda counts: counts.of("shared", "atom").lanes,
        "shared atomics",
        "Atomic operations on shared memory, each lane's; that lanes on one address take turns is not modelled.",
    ),
    "normlab__shuffles.sum": Metric(
        lambda counts: counts.shuffles, "shuffles", "Shuffle instructions, one for a warp (or part of it)."
    ),
    "normlab__votes.sum": Metric(
        lambda counts: counts.votes, "votes", "Vote and match instructions, one for a warp (or part of it)."
    ),
    "normlab__warp_syncs.sum": Metric(
        lambda counts: counts.warp_syncs, "warp syncs", "syncwarp, one for a warp (or part of it)."
    ),
    # The names that begin with normlab__ are this package's own: Nsight has no counter for them that counts the same.
    "normlab__barriers.sum": Metric(
        lambda counts: counts.barriers, "barriers", "Block barriers (syncthreads and its kin), one for a block."
    ),
    "normlab__cluster_syncs.sum": Metric(
        lambda counts: counts.cluster_syncs, "cluster syncs", "Barriers of a thread-block cluster, one for a cluster."
    ),
    "normlab__grid_syncs.sum": Metric(
        lambda counts: counts.grid_syncs, "grid syncs", "Grid syncs, one for the whole grid."
    ),
    "normlab__average_lanes_per_request.ratio": Metric(
        lambda counts: _ratio(
            # Over all spaces and operations: what is asked is how many lanes of a warp are active at all.
            sum(memory.lanes for memory in counts.memory.values()),
            sum(memory.requests for memory in counts.memory.values()),
        ),
        "lanes/request",
        "Active lanes in a memory request, atomics included, an asynchronous copy twice: 32 where no warp diverges and "
        "no block has a part of a warp.",
    ),
}


def number(value: float) -> str:
    """Return a counter with thousands separated, or a ratio with two digits."""
    # Counters are ints and ratios floats, so that 4 sectors and 4.00 sectors per request look different.
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def shown(name: str) -> str:
    """Return the short title of a metric."""
    return METRICS[name].short
