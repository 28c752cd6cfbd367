"""Compute an element of C per thread, from a square of A and a square of B that the block holds in shared memory.

Idea: the 32 x 32 threads of a block need the same 32 rows of A and 32 columns of B. The block copies them to shared
memory, 32 k's at a time, and each thread reads its row and its column there.
Moves: from L2 8 KB for 32 k's of a block, 8 operations per byte (a tile of T x T: T / 4). From shared memory still two
elements for every FMA.
Takes: 31 registers, 8 KB; 2 blocks of 1024 threads per multiprocessor, bound by threads.
Bound by: shared memory. The compiler loads four neighbours of A's row at once, so that 32 FMA, 8 clocks, take 40
wavefronts: a fifth of the peak. Of 103 instructions 32 are FMA. No warp multiplies while the block fetches the next two
squares between two barriers.
Measured: 8.43 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.16 of cuBLAS in float32.
Next: let a thread compute many elements, and the block a larger tile.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import scaled_sum
from normlab.stages.tile import element_or_zero

SIDE = 32  # squared, the most threads that a block may have


@cuda.jit
def sgemm_shared_tile(alpha, a, b, beta, c, output):
    """Compute output = alpha A B + beta C; arguments as `Product`. SIDE x SIDE threads per block."""
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
        # each thread copies one element of each square; past the edges zeros, which add nothing to a sum
        store(a_tile, (y, x), element_or_zero(a, row, start + x))
        store(b_tile, (y, x), element_or_zero(b, start + y, column))
        cuda.syncthreads()  # both tiles are in shared memory before a thread reads them
        # lanes share y: they read one element of A, and 32 neighbours of B, so neither load has a bank conflict
        for k in range(SIDE):
            total += load(a_tile, (y, k)) * load(b_tile, (k, x))
        cuda.syncthreads()  # all threads have read the tiles before the next ones overwrite them
        start += SIDE
    if row < m and column < n:  # only now: every thread had to reach the barriers
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
)
