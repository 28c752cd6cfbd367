"""Copy tiles of A and B to shared memory two tiles ahead, with copies that the threads only start (`cp.async`).

Idea: shared memory holds a ring of three stages. A stage, also called a slot, has 24 k's of the block's tiles: first
A's, then B's. While the threads multiply one stage, the copies of the next two are on their way, and a copy takes no
registers. Each thread computes 8 x 8 elements of C. A is transposed while it is copied, one element per copy: 8 lanes
of a warp take neighbouring k's of each of 4 rows, so that global memory is read in whole sectors; the padded rows of
A's tile keep these copies free of bank conflicts.
Moves: 32 operations per byte from L2 and 2 per byte from shared memory: 8 wavefronts per warp and k, whose FMA take 16
clocks.
Takes: 128 registers, 74,880 bytes; 2 blocks of 256 threads per multiprocessor, bound by registers.
Bound by: FMA's share of the instructions. A turn of the main loop has 1704 instructions: 1536 FMA (0.901), 96 loads
from shared memory, 15 copies, 57 for addresses and the loop.
Measured: 49.4 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.96 of cuBLAS in float32; 51.4 at 8192, which is 1.00 of it.
At 2048 it is 0.95, and at 4000 x 4100 x 3000 0.99. What was tried besides stands at `PLAN`.
Next: nothing within float32 FMA; tensor cores would round to TF32.

What changed from step 10:
- Copies go from global to shared memory by `cp.async`, without registers in between.
- Three stages instead of two buffers, of 24 k's instead of 8: a third of the barriers per k.
- Whole tiles and tiles at an edge have loops of their own: the main loop has no bounds checks.
- The main loop increments the addresses of the copies instead of computing them.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import commit_copies, copy_async, cuda, flat, float32, store, wait_copies
from normlab.kernels.plan import Device, Plan, Refusal
from normlab.kernels.sgemm.product import Product, ProductStep, Widths, product_plan
from normlab.stages.lanes import blocks_in_bands, lanes_in_z_order, warps_in_rows
from normlab.stages.thread_tile import RUN, Share, outer_product, part_loader, share_storer
from normlab.stages.unroll import repeated

DOWN, ACROSS = 4, 8  # rows and columns of lanes in a warp
BAND = 8  # rows of blocks that take their columns together (`blocks_in_bands`), so that they share A and B in L2
LINE = 8  # neighbouring k's in a row of A that 8 lanes fetch together: the 32 bytes of a sector


class Tiles(NamedTuple):
    """Describe what the kernel is built for.

    runs_down, runs_across: runs of four rows, and of four columns, in a thread's share of the block's tile of C.
    warps_down, warps_across: warps of a block. depth: k's per stage, an even number. stages: stages in shared memory.
    blocks: blocks per multiprocessor for which the registers must suffice.
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
        """Return the rows of the block's tile of C."""
        return RUN * self.runs_down * DOWN * self.warps_down

    @property
    def columns(self) -> int:
        """Return the columns of the block's tile of C."""
        return RUN * self.runs_across * ACROSS * self.warps_across

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return 32 * self.warps_down * self.warps_across

    @property
    def a_row(self) -> int:
        """Return the elements from one k of A to the next in shared memory: a row, padded by four."""
        return self.rows + RUN

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of dynamic shared memory per block."""
        return 4 * self.stages * self.slot_size

    @property
    def slot_size(self) -> int:
        """Return the elements of a stage: depth k's of A's tile, then of B's."""
        return self.depth * (self.a_row + self.columns)

    @property
    def in_flight(self) -> int:
        """Return how many groups of copies may be pending when the next stage must be there."""
        return self.stages - 2

    @property
    def shares(self) -> tuple[Share, Share]:
        """Return a thread's rows and columns of the block's tile of C."""
        return Share(self.runs_down, RUN * DOWN), Share(self.runs_across, RUN * ACROSS)

    @property
    def sum_count(self) -> int:
        """Return the elements of C per thread."""
        return RUN * self.runs_down * RUN * self.runs_across


PLAN = Tiles(runs_down=2, runs_across=2, warps_down=4, warps_across=2, depth=24, stages=3, blocks=2)  # 128 x 128
# Tried, as fractions of cuBLAS at 4096 x 4096 x 4096 on an H200; the plan above has 0.96:
#   stages of 16 k's                                       0.905
#   stages of 32 k's                                       0.917
#   four or five stages of 8 k's                           0.88, 0.89
#   two stages of 24 k's                                   0.895
#   four stages of 24 k's                                  0.947
#   8 x 16 elements per thread, 128 x 256 per block,
#       one block per multiprocessor                       0.97, and 0.97 at 2048 x 2048 x 2048
#       at 4000 x 4100 x 3000                              0.82: the last wave is nearly empty
#   one loop for whole tiles and for tiles at an edge,
#       every address computed from row and k
#       stages of 24 k's                                   0.91
#       stages of 16 k's                                   0.945
#   bands of 4, 16 or 32 rows of blocks instead of 8       as good; 12 worse
WHY = "three stages of 24 k: 0.96 of cuBLAS at 4096 x 4096 x 4096 on an H200; two stages: 0.895, stages of 16 k: 0.905"


