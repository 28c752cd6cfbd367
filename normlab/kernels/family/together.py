"""Which batch norms of channels last are one kernel a pass, `column_together`, and how it is dealt out.

One block a multiprocessor, with all of its shared memory: so all blocks are on the GPU at once. Not for what has too
few rows for so many threads, not where channels do not give nearly all blocks something to do, and only in vectors of
16 bytes.
"""

from typing import NamedTuple

import numpy as np

from normlab.kernels.family.column_together import build_backward, build_forward
from normlab.kernels.family.sets import Sets
from normlab.kernels.plan import Chains, Device
from normlab.stages.vector import BYTES

TOGETHER = True  # False: three kernels a pass for all
NEEDED = 9, 0  # compute capability: others have not been measured
THREADS = 512
RING = 9  # slots that rows go through in the forward; all others keep theirs
RING_OF_TWO = 5  # in the backward, of x and of dy
MOST_PIECES = 2**14  # that a block merges, of 8 bytes each; blocks of fewer channels have fewer
NARROWEST = 8  # vectors of 16 bytes: a line of memory
FEWEST = 4  # rows of a thread
BUSY = 0.9  # of the multiprocessors


class Plan(NamedTuple):
    """across: vectors beside each other in a block. parts, stacks: the grid. turns: rows of a thread at most. room:
    bytes for a block's ring.
    """

    across: int
    parts: int
    stacks: int
    turns: int
    room: int

    @property
    def down(self) -> int:
        """Rows of a block at a time."""
        return THREADS // self.across

    @property
    def blocks(self) -> tuple:
        """Grid and block."""
        return (self.parts, self.stacks), (self.across, self.down)

    @property
    def chains(self) -> Chains:
        """Over a channel: rows of a thread, merged over the block, then parts likewise."""
        merges = -(-self.parts // self.down) + 2 * (self.down - 1).bit_length()
        return Chains(self.turns, self.turns + merges)


def plan_for(sets: Sets, width: int, itemsize: int, device: Device) -> Plan | None:
    """Return how a view with run 1, of so many bytes an element, is dealt out in vectors; None: not in one kernel."""
    alone = sets.batches == sets.channels == 1
    if not TOGETHER or not alone or device.capability < NEEDED or itemsize > 4 or itemsize * width != BYTES:
        return None
    vectors, processors = sets.parameters // width, device.multiprocessors
    across = min(32, 1 << (vectors - 1).bit_length())
    narrowest = min(across, NARROWEST)
    while across >= narrowest:
        stacks = -(-vectors // across)
        parts = processors // stacks
        busy = parts * vectors / across  # blocks, those cut short counted in parts
        turns = -(-sets.outer * across // (max(1, parts) * THREADS))
        if busy >= BUSY * processors and parts * across * width <= MOST_PIECES and turns >= FEWEST:
            boards = 4 * (THREADS * width + THREADS // across)  # static
            return Plan(across, parts, stacks, turns, device.shared_bytes - boards)
        across //= 2
    return None


def launch_forward(launch, memory, plan: Plan, width, x, weight, bias, eps, mean, variance, invvar, output):
    """Queue the kernel; arrays as for `family.forward`."""
    slots = plan.room // (THREADS * BYTES)
    kernel = build_forward(x.dtype.itemsize, width, plan.across, plan.down, slots, max(0, slots - RING))
    scratch = _scratch(memory, plan, x, mean)
    shared_bytes = slots * THREADS * BYTES
    given, results = (x, weight, bias, eps), (mean, variance, invvar, output)
    launch(kernel, *plan.blocks, *given, *scratch, *results, shared_bytes=shared_bytes)


def launch_backward(
    launch, memory, plan: Plan, width, grad_output, x, mean, invvar, weight, grad_input, grad_weight, grad_bias
):
    """Queue the kernel; arrays as for `family.gradients`."""
    slots = plan.room // (2 * THREADS * BYTES)
    kernel = build_backward(x.dtype.itemsize, width, plan.across, plan.down, slots, max(0, slots - RING_OF_TWO))
    scratch = _scratch(memory, plan, x, mean)
    shared_bytes = 2 * slots * THREADS * BYTES
    given, results = (grad_output, x, mean, invvar, weight), (grad_input, grad_weight, grad_bias)
    launch(kernel, *plan.blocks, *given, *scratch, *results, shared_bytes=shared_bytes)


def _scratch(memory, plan: Plan, x, mean) -> tuple:
    """Turns that all threads take; what the blocks tell each other, and the counter of those that have come."""
    turns = np.int64(x.shape[1] // (plan.parts * plan.down))
    pieces = memory.empty((2, plan.parts * x.shape[2]), mean.dtype)
    return turns, pieces, memory.zeros((1,), np.dtype(np.int32))
