"""Mean and variance of a row with one barrier: squares within groups, and squares between them.

Each warp of the row's team takes two passes over its own values: their sum s_w, and then the squares q_w of their
deviations from the warp's mean. No other warp is needed for that. What they leave for each other is enough for all:

    mean = sum of s_w / n        variance = (sum of q_w + n_w (s_w / n_w - mean)²) / n

Chan, Golub and LeVeque 1983: their merge of two groups, for all groups at once.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda
from normlab.stages.team import collector, gatherer
from normlab.stages.vector import Deal
from normlab.stages.warp import lane_index

FEW = 64  # warps, at most, each of which fetches all the others' sums itself: see `team.gatherer`


@cache
def group_size(deal: Deal, blocks: int) -> Any:
    """The device function `size(n2, member)`: how many of a row's n2 values warp number `member` of the team has.

    A team that is some of a warp's lanes is number 0.
    """
    vectors, span, whole = deal.vectors, deal.span, deal.whole
    warps, columns, stretch = deal.warps, deal.columns, deal.lanes * deal.width

    @cuda.jit(device=True)
    def size(n2, member):
        if whole:
            return vectors * stretch
        first = member % warps * stretch
        if blocks > 1:
            first += member // warps * columns
        left = max(n2 - first, 0)
        turns = min(left // span, vectors)  # each merging thread asks for several members: no loop over the vectors
        return min(turns * stretch + min(left - turns * span, stretch), vectors * stretch)

    return size


@cache
def group_merger(deal: Deal, blocks: int, spread: int = 1) -> Any:
    """The device function `merge(board, phase, row, n2, factor, mean) -> (mean, squares)`, the same in every lane.

    spread: so many smaller blocks have the warps of one, in turn, each on a board of its own. The same bits.
    A team of more than FEW warps gathers what the other blocks have left: all of a block's threads call it together.
    board: as in `team`, with the warps' s_w at which = 0 and q_w at which = 1. factor: 1 / n2, rounded. mean: None for
    RMSNorm: then the q_w are of deviations from 0, and so are the squares.
    """
    members = deal.warps * blocks
    team = deal.warps // spread, blocks * spread
    many = members > FEW
    turns, fetch, add_up = collector(*((members, 1) if many else team))
    seats = min(32, 1 << (members - 1).bit_length())
    size = group_size(deal, blocks)

    @cuda.jit(device=True)
    def merge(board, phase, row, n2, factor, mean):
        sums = cuda.local.array(turns, board.dtype)
        squares = cuda.local.array(turns, board.dtype)
        fetch(squares, 0, board, phase, row, 1)
        if mean is None:
            return cast(0, board), add_up(squares, 0)
        fetch(sums, 0, board, phase, row, 0)
        center = add_up(sums, 0) * factor
        for k in range(turns):
            member = (lane_index() & (seats - 1)) + seats * k
            values = size(n2, member)
            if member < members and values > 0:
                deviation = sums[k] / cast(values, board) - center
                squares[k] += cast(values, board) * (deviation * deviation)
        return center, add_up(squares, 0)

    if not many:
        return merge
    gather = gatherer(*team)

    @cuda.jit(device=True)
    def merge_gathered(board, phase, row, n2, factor, mean):
        gathered = cuda.shared.array((1, 1, 2, members), board.dtype)
        gather(gathered, board, phase, row, mean)
        return merge(gathered, 0, 0, n2, factor, mean)

    return merge_gathered
