"""A thread per element of C, the threads of a warp beside each other.

Moves: for each k a warp reads one element of A that all share, and 128 bytes of B in 4 sectors: 5 sectors where there
were 33, and two lines where there were 33. The results are stored in 4 sectors instead of 32.
Takes: what step 0 takes.
Bound by: two loads for every FMA. 2 wavefronts where the multipliers want a quarter of a clock, and 33 instructions for
4 FMA: an eighth of the peak, both ways. Two thirds of the time go to what this leaves out: loads on their way, which
every fourth FMA waits for.
Measured: 2.76 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.05 of cuBLAS in float32.
Next: read an element from global memory once for 32 results.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
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
    tile=TILE,
    tile_seconds=0.003,
)
