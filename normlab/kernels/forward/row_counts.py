"""Adapt step 6's layout to the number of rows. No bit of a row depends on what is chosen here.

A row keeps its thread map. Rows per block, when the parameters are loaded, and the number of blocks are chosen.
"""

from normlab.kernels.forward.layouts import LEAST_THREADS, OWN_REGISTERS, SHIFTED_TURNS, RegisterLayout
from normlab.kernels.plan import Device
from normlab.stages.vector import WARP

WAVES = 4  # of blocks, at least: with fewer the last ones would find the GPU half empty


def with_rows(layout: RegisterLayout, most: int, threads: int = WARP) -> RegisterLayout:
    """Return the layout with half the rows per block, and again half, while it has `most` rows and so many threads."""
    rows = layout.rows // 2
    left = rows * layout.thread_map.threads
    if layout.rows % 2 or rows < most or left < threads or left % WARP:
        return layout
    return with_rows(layout._replace(rows=rows), most, threads)


def for_rows(layout: RegisterLayout, n1: int, parameters: int, beside: int, device: Device) -> RegisterLayout:
    """Return the layout for n1 rows: all multiprocessors have some, and threads of few rows wait for memory once.

    One block's 128 rows of 128 columns take 5.5 us, shared by four blocks 4.6 (RMSNorm of float16, H100). Parameters
    that a thread loads after the sums, vector by vector, are a wait for each vector. If all blocks have room at once, a
    thread loads them beside its elements: 500 rows of 768 columns of bfloat16 5.4 and 4.8 us, 256 of 5,120 7.5 and 6.7
    us. If not, the GPU has fewer bytes on their way: 1,024 rows of 4,096 columns 9.2 and 10.1 us.

    A block of few rows that begin anywhere stages its parameters while the rows are on their way; that is not measured.

    parameters, beside: how many there are of weight and bias, and of residual and gate.
    """
    if layout.shifted:
        few = parameters > 0 and shifted_grid(layout, n1, device) <= device.multiprocessors
        return layout._replace(early=True, resident=1) if few else layout
    if n1 < layout.rows * device.multiprocessors:
        layout = with_rows(layout, 1, LEAST_THREADS)
    registers = OWN_REGISTERS + layout.thread_map.elements * (1 + parameters + beside)
    resident = device.registers // (registers * layout.thread_map.threads * layout.rows)
    at_once = -(-n1 // layout.rows) <= resident * device.multiprocessors
    if at_once:
        layout = layout._replace(resident=1)
    return layout._replace(early=parameters > 0 and (at_once or layout.early))


def shifted_grid(layout: RegisterLayout, n1: int, device: Device) -> int:
    """Return the blocks for n1 rows that may begin anywhere; each takes rows that begin alike, turn after turn."""
    period = layout.thread_map.width
    blocks = -(-n1 // layout.rows)
    turns = min(SHIFTED_TURNS, max(1, blocks // (device.multiprocessors * layout.resident * WAVES)))
    return -(-n1 // (layout.rows * period * turns)) * period