class Source(NamedTuple):
    """Where a thread's copies of one matrix come from: the `flat` matrix, its row length, the first element's index."""

    matrix: Any
    row_length: Any
    first: Any


class Parts(NamedTuple):
    """A thread's registers: its elements of A and of B for two k's, this one and the next, and its sums."""

    a: Any
    b: Any
    sums: Any


@cache
def fetchers(plan: Tiles, width: int) -> Any:
    """Return the device functions (begins, fetch, fetch_edge), with which a thread fills its part of a slot.

    `begins(thread)` returns where the thread's first copies lie in the tiles: (row and k in A's, k and column in B's).
    `fetch(ring, a, b, a_at, b_at)` starts the thread's copies of a tile of A and a tile of B that lie wholly within the
    matrices. a, b: `Source`. a_at, b_at: the indices of the thread's first elements in the ring.
    `fetch_edge(ring, a, b, top, left, start, first, thread)` does the same for tiles that may reach past the matrices;
    elements outside become zeros. A's tile begins at (top, start), B's at (start, left), the slot at ring[first].

    A copy of A moves one element, because neighbours in memory lie a_row apart in the transposed tile. A copy of B
    moves `width` elements.
    """
    # a_step: rows of A between two copies of a thread; b_step: k's of B between two; passes: how many such copies
    rows, columns, depth, threads, a_row = plan.rows, plan.columns, plan.depth, plan.threads, plan.a_row
    lines, a_step, b_across = depth // LINE, threads // LINE, columns // width
    b_step = threads // b_across
    a_passes, b_passes = rows // a_step, depth // b_step

    @cuda.jit(device=True)
    def begins(thread):
        return thread // LINE, thread % LINE, thread // b_across, thread % b_across * width

    @cuda.jit(device=True)
    def fetch(ring, a, b, a_at, b_at):
        # No bounds check and one index per matrix: 0.96 of cuBLAS instead of 0.91 with `fetch_edge` everywhere.
        for v in range(a_passes):
            for line in range(lines):
                source = a.first + v * a_step * a.row_length + line * LINE
                copy_async(ring, a_at + (line * LINE * a_row + v * a_step), a.matrix, source, 1)
        for v in range(b_passes):
            copy_async(ring, b_at + v * b_step * columns, b.matrix, b.first + v * b_step * b.row_length, width)

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
                    store(ring, at, float32(0))  # a product with zero leaves every sum as it is
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
def stage_multiplier(plan: Tiles) -> Any:
    """Return (load_first, multiply_stage), the device functions that multiply what a slot of the ring holds.

    `load_first(ring, slot, row, column, parts)` loads the elements of a stage's first k into the first half of `Parts`.
    row, column: of the thread's first element in the block's tile.
    `multiply_stage(ring, slot, row, column, parts)` multiplies the stage that begins at ring[slot], and returns where
    the next stage begins. On entry the elements of its first k are in the parts' first half, and the thread has started
    the copies of a later stage. On return the elements of the next stage's first k are there.
    """
    columns, depth, a_row = plan.columns, plan.depth, plan.a_row
    row_share, column_share = plan.shares
    side_a, side_b = row_share.elements, column_share.elements
    a_size, slot_size = depth * a_row, plan.slot_size
    ring_size, in_flight = plan.stages * slot_size, plan.in_flight
    load_a, load_b = part_loader(row_share), part_loader(column_share)
    add_products = outer_product(side_a, side_b)

    @cuda.jit(device=True)
    def load_first(ring, slot, row, column, parts):
        load_b(parts.b, 0, ring, slot + a_size + column)
        load_a(parts.a, 0, ring, slot + row)

    @cuda.jit(device=True)
    def multiply_k(k, a_first, b_first, parts, ring):
        """Load the thread's elements for k + 1, then add the products for k, whose elements are in registers."""
        # B before A: the compiler's instructions follow the order of these loads, and other orders have bank conflicts
        following = (k + 1) % 2  # which half of the parts the next k goes to
        load_b(parts.b, following * side_b, ring, b_first + (k + 1) * columns)
        load_a(parts.a, following * side_a, ring, a_first + (k + 1) * a_row)
        add_products(parts.sums, parts.a, parts.b, k % 2)

    multiply = repeated(multiply_k, depth - 1)

    @cuda.jit(device=True)
    def multiply_stage(ring, slot, row, column, parts):
        commit_copies()  # the later stage's group
        # All k's but the last, whose elements are loaded here, too: its products hide the loads after the barrier.
        multiply(0, slot + row, slot + a_size + column, parts, ring)
        slot += slot_size
        if slot == ring_size:
            slot = 0
        wait_copies(in_flight)  # this thread's copies of the next stage have arrived
        # All threads' copies of the next stage have arrived before a thread reads it, and all threads have loaded this
        # stage's last k before a thread fetches into its slot.
        cuda.syncthreads()
        load_first(ring, slot, row, column, parts)
        add_products(parts.sums, parts.a, parts.b, 1)  # depth is even: its last k is in the second half
        return slot

    return load_first, multiply_stage


