"""row_moments and row_mean_square: a block over one row."""

import ml_dtypes
import numpy as np
import pytest
from draws import WIDTHS, inputs

from normlab import oracle
from normlab.engine import accumulator, cuda, launch
from normlab.oracle.floats import extended
from normlab.oracle.moments import welford
from normlab.stages import row_mean_square, row_moments

BLOCKS = [(32, 1), (32, 4), (64, 1)]


def kernel_for(dtype):
    @cuda.jit
    def kernel(x, results):
        """results (3, threads): mean, variance and mean square of row 1, as every thread sees them."""
        buffer = cuda.shared.array((3, 32), dtype)
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        mean, variance = row_moments(x, 1, buffer)
        results[0, thread] = mean
        results[1, thread] = variance
        results[2, thread] = row_mean_square(x, 1, buffer)

    return kernel


KERNELS = {dtype: kernel_for(accumulator(np.empty(0, dtype))) for dtype in (np.float32, np.float64)}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("n2", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_row_statistics_are_within_their_bounds(dtype, n2, block):
    rng = np.random.default_rng(n2)
    threads = block[0] * block[1]
    kind = str(rng.choice(["normal", "offset", "outlier", "equal"]))
    x = inputs(kind, rng, 3, n2).astype(dtype)
    wide = np.float64 if dtype is np.float64 else np.float32
    results = np.full((3, threads), np.nan, wide)
    launch(KERNELS[wide], 1, block, x, results)
    assert (results == results[:, :1]).all(), "threads disagree"
    how = oracle.Arithmetic(
        accumulator=np.dtype(wide).name,
        row_terms=4 * -(-n2 // (4 * threads)),
        row_merges=4 + threads.bit_length() - 5,
        column_terms=1,
        column_merges=0,
    )
    row = extended(x[1:2])
    variance = row.var(axis=1, keepdims=True)
    mean_bound, variance_bound = welford(row, variance, how)
    oracle.assert_within(results[0, 0], row.mean(), mean_bound[0, 0], "mean")
    oracle.assert_within(results[1, 0], variance[0, 0], variance_bound[0, 0], "variance")
    square = (row * row).mean()
    limit = (how.row_sum + 3) * float(np.finfo(wide).eps) / 2 * 1.01 * square
    oracle.assert_within(results[2, 0], square, limit, "mean square")


@pytest.mark.parametrize("n2", WIDTHS)
def test_a_row_of_equal_values_has_exactly_0_variance(n2):
    results = np.full((3, 128), np.nan, np.float32)
    launch(KERNELS[np.float32], 1, (32, 4), np.full((2, n2), 0.1, np.float32), results)
    assert (results[0] == np.float32(0.1)).all()
    assert (results[1] == 0).all()
