"""Compute a tile of 8 x 8 elements of C per thread, one inner product after another.

Idea: a block of 256 threads computes 128 x 128 elements of C. It copies 8 k's of its rows of A and columns of B to
shared memory at a time. For these 8 k's a thread finishes one element before it goes on to the next.
Moves: 32 operations per byte from L2, four times as many as in step 2. From shared memory, as the code is written,
still two elements per FMA.
Takes: 168 registers, of which 64 are sums, and 8 KB; 1 block of 256 threads per multiprocessor, bound by registers.
Bound by: as the code is written, shared memory: 6 wavefronts per FMA of a warp, because threads that are 8 columns
apart have bank conflicts. But the compiler sees that neighbouring sums read the same elements, and keeps these in
registers: compiled, this is step 4.
Measured: 20.7 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.40 of cuBLAS in float32.
Next: write what the compiler makes of it.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import scaled_sum
from normlab.stages.tile import tile_loader
from normlab.stages.unroll import repeated

ROWS, COLUMNS, DEPTH = 128, 128, 8  # rows and columns of a block's tile of C, and how many k's are in shared memory
SIDE = 8  # rows, and columns, of a thread's tile of C
SUMS = SIDE**2
ACROSS = COLUMNS // SIDE  # threads side by side along a row of C
THREADS = ROWS // SIDE * ACROSS
load_a = tile_loader(ROWS, DEPTH, THREADS)
load_b = tile_loader(DEPTH, COLUMNS, THREADS)


@cuda.jit(device=True)
def multiply_row(i, sums, a_tile, b_tile, row, column):
    """Add DEPTH products to each sum in row i of the thread's tile, one sum after another."""
    for j in range(SIDE):
        for k in range(DEPTH):
            sums[i * SIDE + j] += load(a_tile, (row + i, k)) * load(b_tile, (k, column + j))


multiply = repeated(multiply_row, SIDE)


@cuda.jit(launch_bounds=(THREADS, 1))
def sgemm_inner_product(alpha, a, b, beta, c, output):
    """Compute output = alpha A B + beta C; arguments as `Product`. THREADS threads per block."""
    # Prologue: which elements of C this thread has.
    a_tile = cuda.shared.array((ROWS, DEPTH), float32)
    b_tile = cuda.shared.array((DEPTH, COLUMNS), float32)
    sums = cuda.local.array(SUMS, float32)
    for i in range(SUMS):
        sums[i] = float32(0)
    m, n = output.shape
    block_row, block_column = blocks_in_rows(cuda.blockIdx.x, (m + ROWS - 1) // ROWS, (n + COLUMNS - 1) // COLUMNS)
    thread = cuda.threadIdx.x
    row = thread // ACROSS * SIDE  # of the thread's first element in the block's tile
    column = thread % ACROSS * SIDE
    top = block_row * ROWS
    left = block_column * COLUMNS

    # Main loop: all threads copy DEPTH k's of both tiles, then each thread multiplies its rows and columns of them.
    start = 0
    while start < a.shape[1]:
        load_a(a_tile, a, top, start, thread)
        load_b(b_tile, b, start, left, thread)
        cuda.syncthreads()  # both tiles are in shared memory before a thread reads them
        multiply(0, sums, a_tile, b_tile, row, column)
        cuda.syncthreads()  # all threads have read the tiles before the next ones overwrite them
        start += DEPTH

    # Epilogue.
    for i in range(SIDE):
        for j in range(SIDE):
            r = top + row + i
            s = left + column + j
            if r < m and s < n:
                store(output, (r, s), scaled_sum(sums[i * SIDE + j], alpha, beta, c, r, s))


TILE = (ROWS, COLUMNS, DEPTH)


def plan(product: Product, device: Device) -> Plan:
    """Return the plan, which does every product."""
    return product_plan(
        "inner_product",
        product,
        (lambda: sgemm_inner_product, ()),
        TILE,
        THREADS,
        "8 x 8 elements of C per thread, whatever the sizes",
    )


STEP = ProductStep(
    name="inner_product",
    summary="8 x 8 elements per thread, each an inner product",
    ways=(plan,),
)
