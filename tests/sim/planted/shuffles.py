"""Warp operations whose mask and lanes do not agree."""

from numba import cuda, float32  # noqa: F401  (the mended kernels use it)

from .collection import Planted, counters, floats, zeros

FULL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF


@cuda.jit
def mask_without_the_caller(x, out):
    lane = cuda.threadIdx.x
    out[lane] = cuda.shfl_xor_sync(LOWER_HALF, x[lane], 1)  # BUG shuffle-mask: shuffle  # FIX drops
    # FIX adds: out[lane] = cuda.shfl_xor_sync(FULL, x[lane], 1)


@cuda.jit
def vote_without_the_caller(x, out):
    lane = cuda.threadIdx.x
    out[lane] = cuda.ballot_sync(LOWER_HALF, x[lane] > 7)  # BUG shuffle-mask: vote  # FIX drops
    # FIX adds: out[lane] = cuda.ballot_sync(FULL, x[lane] > 7)


@cuda.jit
def shuffle_from_exited_lane(x, out):
    lane = cuda.threadIdx.x
    if lane >= x.shape[0]:  # FIX writes: value = float32(0)
        return  # FIX drops
    value = x[lane]  # FIX writes: if lane < x.shape[0]:
    # FIX adds:     value = x[lane]
    value += cuda.shfl_down_sync(FULL, value, 16)  # BUG shuffle-mask: shuffle
    out[lane] = value  # FIX writes: if lane < x.shape[0]:
    # FIX adds:     out[lane] = value


@cuda.jit
def shuffle_in_the_branch(x, out):
    lane = cuda.threadIdx.x
    value = x[lane]
    # FIX adds: other = cuda.shfl_xor_sync(FULL, value, 16)
    if lane < 16:
        value += cuda.shfl_xor_sync(FULL, value, 16)  # BUG shuffle-mask: shuffle  # FIX writes: value += other
    out[lane] = value


@cuda.jit
def source_outside_the_mask(x, out):
    lane = cuda.threadIdx.x
    if lane < 16:
        out[lane] = cuda.shfl_sync(LOWER_HALF, x[lane], lane + 16)  # BUG shuffle-mask: shuffle  # FIX drops
        # FIX adds: out[lane] = cuda.shfl_sync(LOWER_HALF, x[lane], 15 - lane)


def _warp() -> tuple:
    return floats(32), zeros(32)


PLANTED = [
    Planted("shuffle-mask", mask_without_the_caller, 1, 32, _warp,
        "Lanes 16 to 31 call with a mask that leaves them out, which is undefined.",
    ),
    Planted("shuffle-mask", vote_without_the_caller, 1, 32,
        lambda: (floats(32), counters(32)),
        "Lanes 16 to 31 vote with a mask that leaves them out, which is undefined.",
    ),
    Planted("shuffle-mask", shuffle_from_exited_lane, 1, 32,
        lambda: (floats(24), zeros(24)),
        "Lanes 8 to 15 add what the registers of returned lanes hold.",
    ),
    Planted("shuffle-mask", shuffle_in_the_branch, 1, 32, _warp,
        "Lanes 16 to 31 are in the mask and are read, but never come to the shuffle.",
    ),
    Planted("shuffle-mask", source_outside_the_mask, 1, 32, _warp,
        "The lanes that are read take no part: what comes back is undefined.",
    ),
]  # fmt: skip
