"""A block holds a square of A and one of B in shared memory.

Moves: from L2 8 KB for 32 k's of a block, 8 operations a byte (a tile of T x T: T / 4), and not each of them again and
again. From shared memory still two elements for every FMA.
Takes: 31 registers, 8 KB; 2 blocks of 1024 threads a multiprocessor, bound by threads.
Bound by: shared memory. The compiler loads four neighbours of A's row at once, so that 32 FMA, 8 clocks, take 40
wavefronts: a fifth of the peak. Of 103 instructions 32 are FMA. The rest of the time nobody multiplies: the next two
squares are fetched between two barriers.
Measured: 8.43 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.16 of cuBLAS in float32.
Next: let a thread compute many elements, and the block a larger tile.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import scaled_sum
from normlab.stages.tile import element_or_zero

SIDE = 32


@cuda.jit
def sgemm_shared_tile(alpha, a, b, beta, c, output):
    """Arguments as `Product`; SIDE x SIDE threads a block."""
    a_tile = cuda.shared.array((SIDE, SIDE), float32)
    b_tile = cuda.shared.array((SIDE, SIDE), float32)
    m, n = output.shape
    block_row, block_column = blocks_in_rows(cuda.blockIdx.x, (m + SIDE - 1) // SIDE, (n + SIDE - 1) // SIDE)
    y = cuda.threadIdx.y
    x = cuda.threadIdx.x
    row = block_row * SIDE + y
    column = block_column * SIDE + x
    total = float32(0)
    start = 0
    while start < a.shape[1]:
        store(a_tile, (y, x), element_or_zero(a, row, start + x))
        store(b_tile, (y, x), element_or_zero(b, start + y, column))
        cuda.syncthreads()  # both tiles are in shared memory before anybody reads them
        for k in range(SIDE):
            total += load(a_tile, (y, k)) * load(b_tile, (k, x))
        cuda.syncthreads()  # nobody reads the tiles any more: the next ones may come
        start += SIDE
    if row < m and column < n:
        store(output, (row, column), scaled_sum(total, alpha, beta, c, row, column))


TILE = (SIDE, SIDE, SIDE)


def plan(product: Product, device: Device) -> Plan:
    """Return the plan, which does every product."""
    return product_plan(
        "shared_tile",
        product,
        (lambda: sgemm_shared_tile, ()),
        TILE,
        (SIDE, SIDE),
        "squares of A and B in shared memory, whatever the sizes",
    )


STEP = ProductStep(
    name="shared_tile",
    summary="a block's squares of A and B in shared memory",
    ways=(plan,),
    tile=TILE,
    tile_seconds=0.04,
)
