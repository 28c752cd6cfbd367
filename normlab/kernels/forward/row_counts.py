"""Adapt step 6's layout to the number of rows: rows per block, blocks, and when a thread loads its parameters.

A row keeps its thread map, so no bit of a row depends on what is chosen here.
"""

from normlab.kernels.forward.early import OWN_REGISTERS
from normlab.kernels.forward.layouts import LEAST_THREADS, SHIFTED_TURNS, RegisterLayout
from normlab.kernels.plan import Device
from normlab.stages.vector import WARP

# A warp whose rows take so few lanes each, with several vectors per lane, loads from many rows. Blocks of two warps
# then divide few rows among more multiprocessors: 64 to 500 rows of 128 columns take 3.68 us, in blocks of 128 threads
# 3.84 us (RMSNorm of bfloat16, H200).
FEW_LANES, FEW_LANES_THREADS = 8, 64
# Threads per multiprocessor up to which early parameters pay in rows that begin in the middle of a vector, if a block
# has several such rows. RMSNorm of bfloat16 on an H200: 900 rows of 1,001 columns (225 threads) 4.9 us instead of 5.3,
# 900 of 2,409 (442) 6.2 instead of 6.5, but 1,600 of 1,501 (776) 7.3 instead of 6.5.
EARLY_THREADS = 512
WAVES = 4  # of blocks, at least: with fewer the last wave would leave half of the GPU idle


def with_fewer_rows(layout: RegisterLayout, rows: int, threads: int = WARP) -> RegisterLayout:
    """Return the layout whose rows per block are halved, again and again, as long as a block keeps whole warps.

    rows, threads: that it keeps at least.
    """
    half = layout.rows // 2
    left = half * layout.thread_map.threads
    if layout.rows % 2 or half < rows or left < threads or left % WARP:
        return layout
    return with_fewer_rows(layout._replace(rows=half), rows, threads)


def for_rows(layout: RegisterLayout, n1: int, parameters: int, beside: int, device: Device) -> RegisterLayout:
    """Return the layout for n1 rows.

    `early`: a thread loads its parameters beside its elements, before the sums. If it loads them after the sums, vector
    by vector, it waits for memory once more for each vector. But parameters take registers while the sums are made, so
    fewer blocks may fit on the GPU at once, and then fewer bytes are on their way. A thread therefore loads them early
    if all blocks still fit at once, or if the table says so (H100, bfloat16, in the layouts of an earlier table):

        rows x columns     after the sums    early     all blocks fit at once
          500 x   768          5.4 us        4.8 us    yes
          256 x 5,120          7.5 us        6.7 us    yes
        1,024 x 4,096          9.2 us       10.1 us    no

    parameters: how many there are of weight and bias. beside: how many of residual and gate.
    """
    if layout.shifted:
        # A block stages early parameters in shared memory while its rows are on their way. They take registers, too,
        # and one row alone does not make up for what is staged for it.
        threads = layout.thread_map.threads * layout.rows
        most = EARLY_THREADS if layout.rows > 1 else threads
        few = parameters > 0 and shifted_grid(layout, n1, device) * threads <= most * device.multiprocessors
        return layout._replace(early=True, resident=1) if few else layout
    # Few rows are divided among more blocks, so that every multiprocessor has some. 128 rows of 128 columns took 5.5 us
    # in one block of 512 threads and 4.6 us in four of 128 (RMSNorm of float16, H100).
    if n1 < layout.rows * device.multiprocessors:
        layout = with_fewer_rows(layout, 1, LEAST_THREADS)
    from_many_rows = layout.thread_map.threads <= FEW_LANES and layout.thread_map.vectors > 1  # a warp's loads
    if from_many_rows and n1 < layout.rows * device.multiprocessors:
        layout = with_fewer_rows(layout, 1, FEW_LANES_THREADS)
    registers = OWN_REGISTERS + layout.thread_map.elements * (1 + parameters + beside)
    resident = device.registers // (registers * layout.thread_map.threads * layout.rows)
    at_once = -(-n1 // layout.rows) <= resident * device.multiprocessors
    if at_once:
        layout = layout._replace(resident=1)
    return layout._replace(early=parameters > 0 and (at_once or layout.early))


def shifted_grid(layout: RegisterLayout, n1: int, device: Device) -> int:
    """Return the blocks for n1 rows that may begin anywhere in a vector.

    All rows of a block begin at the same element of a vector. The block takes them turn after turn.
    """
    period = layout.thread_map.width  # rows from one to the next that begins at the same element
    blocks = -(-n1 // layout.rows)
    turns = min(SHIFTED_TURNS, max(1, blocks // (device.multiprocessors * layout.resident * WAVES)))
    return -(-n1 // (layout.rows * period * turns)) * period
