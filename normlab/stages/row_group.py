"""Exchange the warps' partial sums of a row with one barrier, within a block or between the blocks of a cluster.

The row group is the set of warps that share a row. `block_sums` halves the warps round by round, with two barriers per
round. Here each warp writes its sum to its own block's exchange buffer. After a single barrier each warp reads all
sums, from the other blocks too, and adds them up with a butterfly over its lanes. All warps add in the same order and
so get the same bits.

The exchange buffer, `exchange`, is shared memory of shape (phases, rows, sums, warps per block); every block of the
cluster declares the same array. `phase`, `row` and `which` are indices into it. A slot may be written again after two
barriers, so a loop with one barrier per turn alternates between two phases. Row groups within a block have rows of
their own in the buffer and therefore a barrier of their own (`team_sync`).

No extra barrier is needed before the next row: each warp has added its values into its sum before it can reach the next
barrier.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_from_block
from normlab.stages.warp import ALL_LANES, lane_index


@cuda.jit(device=True)
def leave(exchange, phase, row, which, warp, value):
    """Write a warp's value to its block's exchange buffer, for all warps of the row group.

    warp: the calling warp's index among its row's warps in this block. value: the same in all lanes. A barrier of the
    row group must follow before a warp collects.
    """
    # To the block's own shared memory, and other blocks read it after the barrier. If the warps wrote their sums to the
    # other blocks, the barrier would have to wait for all earlier stores, also for the rows of output. As it is,
    # `cluster_arrive_shared` orders shared memory alone.
    if lane_index() == 0:  # all lanes hold the same value: one store is enough
        exchange[phase, row, which, warp] = value


@cache
def reader(warps: int, blocks: int) -> Any:
    """Return the device function `read(exchange, phase, row, which, member)`: the value that warp `member` has written.

    Warps are numbered through the blocks of the cluster: `member` is block * warps + warp.
    """

    @cuda.jit(device=True)
    def read(exchange, phase, row, which, member):
        if blocks > 1:  # distributed shared memory; a row group within one block reads its own
            return load_from_block(exchange, (phase, row, which, member % warps), member // warps)
        return exchange[phase, row, which, member]

    return read


@cache
def gatherer(warps: int, blocks: int) -> Any:
    """Return the device function `gather(gathered, exchange, phase, row, mean)`: copy all blocks' sums into this block.

    With `read` each warp loads every sum of the row group from the other blocks. With `gather` each thread loads at
    most one sum, and after a barrier of the block all warps find all sums in their own shared memory. A barrier of the
    row group must come before the next `gather`. Microseconds on an H200:

        rows x columns    warps per row  norm                 read   gather
        512 x 262,144     256            LayerNorm bfloat16   268    193
        512 x 262,144     256            LayerNorm float32    368    297
        512 x 262,144     256            RMSNorm bfloat16     156    140
        512 x 262,144     256            RMSNorm float32      305    287
        1 x 262,144       256            LayerNorm bfloat16   8.6    6.6
        2,048 x 65,536    64             RMSNorm bfloat16     138.5  142.6
        132 x 65,536      64             RMSNorm bfloat16     14.1   14.8

    With 64 warps per row the block's barrier costs more than the loads it saves.

    gathered: shared memory, (1, 1, 2, members): the exchange buffer of a row group within one block. mean: None for
    RMSNorm, which writes no sums at which = 0.
    """
    members = warps * blocks

    @cuda.jit(device=True)
    def gather(gathered, exchange, phase, row, mean):
        # 2 warps * blocks sums for 32 warps threads: one per thread, because a cluster has at most 16 blocks
        which = cuda.threadIdx.x // members
        member = cuda.threadIdx.x % members
        if mean is None:  # RMSNorm: the first `members` threads load the squares, the others have nothing to load
            which += 1
        if which < 2:
            gathered[0, 0, which, member] = load_from_block(
                exchange, (phase, row, which, member % warps), member // warps
            )
        cuda.syncthreads()  # all sums are in this block's shared memory before a warp reads them

    return gather


@cache
def collector(warps: int, blocks: int) -> tuple[int, Any, Any]:
    """Return (turns, fetch, add_up), with which a warp adds up the sums of all `warps * blocks` members.

    `fetch(partials, at, exchange, phase, row, which)` loads the sums of this lane's members into partials[at],
    partials[at + 1], …: `turns` values. Lane l takes the members l % lanes, l % lanes + lanes, …, where `lanes` is the
    smallest power of two that has a lane per member, at most 32.
    `add_up(partials, at)` returns the sum over all members, in every lane.

    A load from another block takes a microsecond, as long as a pass over a row. A kernel therefore does other work
    between `fetch` and `add_up`.

    warps: warps per row and block. partials: local memory for the partial sums, accumulator dtype.
    """
    members = warps * blocks
    # a lane per member, up to a warp: fewer lanes take fewer shuffles
    levels = min(5, (members - 1).bit_length())
    lanes = 1 << levels
    turns = -(-members // lanes)
    read = reader(warps, blocks)

    @cuda.jit(device=True)
    def fetch(partials, at, exchange, phase, row, which):
        lane = lane_index() & (lanes - 1)  # the other lanes of the warp repeat these loads, at the same addresses
        for k in range(turns):
            if lane + lanes * k < members:
                partials[at + k] = read(exchange, phase, row, which, lane + lanes * k)
            else:  # a lane without a member: adding 0 changes no bit of the sum
                partials[at + k] = cast(0, exchange)

    @cuda.jit(device=True)
    def add_up(partials, at):
        # this lane's members first, then over the lanes
        value = partials[at]
        for k in range(turns - 1):
            value += partials[at + 1 + k]
        for level in range(levels):  # the same order in every warp: the same bits
            value += cuda.shfl_xor_sync(ALL_LANES, value, 1 << level)
        return value

    return turns, fetch, add_up
