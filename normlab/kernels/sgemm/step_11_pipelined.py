"""Copies that the threads only start (`cp.async`), several tiles ahead.

A ring of three stages of 24 k's lies in shared memory, and a thread computes 8 x 8 elements. Copies take no registers
on their way. A is transposed while it is copied, element by element: 8 lanes along k for each of 4 rows, whole sectors,
and no conflict in the padded rows.
Moves: from L2 32 operations a byte, from shared memory 2: 8 wavefronts for a k of a warp, 16 clocks of FMA.
Takes: 128 registers, 74,880 bytes; 2 blocks of 256 threads a multiprocessor, bound by registers.
Bound by: FMA's share of the instructions. A turn of the main loop has 1704: 1536 FMA (0.901), 96 loads from shared
memory, 15 copies, 57 for addresses and the loop. Tiles cut short at an edge have a loop of their own: in one loop with
them, and with every address computed from row and k, stages of 24 k's had 0.91 of cuBLAS at 4096, of 16 0.945. The
compiler's order of instructions follows that of the loads in `multiply_k` and `turn`: other orders have bank conflicts.
Measured, as fractions of cuBLAS in float32 on an H200: 0.96 at 4096 x 4096 x 4096, 49.4 TFLOP/s; 0.95 at 2048 x 2048 x
2048, 0.99 at 4000 x 4100 x 3000, 1.00 at 8192 x 8192 x 8192, 51.4 TFLOP/s.
Tried: stages of 16 k's 0.905 at 4096, of 32 0.917, of 8 (four or five) 0.88 and 0.89; two stages of 24 0.895, four
0.947. 8 x 16 elements a thread (128 x 256, one block a multiprocessor) have 0.97 at 4096 and 2048, but 0.82 at 4000 x
4100, where a last wave of large tiles is nearly empty. In the one loop, bands of 4, 16 and 32 rows were as good as of
8, and of 12 worse.
Next: nothing within float32 FMA; tensor cores would round to TF32.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import commit_copies, copy_async, cuda, flat, float32, store, wait_copies
from normlab.kernels.plan import Device, Plan, Refusal
from normlab.kernels.sgemm.product import Product, ProductStep, Widths, product_plan
from normlab.stages.lanes import blocks_in_bands, lanes_in_z_order, warps_in_rows
from normlab.stages.thread_tile import RUN, Share, outer_product, part_loader, share_storer
from normlab.stages.unroll import repeated

DOWN, ACROSS = 4, 8  # lanes of a warp
BAND = 8  # rows of blocks
LINE = 8  # neighbours along a row of A that a block fetches together: the 32 bytes of a sector


class Tiles(NamedTuple):
    """What the kernel is built for.

    runs_down, runs_across: of four, in a thread's share of the block's tile. warps_down, warps_across: of a block.
    depth: k's of a stage, stages: in shared memory. blocks: on a multiprocessor, for which the registers must suffice.
    """

    runs_down: int
    runs_across: int
    warps_down: int
    warps_across: int
    depth: int
    stages: int
    blocks: int

    @property
    def rows(self) -> int:
        """Of the block's tile of C."""
        return RUN * self.runs_down * DOWN * self.warps_down

    @property
    def columns(self) -> int:
        """Of the block's tile of C."""
        return RUN * self.runs_across * ACROSS * self.warps_across

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps_down * self.warps_across

    @property
    def a_row(self) -> int:
        """Elements from one k of A to the next in shared memory."""
        return self.rows + RUN

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * self.stages * self.depth * (self.a_row + self.columns)


PLAN = Tiles(runs_down=2, runs_across=2, warps_down=4, warps_across=2, depth=24, stages=3, blocks=2)  # 128 x 128
WHY = "three stages of 24 k: 0.96 of cuBLAS at 4096 x 4096 x 4096 on an H200; two stages: 0.895, stages of 16 k: 0.905"


