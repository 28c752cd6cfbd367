"""A thread per element of C, the threads of a warp below each other: the formula, and the wrong way round."""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.sgemm.product import Product, ProductStep
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import scaled_sum

SIDE = 32


@cuda.jit
def sgemm_coalesced(alpha, a, b, beta, c, output):
    """Arguments as `Product`; SIDE x SIDE threads a block."""
    m, n = output.shape
    block_row, block_column = blocks_in_rows(cuda.blockIdx.x, (m + SIDE - 1) // SIDE, (n + SIDE - 1) // SIDE)
    row = block_row * SIDE + cuda.threadIdx.y
    column = block_column * SIDE + cuda.threadIdx.x
    if row < m and column < n:
        total = float32(0)
        k = 0
        while k < a.shape[1]:
            total += load(a, (row, k)) * load(b, (k, column))
            k += 1
        store(output, (row, column), scaled_sum(total, alpha, beta, c, row, column))


def _run(launch, product: Product):
    launch(sgemm_coalesced, product.blocks(SIDE, SIDE), (SIDE, SIDE), *product.operands)


STEP = ProductStep(
    name="coalesced",
    summary="a thread per element, a warp along a row of C",
    run=_run,
    tile=(SIDE, SIDE, 1),
    tile_seconds=0.003,
)
