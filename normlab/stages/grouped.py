"""Compute a row's mean and variance with one barrier: each warp's squares first, then the squares between warps.

Each warp of the row makes two passes over its own n_w values, without the other warps: their sum s_w, then the sum q_w
of their squared deviations from the warp's mean. The warps exchange s_w and q_w. Each warp then computes

    mean = (sum of s_w) / n        variance = (sum of q_w + n_w (s_w / n_w - mean)²) / n

This is the merge of two groups by Chan, Golub and LeVeque (1983), for all groups at once.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, int32, uint32
from normlab.stages.row_group import collector, gatherer
from normlab.stages.vector import ThreadMap
from normlab.stages.warp import lane_index

FEW = 64  # warps per row up to which each warp reads all sums itself; above it the block gathers: `row_group.gatherer`


@cache
def group_size(thread_map: ThreadMap, blocks: int, shifted: bool = False) -> Any:
    """Return the device function `size(n2, member)`: the number of a row's n2 values that warp `member` holds.

    A row that has only some lanes of a warp has one member, number 0.

    shifted: rows begin within the first thread's first vector; in place of n2 stands (columns before the row, n2).
    """
    vectors, span, whole = thread_map.vectors, thread_map.span, thread_map.whole
    warps, columns, stretch = thread_map.warps, thread_map.columns, thread_map.lanes * thread_map.width

    @cuda.jit(device=True)
    def size(n2, member):
        if whole:  # a constant: every warp holds as many values
            return vectors * stretch
        first = member * stretch
        if blocks > 1:  # each block has a slice of the row, each warp a part of every span of it
            block = int32(uint32(member) // uint32(warps))
            first = block * columns + (member - block * warps) * stretch
        # Each merging lane asks for several members, so the number of full vectors is a division, not a loop. All is of
        # 32 bits: 64 would take as many instructions as a vector's whole arithmetic.
        left = max(int32(n2 - first), int32(0))  # 0: the row ends before this warp's first column
        turns = min(int32(uint32(left) // uint32(span)), int32(vectors))
        last = min(int32(left - turns * span), int32(stretch))
        return min(int32(turns * stretch + last), int32(vectors * stretch))

    @cuda.jit(device=True)
    def shifted_size(extent, member):
        before, n2 = extent
        values = size(before + n2, member)
        return int32(values - before) if member == 0 else values

    return shifted_size if shifted else size


@cache
def group_merger(thread_map: ThreadMap, blocks: int, spread: int = 1, shifted: bool = False) -> Any:
    """Return the device function `merge(exchange, phase, row, n2, factor, mean) -> (mean, squares)`, for every lane.

    Above FEW warps per row the block gathers the other blocks' sums; all threads of the block then call `merge`
    together.

    spread: the number of smaller blocks that one block's warps are distributed over, each with its own exchange buffer.
    The result's bits do not depend on it. n2, shifted: as of `group_size`.
    exchange: the exchange buffer, as in `row_group`, with s_w at which = 0 and q_w at which = 1. factor: 1 / n2,
    rounded. mean: None for RMSNorm, where q_w and the result are squares of the values, not of deviations.
    """
    members = thread_map.warps * blocks
    warps_and_blocks = thread_map.warps // spread, blocks * spread
    many = members > FEW
    # after gathering, all members' sums lie in this block, as if the row had one block with all warps
    turns, fetch, add_up = collector(*((members, 1) if many else warps_and_blocks))
    lanes = min(32, 1 << (members - 1).bit_length())
    size = group_size(thread_map, blocks, shifted)

    @cuda.jit(device=True)
    def merge(exchange, phase, row, n2, factor, mean):
        sums = cuda.local.array(turns, exchange.dtype)
        squares = cuda.local.array(turns, exchange.dtype)
        fetch(squares, 0, exchange, phase, row, 1)
        if mean is None:
            return cast(0, exchange), add_up(squares, 0)
        # Both loads are in flight before the first one is added up.
        fetch(sums, 0, exchange, phase, row, 0)
        center = add_up(sums, 0) * factor
        # Squares between the groups: each lane corrects its own members, then all lanes add up.
        for k in range(turns):
            member = (lane_index() & (lanes - 1)) + lanes * k
            values = size(n2, member)
            if member < members and values > 0:  # a warp past the row's end would divide 0 by 0
                deviation = sums[k] / cast(values, exchange) - center
                squares[k] += cast(values, exchange) * (deviation * deviation)
        return center, add_up(squares, 0)

    if not many:
        return merge
    gather = gatherer(*warps_and_blocks)

    @cuda.jit(device=True)
    def merge_gathered(exchange, phase, row, n2, factor, mean):
        gathered = cuda.shared.array((1, 1, 2, members), exchange.dtype)
        gather(gathered, exchange, phase, row, mean)
        return merge(gathered, 0, 0, n2, factor, mean)

    return merge_gathered
