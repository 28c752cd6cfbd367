"""Mean and variance of a row with one barrier: squares within groups, and squares between them.

Each warp of the row's team takes two passes over its own values: their sum s_w, and then the squares q_w of their
deviations from the warp's mean. No other warp is needed for that. What they leave for each other is enough for all:

    mean = sum of s_w / n        variance = (sum of q_w + n_w (s_w / n_w - mean)²) / n

Chan, Golub and LeVeque 1983: their merge of two groups, for all groups at once.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda
from normlab.stages.team import collector, member_walk, reader
from normlab.stages.vector import Deal
from normlab.stages.warp import lane_index


@cache
def group_size(deal: Deal, blocks: int) -> Any:
    """The device function `size(n2, member)`: how many of a row's n2 values warp number `member` of the team has."""
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    warps, columns = deal.warps, deal.columns

    @cuda.jit(device=True)
    def size(n2, member):
        if whole:
            return 32 * vectors * width
        first = member % warps * 32 * width
        if blocks > 1:
            first += member // warps * columns
        values = 0
        for v in range(vectors):
            values += min(max(n2 - (first + v * span), 0), 32 * width)
        return values

    return size


@cache
def group_merger(deal: Deal, blocks: int) -> Any:
    """The device function `merge(board, phase, row, n2, factor, mean) -> (mean, squares)`, the same in every lane.

    board: as in `team`, with the warps' s_w at which = 0 and q_w at which = 1. factor: 1 / n2, rounded. mean: None for
    RMSNorm: then the q_w are of deviations from 0, and so are the squares.
    """
    members = deal.warps * blocks
    collect, read = collector(deal.warps, blocks), reader(deal.warps, blocks)
    seats, turns, team_sum = member_walk(members)
    size = group_size(deal, blocks)

    @cuda.jit(device=True)
    def merge(board, phase, row, n2, factor, mean):
        if mean is None:
            return cast(0, board), collect(board, phase, row, 1)
        center = collect(board, phase, row, 0) * factor
        squares = cast(0, board)
        for k in range(turns):
            member = (lane_index() & (seats - 1)) + seats * k
            values = size(n2, member)
            if member < members and values > 0:
                deviation = read(board, phase, row, 0, member) / cast(values, board) - center
                squares += read(board, phase, row, 1, member) + cast(values, board) * (deviation * deviation)
        return center, team_sum(squares)

    return merge
