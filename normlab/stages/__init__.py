"""Stages: device functions with one idea each. Kernels (`normlab.kernels`) are composed of them.

A stage takes and returns values; memory that threads share is handed in. Its dtypes are those of its arguments:
constants are written `float32(1)`, which float32 and float64 arguments both absorb, while a bare `1.0` would turn
float32 into float64.

Stages whose loops depend on how a row is dealt out (`vector`, `team`, `grouped`, `ahead`), or a tile of a matrix
(`tile`, `thread_tile`, `lanes`, `unroll`), are built for it: their functions return device functions.
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
