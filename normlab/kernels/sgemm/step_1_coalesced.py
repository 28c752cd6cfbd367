"""Compute an element of C per thread, with the threads of a warp side by side in a row of C.

Idea: a thread walks along its row of A and down its column of B. The lanes of a warp have the same row of A and 32
neighbouring columns of B.
Moves: per k a warp reads one element of A, the same for all lanes, and 128 bytes of B: 5 sectors where step 0 reads 33,
and 2 cache lines where step 0 reads 33. The results are stored in 4 sectors instead of 32.
Takes: what step 0 takes.
Bound by: two loads for every FMA. The two loads of a warp take 2 wavefronts, its FMA a quarter of a clock: an eighth of
the peak. The main loop has 33 instructions for 4 FMA: an eighth, too. Two thirds of the measured time are waiting,
which this count leaves out: every fourth FMA waits for loads.
Measured: 2.76 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.05 of cuBLAS in float32.
Next: read an element from global memory once for 32 results.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import scaled_sum

SIDE = 32  # squared, the most threads that a block may have


@cuda.jit
def sgemm_coalesced(alpha, a, b, beta, c, output):
    """Compute output = alpha A B + beta C; arguments as `Product`. SIDE x SIDE threads per block."""
    m, n = output.shape
    block_row, block_column = blocks_in_rows(cuda.blockIdx.x, (m + SIDE - 1) // SIDE, (n + SIDE - 1) // SIDE)
    # x now counts columns, which is all that has changed: lanes read side by side from B, and one element of A
    row = block_row * SIDE + cuda.threadIdx.y
    column = block_column * SIDE + cuda.threadIdx.x
    if row < m and column < n:
        total = float32(0)
        k = 0
        while k < a.shape[1]:
            # A fused multiply-add, k = 0 first, as in every step: so all steps of the ladder give the same bits.
            total += load(a, (row, k)) * load(b, (k, column))
            k += 1
        store(output, (row, column), scaled_sum(total, alpha, beta, c, row, column))


TILE = (SIDE, SIDE, 1)


def plan(product: Product, device: Device) -> Plan:
    """Return the plan, which does every product."""
    return product_plan(
        "coalesced",
        product,
        (lambda: sgemm_coalesced, ()),
        TILE,
        (SIDE, SIDE),
        "a thread per element of C, whatever the sizes",
    )


STEP = ProductStep(
    name="coalesced",
    summary="a thread per element, a warp along a row of C",
    ways=(plan,),
)
