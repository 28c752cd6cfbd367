"""Compute a tile of 8 x 8 elements of C per thread, all 64 elements for one k before the next k: outer products.

Idea: tiles and threads are those of step 3. For each k a thread loads 8 elements of A and 8 of B from shared memory
into registers, and multiplies each with each.
Moves: from shared memory 16 elements for 64 FMA, an eighth of step 3: 2 operations per byte (a tile of T x T: T / 4).
Takes: 166 registers, 8 KB; 1 block of 256 threads per multiprocessor, bound by registers.
Bound by: as the code is written, shared memory. A warp's 64 FMA per k take 16 clocks, its loads 48 wavefronts: a third
of the peak. 32 of the 48 are bank conflicts on B, which neighbouring threads read 8 columns apart. The compiler joins
four loads where it can, which leaves 20 wavefronts. Of the main loop's 679 instructions 512 are FMA: each load from
global memory has one element, with an address and two bounds checks of its own.
Measured: 20.5 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.40 of cuBLAS in float32. Step 3 has 20.7, and is ahead by 1 %
at every size. Compiled, both loops have the same instructions, but an FMA that reads all three operands from one of the
two register banks takes a clock more: here 35 of 512 do, in step 3 there are 9.
Next: move four elements with one instruction, everywhere.
"""

from normlab.engine import cuda, float32, load, store
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, ProductStep, product_plan
from normlab.stages.lanes import blocks_in_rows
from normlab.stages.thread_tile import outer_product, scaled_sum
from normlab.stages.tile import tile_loader
from normlab.stages.unroll import repeated

ROWS, COLUMNS, DEPTH = 128, 128, 8  # rows and columns of a block's tile of C, and how many k's are in shared memory
SIDE = 8  # rows, and columns, of a thread's tile of C
SUMS = SIDE**2
ACROSS = COLUMNS // SIDE  # threads side by side along a row of C
THREADS = ROWS // SIDE * ACROSS
load_a = tile_loader(ROWS, DEPTH, THREADS)
load_b = tile_loader(DEPTH, COLUMNS, THREADS)
add_products = outer_product(SIDE, SIDE)


@cuda.jit(device=True)
def multiply_k(k, sums, a_part, b_part, a_tile, b_tile, row, column):
    """Add one product to each of the thread's sums."""
    for i in range(SIDE):
        a_part[i] = load(a_tile, (row + i, k))
        b_part[i] = load(b_tile, (k, column + i))
    add_products(sums, a_part, b_part, 0)


multiply = repeated(multiply_k, DEPTH)


@cuda.jit(launch_bounds=(THREADS, 1))
def sgemm_outer_product(alpha, a, b, beta, c, output):
    """Compute output = alpha A B + beta C; arguments as `Product`. THREADS threads per block."""
    # Prologue: which elements of C this thread has.
    a_tile = cuda.shared.array((ROWS, DEPTH), float32)
    b_tile = cuda.shared.array((DEPTH, COLUMNS), float32)
    a_part = cuda.local.array(SIDE, float32)
    b_part = cuda.local.array(SIDE, float32)
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
        multiply(0, sums, a_part, b_part, a_tile, b_tile, row, column)
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
        "outer_product",
        product,
        (lambda: sgemm_outer_product, ()),
        TILE,
        THREADS,
        "8 x 8 elements of C per thread, whatever the sizes",
    )


STEP = ProductStep(
    name="outer_product",
    summary="8 x 8 elements per thread, by outer products",
    ways=(plan,),
)
