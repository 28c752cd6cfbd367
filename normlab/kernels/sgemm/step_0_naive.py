"""Compute an element of C per thread, with the threads of a warp below each other in a column of C.

Idea: the formula as it stands. A thread walks along its row of A and down its column of B. The lanes of a warp have 32
different rows of A, which is the wrong way round for memory.
Moves: for each k a warp reads one element in each of 32 rows of A, which are 32 sectors of 32 bytes, and one element of
B that all share: 1056 bytes for 64 operations.
Takes: 32 registers; 2 blocks of 1024 threads per multiprocessor, which are all the warps that it can hold.
Bound by: L1. A warp's two loads look up 33 lines, while its FMA takes a quarter of a clock: under a hundredth of the
peak.
Measured: 0.499 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.01 of cuBLAS in float32.
Next: let the threads of a warp stand side by side.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import scaled_sum

SIDE = 32  # squared, the most threads that a block may have


@cuda.jit
def sgemm_naive(alpha, a, b, beta, c, output):
    """Compute output = alpha A B + beta C; arguments as `Product`. SIDE x SIDE threads per block."""
    m, n = output.shape
    block_row, block_column = blocks_in_rows(cuda.blockIdx.x, (m + SIDE - 1) // SIDE, (n + SIDE - 1) // SIDE)
    # x, which differs between the lanes of a warp, counts rows: each lane reads another line of A
    row = block_row * SIDE + cuda.threadIdx.x
    column = block_column * SIDE + cuda.threadIdx.y
    if row < m and column < n:  # no barrier follows, so the spare threads of the last tiles may simply do nothing
        total = float32(0)
        k = 0
        while k < a.shape[1]:
            # two loads for one FMA, and every FMA waits for the one before it
            total += load(a, (row, k)) * load(b, (k, column))
            k += 1
        store(output, (row, column), scaled_sum(total, alpha, beta, c, row, column))


TILE = (SIDE, SIDE, 1)


def plan(product: Product, device: Device) -> Plan:
    """Return the plan, which does every product."""
    return product_plan(
        "naive", product, (lambda: sgemm_naive, ()), TILE, (SIDE, SIDE), "a thread per element of C, whatever the sizes"
    )


STEP = ProductStep(
    name="naive",
    summary="a thread per element, a warp down a column of C",
    ways=(plan,),
)