@cache
def fetchers(plan: Tiles, width: int) -> Any:
    """Three device functions: where a thread copies, and two that start its copies of two tiles for a slot of the ring.

    `begins(thread)`: row and k of its first element of A in a tile, k and column of its first one of B.
    `fetch(ring, a_flat, b_flat, a_row_length, b_row_length, a_from, b_from, a_at, b_at)`: of tiles that lie within the
    matrices; from and at: of the thread's first elements, in `flat` matrices and in the ring.
    `fetch_edge(ring, a, b, top, left, start, first, thread)`: of any, at k = start, for the slot that begins at
    `first`; what lies outside becomes zeros.

    A is transposed on the way, so that its elements travel one by one; of B `width` go together.
    """
    rows, columns, depth, threads, a_row = plan.rows, plan.columns, plan.depth, plan.threads, plan.a_row
    lines, a_step, b_across = depth // LINE, threads // LINE, columns // width
    b_step = threads // b_across
    a_passes, b_passes = rows // a_step, depth // b_step

    @cuda.jit(device=True)
    def begins(thread):
        return thread // LINE, thread % LINE, thread // b_across, thread % b_across * width

    @cuda.jit(device=True)
    def fetch(ring, a_flat, b_flat, a_row_length, b_row_length, a_from, b_from, a_at, b_at):
        for v in range(a_passes):
            for line in range(lines):
                source = a_from + v * a_step * a_row_length + line * LINE
                copy_async(ring, a_at + (line * LINE * a_row + v * a_step), a_flat, source, 1)
        for v in range(b_passes):
            copy_async(ring, b_at + v * b_step * columns, b_flat, b_from + v * b_step * b_row_length, width)

    @cuda.jit(device=True)
    def fetch_edge(ring, a, b, top, left, start, first, thread):
        a_first, a_line, b_line, b_first = begins(thread)
        a_at = first + a_line * a_row + a_first
        b_at = first + depth * a_row + b_line * columns + b_first
        for v in range(a_passes):
            for line in range(lines):
                at = a_at + line * LINE * a_row + v * a_step
                row = top + a_first + v * a_step
                k = start + a_line + line * LINE
                if row < a.shape[0] and k < a.shape[1]:
                    copy_async(ring, at, a, (row, k), 1)
                else:
                    store(ring, at, float32(0))
        for v in range(b_passes):
            at = b_at + v * b_step * columns
            k = start + b_line + v * b_step
            if k < b.shape[0] and left + b_first < b.shape[1]:
                copy_async(ring, at, b, (k, left + b_first), width)
            else:
                for q in range(width):
                    store(ring, at + q, float32(0))

    return begins, fetch, fetch_edge


