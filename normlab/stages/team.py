"""The team of a row: the warps that share it, in one block or in all blocks of a cluster, and their sums.

`block_sums` halves the warps round by round, with two barriers each. Here every warp leaves its sum in its own block's
shared memory, and after a single barrier each warp fetches all of them, from the other blocks too, and adds them up by
itself: they are few, and a butterfly over lanes does it. All warps add in the same order and so get the same bits.

The `board` where sums are left is shared memory, (phases, rows, sums, warps of a block): the same array in every block
of the team; `phase`, `row` and `which` say where on it. A place may be written again after two barriers, so a loop with
one barrier a turn needs two phases in turn. A team within a block needs no barrier of the whole block: each has rows of
its own on the board, so `team_sync` does.

Sums sent to the other blocks would be at hand behind the barrier, but the barrier would have to wait for all stores
before it, the rows of output among them. For stores to the block's own shared memory it need not
(`cluster_arrive_shared`). That warps have read a place before they come to the next barrier needs no word: they have
added up what they read.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_from_block
from normlab.stages.warp import ALL_LANES, lane_index


@cuda.jit(device=True)
def leave(board, phase, row, which, warp, value):
    """A warp's value for the whole team.

    warp: the caller's, among those of its row in this block. value: the same in all lanes. A barrier of the team must
    follow before anybody collects.
    """
    if lane_index() == 0:
        board[phase, row, which, warp] = value


@cache
def reader(warps: int, blocks: int) -> Any:
    """The device function `read(board, phase, row, which, member)`: what warp number `member` of the team has left."""

    @cuda.jit(device=True)
    def read(board, phase, row, which, member):
        if blocks > 1:
            return load_from_block(board, (phase, row, which, member % warps), member // warps)
        return board[phase, row, which, member]

    return read


@cache
def gatherer(warps: int, blocks: int) -> Any:
    """The device function `gather(gathered, board, phase, row, mean)`: what all blocks have left, in the own block.

    All warps want to know all that was left, and with `read` each of them asks the other blocks for every word. Here a
    block's threads ask for one each, two a warp of the team at most (a cluster has no more than 16 blocks), and behind
    a barrier of the block all find all. Before the next gathering there must be a barrier of the team. Measured on an
    H200, microseconds, without and with: 512 rows of 262,144, 256 warps a team, LayerNorm bfloat16 268 and 193, float32
    368 and 297, RMSNorm 156 and 140, 305 and 287; one such row 8.6 and 6.6, 10.1 and 8.1, 7.2 and 6.3, 8.2 and 7.0. The
    barrier costs more than it saves where the team is small: 2,048 rows of 65,536, 64 warps, RMSNorm bfloat16 138.5 and
    142.6, 132 of them 14.1 and 14.8.

    gathered: shared memory, (1, 1, 2, members), as if it were the board of a team in one block. mean: None for RMSNorm,
    whose sums at which = 0 nobody has left.
    """
    members = warps * blocks

    @cuda.jit(device=True)
    def gather(gathered, board, phase, row, mean):
        which = cuda.threadIdx.x // members
        member = cuda.threadIdx.x % members
        if mean is None:
            which += 1
        if which < 2:
            gathered[0, 0, which, member] = load_from_block(board, (phase, row, which, member % warps), member // warps)
        cuda.syncthreads()

    return gather


@cache
def collector(warps: int, blocks: int) -> tuple[int, Any, Any]:
    """How a warp collects what all members have left: (turns, fetch, add_up), the latter two device functions.

    `fetch(parts, at, board, phase, row, which)` puts what a lane's members have left into parts[at], parts[at + 1], …,
    `turns` of them, zeros where there is no member: lane l sits at seat l % seats and takes the members seat,
    seat + seats, …. From another block that takes a microsecond, as long as a pass over a row, so there is something to
    be done before `add_up(parts, at)`: their sum, in every lane, by a butterfly over the seats.

    warps: of the row in each of the team's blocks. parts: local, accumulator dtype.
    """
    members = warps * blocks
    levels = min(5, (members - 1).bit_length())
    seats = 1 << levels
    turns = -(-members // seats)
    read = reader(warps, blocks)

    @cuda.jit(device=True)
    def fetch(parts, at, board, phase, row, which):
        seat = lane_index() & (seats - 1)
        for k in range(turns):
            if seat + seats * k < members:
                parts[at + k] = read(board, phase, row, which, seat + seats * k)
            else:
                parts[at + k] = cast(0, board)

    @cuda.jit(device=True)
    def add_up(parts, at):
        value = parts[at]
        for k in range(turns - 1):
            value += parts[at + 1 + k]
        for level in range(levels):
            value += cuda.shfl_xor_sync(ALL_LANES, value, 1 << level)
        return value

    return turns, fetch, add_up
