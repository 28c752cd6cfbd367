"""Provide stages: device functions with one idea each, of which `normlab.kernels` are composed.

A stage takes and returns values; the kernel passes in the memory that its threads share. A stage computes in the dtype
of its arguments: its constants are written `float32(1)`, which a float64 argument turns into float64, while a bare
`1.0` would turn float32 into float64.
"""

from normlab.stages.block import block_moments, block_sum, block_sums
from normlab.stages.moments import chan_merge, rms_merge, rms_step, welford_step
from normlab.stages.recompute import clamp_by_magnitude, normalised_from_input, normalised_from_output
from normlab.stages.row import row_mean_square, row_moments
from normlab.stages.strided import load_add_strided, load_write_strided
from normlab.stages.warp import (
    lane_index,
    warp_index,
    warp_moments,
    warp_moments_butterfly,
    warp_sum,
    warp_sum_butterfly,
)

# Not here: stages with loops whose lengths depend on the thread map of a row (`vector`, `shifted`, `row_group`,
# `grouped`, `ahead`) or on the tile of a matrix (`tile`, `line_tile`, `thread_tile`, `lanes`, `unroll`). Their
# functions take these lengths, which the compiler must know, and return device functions.
__all__ = [
    "block_moments",
    "block_sum",
    "block_sums",
    "chan_merge",
    "clamp_by_magnitude",
    "lane_index",
    "load_add_strided",
    "load_write_strided",
    "normalised_from_input",
    "normalised_from_output",
    "rms_merge",
    "rms_step",
    "row_mean_square",
    "row_moments",
    "warp_index",
    "warp_moments",
    "warp_moments_butterfly",
    "warp_sum",
    "warp_sum_butterfly",
    "welford_step",
]