@cache
def build(plan: Tiles, widths: Widths) -> Any:
    """Return the kernel for a plan; widths: elements of each operand that one instruction moves."""
    rows, columns, depth, stages, a_row = plan.rows, plan.columns, plan.depth, plan.stages, plan.a_row
    row_share, column_share = plan.shares
    # Each part in registers has two halves: the elements of this k and of the next one.
    sum_count, a_parts, b_parts = plan.sum_count, 2 * row_share.elements, 2 * column_share.elements
    # ahead: k's between the stage that is multiplied and the stage that is fetched
    a_size, slot_size, in_flight, ahead = depth * a_row, plan.slot_size, plan.in_flight, (stages - 1) * depth
    warp_rows, warp_columns = DOWN * row_share.elements, ACROSS * column_share.elements
    place = warps_in_rows(plan.warps_across, warp_rows, warp_columns, RUN, lanes_in_z_order)
    block_place = blocks_in_bands(BAND)
    begins, fetch, fetch_edge = fetchers(plan, widths.b)
    load_first, multiply_stage = stage_multiplier(plan)
    store_share = share_storer(row_share, column_share, widths.c)

    @cuda.jit(launch_bounds=(plan.threads, plan.blocks))
    def sgemm_pipelined(alpha, a, b, beta, c, output):
        """Compute output = alpha A B + beta C; arguments as `Product`."""
        # Prologue: which elements of C this thread has.
        ring = cuda.shared.array(0, float32, alignment=16)
        a_part = cuda.local.array(a_parts, float32)
        b_part = cuda.local.array(b_parts, float32)
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0)
        thread, parts = cuda.threadIdx.x, Parts(a_part, b_part, sums)
        row, column = place(thread)  # of the thread's first element in the block's tile
        m, n = output.shape
        k_count = a.shape[1]
        block_row, block_column = block_place(cuda.blockIdx.x, (m + rows - 1) // rows, (n + columns - 1) // columns)
        top = block_row * rows
        left = block_column * columns

        # Fetch all stages but one. Load the first k of the first stage.
        for stage in range(stages - 1):
            fetch_edge(ring, a, b, top, left, stage * depth, stage * slot_size, thread)
            commit_copies()
        wait_copies(in_flight)
        cuda.syncthreads()  # all threads' copies of the first stage have arrived before a thread reads it
        load_first(ring, 0, row, column, parts)
        slot = 0  # where the stage that is multiplied begins in the ring
        free = (stages - 1) * slot_size  # where the next fetch goes: the empty slot, later that of the stage before

        # Addresses of the thread's copies, which the main loop only increments.
        a_first, a_line, b_line, b_first = begins(thread)
        a_at = a_line * a_row + a_first
        b_at = a_size + b_line * columns + b_first
        a_flat = flat(a)
        b_flat = flat(b)
        a_from = (top + a_first) * k_count + ahead + a_line
        b_from = (ahead + b_line) * n + left + b_first

        # Main loop: turns that fetch tiles wholly within A and B. A block whose tile reaches past C has none.
        whole = k_count // depth - (stages - 1) if top + rows <= m and left + columns <= n else 0
        turns = 0
        while turns < whole:
            fetch(ring, Source(a_flat, k_count, a_from), Source(b_flat, n, b_from), free + a_at, free + b_at)
            a_from += depth
            b_from += depth * n
            free = slot
            slot = multiply_stage(ring, slot, row, column, parts)
            turns += 1

        # The other turns: tiles at an edge. The fetches past the last k start no copies and store zeros.
        start = turns * depth
        while start < k_count:
            fetch_edge(ring, a, b, top, left, start + ahead, free, thread)
            free = slot
            slot = multiply_stage(ring, slot, row, column, parts)
            start += depth

        # Epilogue.
        wait_copies(0)  # no copy is on its way when the block ends
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
)
