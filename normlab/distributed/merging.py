"""Moments of a rank's part of each set, as one message, and the merge of all ranks' messages.

A set is the values that share a mean: a row of a sharded norm, or a channel of a batch norm. The moments of a part are
(count, mean, m2), as in `normlab.stages.moments`; RMSNorm needs the sum of squares alone. All sets of a rank have the
same count, so a message holds it once, then the means, then the m2: 2 floats per set and one more.

Messages are merged in pairs of neighbours in the order of ranks, then the pairs' results in pairs, and so on: ⌈log₂ P⌉
levels for P ranks. The order depends on P alone, so all ranks hold the same bits. `normlab.kernels.ranks` does the same
on a GPU.
"""

import torch
from torch import Tensor

from normlab.host import sharded
from normlab.host.sharded import Statistics
from normlab.nn.launched import world


def message_of(values: Tensor, dims: tuple[int, ...], count: int, rms: bool = False) -> Tensor:
    """Return the message of a rank's values, in accumulator precision, whose sets go over `dims`, `count` values each.

    The second pass squares deviations from the mean: E[x²] - mean² would lose all digits of a spread that is small
    beside the mean. Its mean deviation, 0 without rounding, corrects the mean and m2.
    """
    held = values.new_full((1,), count)
    if rms:
        return torch.cat((held, values.square().sum(dims).flatten()))
    mean = values.sum(dims, keepdim=True) / max(1, count)
    deviation = values - mean
    shift = deviation.sum(dims, keepdim=True) / max(1, count)
    m2 = deviation.square().sum(dims, keepdim=True) - count * shift.square()
    return torch.cat((held, (mean + shift).flatten(), m2.flatten()))


def statistics(messages: Tensor, eps: float, rms: bool, by_kernels: bool, variance: bool = False) -> Statistics:
    """Return the statistics of whole sets. messages: (ranks, n), of all ranks; they are overwritten.

    by_kernels: by normlab's kernels. variance: the unbiased variance is wanted, too.
    """
    if by_kernels:
        with world(messages):
            return Statistics(*sharded.statistics_of(messages, eps, rms, variance))
    count, mean, m2 = merged(messages, rms)
    invvar = (m2 / count.clamp(min=1) + eps).rsqrt()
    return Statistics(count, mean, m2 / (count - 1).clamp(min=1) if variance else None, invvar)


def merged(messages: Tensor, rms: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the moments (count, mean, m2) of whole sets: (1,), (sets,) or None for RMSNorm, (sets,)."""
    count, moments = messages[:, :1], messages[:, 1:]
    if rms:
        return added(count)[0], None, added(moments)[0]
    sets = moments.shape[1] // 2
    mean, m2 = moments[:, :sets], moments[:, sets:]
    while len(count) > 1:
        left, right = zip(*(_neighbours(one) for one in (count, mean, m2)), strict=True)
        pairs = chan_merge(*left, *right)
        count, mean, m2 = (_with_odd_one(pair, one) for pair, one in zip(pairs, (count, mean, m2), strict=True))
    return count[0], mean[0], m2[0]


def means(messages: Tensor, count: Tensor, rms: bool, by_kernels: bool) -> Tensor:
    """Return the means of g and of g x̂, (2, sets), from all ranks' messages for the backward, which are overwritten.

    messages: (ranks, 2 sets): Σ g, then Σ g x̂; for RMSNorm (ranks, sets), the latter alone. count: (1,), of
    `statistics`.
    """
    if by_kernels:
        with world(messages):
            return sharded.means_of(messages, count, rms)[0]
    found = added(messages) / count.clamp(min=1)
    return torch.cat((torch.zeros_like(found), found)) if rms else found.view(2, -1)


def _neighbours(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the second part of each pair."""
    even = len(parts) // 2 * 2
    return parts[0:even:2], parts[1:even:2]


def _with_odd_one(pairs: Tensor, parts: Tensor) -> Tensor:
    """Return the merged pairs and, as it is, a last part that has no neighbour."""
    return torch.cat((pairs, parts[-1:])) if len(parts) % 2 else pairs


def chan_merge(
    count_a: Tensor, mean_a: Tensor, m2_a: Tensor, count_b: Tensor, mean_b: Tensor, m2_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge two parts of each set, as `normlab.stages.moments.chan_merge` does. Two empty parts give zeros."""
    count = count_a + count_b
    delta = mean_b - mean_a
    share_b = count_b / count.clamp(min=1)
    return count, mean_a + delta * share_b, m2_a + m2_b + delta * (delta * (count_a * share_b))


def added(parts: Tensor) -> Tensor:
    """Return the sum over ranks, (1, n), of parts (ranks, n), in the same order as `merged`."""
    while len(parts) > 1:
        first, second = _neighbours(parts)
        parts = _with_odd_one(first + second, parts)
    return parts
