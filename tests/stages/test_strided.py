"""The padded tiles: what is written where, what is added, and that the banks are free."""

import numpy as np
import pytest

from normlab.engine import cuda, launch
from normlab.stages import load_add_strided, load_write_strided
from normlab.stages.strided import COLUMNS, ROWS, TILE_STRIDE, WARPS, tile_column, tile_row


@cuda.jit
def tiles(first_row, second_row, row_end, grad_output, x, mean, invvar, results):
    """results (blocks, 2, ROWS, COLUMNS): the tiles after one written and one added."""
    tile_bias = cuda.shared.array((ROWS, TILE_STRIDE), np.float32)
    tile_weight = cuda.shared.array((ROWS, TILE_STRIDE), np.float32)
    eps = mean[0]
    load_write_strided(first_row, row_end, grad_output, x, mean, invvar, None, None, eps, False, tile_bias, tile_weight)
    load_add_strided(second_row, row_end, grad_output, x, mean, invvar, None, None, eps, False, tile_bias, tile_weight)
    cuda.syncthreads()
    for k in range(WARPS):
        row = cuda.threadIdx.y + WARPS * k
        results[cuda.blockIdx.x, 0, row, cuda.threadIdx.x] = tile_bias[row, cuda.threadIdx.x]
        results[cuda.blockIdx.x, 1, row, cuda.threadIdx.x] = tile_weight[row, cuda.threadIdx.x]


@pytest.mark.parametrize(("n1", "n2", "row_end"), [(32, 64, 32), (32, 64, 20), (21, 33, 21), (7, 5, 7), (1, 1, 1)])
def test_tiles_hold_the_terms_of_their_elements_and_zeros_elsewhere(n1, n2, row_end):
    rng = np.random.default_rng(n1 + n2)
    grad_output, x = rng.normal(size=(2, n1, n2)).astype(np.float32)
    mean, invvar = rng.normal(size=(2, n1)).astype(np.float32)
    blocks = -(-n2 // COLUMNS)
    results = np.full((blocks, 2, ROWS, COLUMNS), np.nan, np.float32)
    launch(tiles, blocks, (32, WARPS), 0, ROWS, row_end, grad_output, x, mean, invvar, results)

    want = np.zeros((2, 2 * ROWS, blocks * COLUMNS))
    want[0, :row_end, :n2] = grad_output[:row_end]
    want[1, :row_end, :n2] = grad_output[:row_end] * (x - mean[:, None])[:row_end] * invvar[:row_end, None]
    want = want[:, :ROWS] + want[:, ROWS:]  # the second tile lies on the first
    want = want.reshape(2, ROWS, blocks, COLUMNS).transpose(2, 0, 1, 3)
    np.testing.assert_allclose(results, want, rtol=1e-5, atol=1e-6)


@cuda.jit
def owners(rows, columns):
    thread = cuda.threadIdx.y * 32 + cuda.threadIdx.x
    rows[thread] = tile_row()
    columns[thread] = tile_column()


def test_each_tile_element_has_one_owner_and_a_warp_writes_to_32_banks():
    rows, columns = np.full(128, -1), np.full(128, -1)
    launch(owners, 1, (32, WARPS), rows, columns)
    elements = {(row, column + k) for row, column in zip(rows, columns, strict=True) for k in range(WARPS)}
    assert elements == {(row, column) for row in range(ROWS) for column in range(COLUMNS)}
    for warp in range(WARPS):
        lanes = slice(32 * warp, 32 * warp + 32)
        banks = (rows[lanes] * TILE_STRIDE + columns[lanes]) % 32
        assert len(set(banks.tolist())) == 32
        unpadded = (rows[lanes] * COLUMNS + columns[lanes]) % 32
        assert len(set(unpadded.tolist())) == 8, "without the padding four lanes would share a bank"
