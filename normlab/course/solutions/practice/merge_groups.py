"""Merge eight groups. An exercise of tutorial 3, which has the task."""

from normlab.engine import cuda
from normlab.stages.moments import chan_merge


@cuda.jit
def merge_groups(groups, merged):
    """A thread per set: groups is (sets, 8, 3), merged (sets, 3); the last axis is mean, m2 and count."""
    # Your lines.
    i = cuda.grid(1)
    if i < groups.shape[0]:
        mean = groups[i, 0, 0]
        m2 = groups[i, 0, 1]
        count = groups[i, 0, 2]
        for k in range(1, 8):
            mean, m2, count = chan_merge(mean, m2, count, groups[i, k, 0], groups[i, k, 1], groups[i, k, 2])
        merged[i, 0] = mean
        merged[i, 1] = m2
        merged[i, 2] = count
