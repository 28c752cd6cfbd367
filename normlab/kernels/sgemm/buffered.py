"""Build the kernel of the tiled steps with two buffers, for a `Tiling` and an order of the blocks."""

from functools import cache
from typing import Any

from normlab.engine import cuda, float32
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, Widths, product_plan
from normlab.kernels.sgemm.tiling import COLUMNS, DEPTH, ROWS, SIDE, STAGED, SUMS, THREADS, TILE, Tiling, movers
from normlab.stages.thread_tile import outer_product, part_loader, share_storer
from normlab.stages.unroll import repeated

PART = 2 * SIDE  # elements of A, and of B, in registers: this k's and the next k's


@cache
def build(tiling: Tiling, widths: Widths, block_place: Any) -> Any:
    """Return the kernel; arguments and threads as in `tiling.build`.

    block_place: the device function (block, down, across) -> (row, column).
    """
    a_row, rows, columns, place = tiling
    a_elements, b_elements = 2 * DEPTH * a_row, 2 * DEPTH * COLUMNS
    fetch_a, put_a, fetch_b, put_b = movers(tiling, widths)
    load_a, load_b = part_loader(rows), part_loader(columns)
    add_products = outer_product(SIDE, SIDE)
    store_share = share_storer(rows, columns, widths.c)

    @cuda.jit(device=True)
    def multiply_k(k, sums, a_part, b_part, a_tile, b_tile, a_first, b_first):
        following = (k + 1) % 2  # which half of the parts the next k goes to, while this one is multiplied
        load_a(a_part, following * SIDE, a_tile, a_first + (k + 1) * a_row)
        load_b(b_part, following * SIDE, b_tile, b_first + (k + 1) * COLUMNS)
        add_products(sums, a_part, b_part, k % 2)

    multiply = repeated(multiply_k, DEPTH - 1)

    @cuda.jit(launch_bounds=(THREADS, 2))
    def sgemm_buffered(alpha, a, b, beta, c, output):
        a_tile = cuda.shared.array(a_elements, float32, alignment=16)
        b_tile = cuda.shared.array(b_elements, float32, alignment=16)
        a_staged = cuda.local.array(STAGED, float32)
        b_staged = cuda.local.array(STAGED, float32)
        a_part = cuda.local.array(PART, float32)
        b_part = cuda.local.array(PART, float32)
        sums = cuda.local.array(SUMS, float32)  # in registers: every index is a constant once loops are unrolled
        for i in range(SUMS):
            sums[i] = float32(0)
        thread = cuda.threadIdx.x
        row, column = place(thread)
        m, n = output.shape
        block_row, block_column = block_place(cuda.blockIdx.x, (m + ROWS - 1) // ROWS, (n + COLUMNS - 1) // COLUMNS)
        top = block_row * ROWS
        left = block_column * COLUMNS
        # Prologue: the first tiles, and the first k's elements in registers.
        fetch_a(a_staged, a, top, 0, thread)
        fetch_b(b_staged, b, 0, left, thread)
        put_a(a_tile, 0, a_staged, thread)
        put_b(b_tile, 0, b_staged, thread)
        cuda.syncthreads()  # the first tiles are in shared memory before a thread reads them
        load_a(a_part, 0, a_tile, row)
        load_b(b_part, 0, b_tile, column)
        first = 0  # of the k's in shared memory: 0, or DEPTH
        start = 0
        # Main loop: loads from global memory start before the products and are stored after them, which hides the wait.
        while start < a.shape[1]:
            start += DEPTH
            fetch_a(a_staged, a, top, start, thread)  # after the last tile: zeros, which add nothing
            fetch_b(b_staged, b, start, left, thread)
            multiply(0, sums, a_part, b_part, a_tile, b_tile, first * a_row + row, first * COLUMNS + column)
            first = DEPTH - first
            put_a(a_tile, first * a_row, a_staged, thread)
            put_b(b_tile, first * COLUMNS, b_staged, thread)
            cuda.syncthreads()  # the next tiles are there, and all threads have read these
            load_a(a_part, 0, a_tile, first * a_row + row)
            load_b(b_part, 0, b_tile, first * COLUMNS + column)
            add_products(sums, a_part, b_part, 1)  # DEPTH is even: its last k is in the second half
        store_share(output, sums, alpha, beta, c, top + row, left + column)

    return sgemm_buffered


def plan(step: str, tiling: Tiling, block_place: Any, product: Product, device: Device) -> Plan:
    """Return the plan of a step, which does every product."""
    kernel = build, (tiling, product.widths, block_place)
    return product_plan(step, product, kernel, TILE, THREADS, "tiles of 128 x 128 in two buffers, whatever the sizes")