@cache
def build(plan: Tiles, widths: Widths) -> Any:
    """The kernel for a plan and for operands of which one instruction moves so many elements."""
    rows, columns, depth, stages, a_row = plan.rows, plan.columns, plan.depth, plan.stages, plan.a_row
    row_share, column_share = Share(plan.runs_down, RUN * DOWN), Share(plan.runs_across, RUN * ACROSS)
    side_a, side_b = row_share.elements, column_share.elements
    sum_count, a_parts, b_parts = side_a * side_b, 2 * side_a, 2 * side_b
    a_size, slot_size, in_flight, ahead = depth * a_row, depth * (a_row + columns), stages - 2, (stages - 1) * depth
    place = warps_in_rows(plan.warps_across, DOWN * side_a, ACROSS * side_b, RUN, lanes_in_z_order)
    block_place = blocks_in_bands(BAND)
    begins, fetch, fetch_edge = fetchers(plan, widths.b)
    load_a, load_b = part_loader(row_share), part_loader(column_share)
    add_products = outer_product(side_a, side_b)
    store_share = share_storer(row_share, column_share, widths.c)

    @cuda.jit(device=True)
    def multiply_k(k, a_first, b_first, sums, a_part, b_part, ring):
        following = (k + 1) % 2
        load_b(b_part, following * side_b, ring, b_first + (k + 1) * columns)
        load_a(a_part, following * side_a, ring, a_first + (k + 1) * a_row)
        add_products(sums, a_part, b_part, k % 2)

    multiply = repeated(multiply_k, depth - 1)

    @cuda.jit(device=True)
    def turn(slot, row, column, sums, a_part, b_part, ring):
        """Multiply the tiles that begin at `slot`, of which the first k is in the parts; where the next ones begin."""
        commit_copies()
        multiply(0, slot + row, slot + a_size + column, sums, a_part, b_part, ring)
        slot += slot_size
        if slot == stages * slot_size:
            slot = 0
        wait_copies(in_flight)
        cuda.syncthreads()  # everybody's copies of the next tiles have arrived, and nobody reads these any more
        load_b(b_part, 0, ring, slot + a_size + column)
        load_a(a_part, 0, ring, slot + row)
        add_products(sums, a_part, b_part, 1)  # depth is even: its last k is in the second half
        return slot

    @cuda.jit(launch_bounds=(plan.threads, plan.blocks))
    def sgemm_pipelined(alpha, a, b, beta, c, output):
        ring = cuda.shared.array(0, float32, alignment=16)
        a_part = cuda.local.array(a_parts, float32)
        b_part = cuda.local.array(b_parts, float32)
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0)
        thread = cuda.threadIdx.x
        row, column = place(thread)
        m, n = output.shape
        k_count = a.shape[1]
        block_row, block_column = block_place(cuda.blockIdx.x, (m + rows - 1) // rows, (n + columns - 1) // columns)
        top = block_row * rows
        left = block_column * columns
        for stage in range(stages - 1):
            fetch_edge(ring, a, b, top, left, stage * depth, stage * slot_size, thread)
            commit_copies()
        wait_copies(in_flight)
        cuda.syncthreads()  # everybody's copies of the first tiles have arrived
        load_b(b_part, 0, ring, a_size + column)
        load_a(a_part, 0, ring, row)
        slot = 0
        free = (stages - 1) * slot_size
        a_first, a_line, b_line, b_first = begins(thread)
        a_at = a_line * a_row + a_first
        b_at = a_size + b_line * columns + b_first
        a_flat = flat(a)
        b_flat = flat(b)
        a_from = (top + a_first) * k_count + ahead + a_line
        b_from = (ahead + b_line) * n + left + b_first
        whole = k_count // depth - (stages - 1) if top + rows <= m and left + columns <= n else 0
        turns = 0
        while turns < whole:
            fetch(ring, a_flat, b_flat, k_count, n, a_from, b_from, free + a_at, free + b_at)
            a_from += depth
            b_from += depth * n
            free = slot
            slot = turn(slot, row, column, sums, a_part, b_part, ring)
            turns += 1
        start = turns * depth
        while start < k_count:
            fetch_edge(ring, a, b, top, left, start + ahead, free, thread)
            free = slot
            slot = turn(slot, row, column, sums, a_part, b_part, ring)
            start += depth
        wait_copies(0)
        store_share(output, sums, alpha, beta, c, top + row, left + column)

    return sgemm_pipelined


def plan(product: Product, device: Device) -> Plan | Refusal:
    """Return the plan, if a block has the shared memory for the ring."""
    if PLAN.shared_bytes > device.shared_bytes:
        return Refusal(f"the ring has {PLAN.shared_bytes:,} bytes, and a block {device.shared_bytes:,}")
    kernel, tile = (build, (PLAN, product.widths)), (PLAN.rows, PLAN.columns, PLAN.depth)
    return product_plan("pipelined", product, kernel, tile, PLAN.threads, WHY, PLAN.shared_bytes)


STEP = ProductStep(
    name="pipelined",
    summary="copies several tiles ahead without registers",
    ways=(plan,),
    tile=(PLAN.rows, PLAN.columns, PLAN.depth),
    tile_seconds=0.3,
)
