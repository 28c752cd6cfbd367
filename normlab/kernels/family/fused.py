"""Plan and launch the batch norms of channels last that are one kernel per pass (`column_fused`).

The grid has at most one block per multiprocessor, and each block takes the whole shared memory: so all blocks are on
the GPU at once, and a barrier of the grid cannot hang. A pass is one kernel only if it has enough rows for so many
threads, if its channels give nearly all blocks work, and if vectors have 16 bytes.
"""

from typing import NamedTuple

import numpy as np

from normlab.kernels.family.column_fused import build_backward, build_forward
from normlab.kernels.family.operands import Gradients, Outputs
from normlab.kernels.family.sets import Sets
from normlab.kernels.plan import Chains, Device
from normlab.stages.vector import BYTES

FUSED = True  # False: every pass has three kernels
NEEDED = 9, 0  # compute capability: others have not been measured
THREADS = 512
RING = 9  # slots that rows go through in the forward; all others keep theirs
RING_OF_TWO = 5  # in the backward, of x and of dy
MOST_PIECES = 2**14  # that a block merges, of 8 bytes each; blocks of fewer channels have fewer
NARROWEST = 8  # vectors of 16 bytes: a line of memory
FEWEST = 4  # rows of a thread: with fewer, the barrier of the grid is not paid back
BUSY = 0.9  # of the multiprocessors


class FusedPlan(NamedTuple):
    """The thread map of a pass, and its shared memory.

    across: vectors side by side in a block. width: elements of a vector. row_blocks, stacks: the grid. turns: rows of a
    thread at most. shared_bytes: a block's bytes for the rows it keeps and its ring.
    """

    across: int
    width: int
    row_blocks: int
    stacks: int
    turns: int
    shared_bytes: int

    @property
    def down(self) -> int:
        """Return the rows of a block at a time."""
        return THREADS // self.across

    @property
    def blocks(self) -> tuple:
        """Return grid and block."""
        return (self.row_blocks, self.stacks), (self.across, self.down)

    @property
    def chains(self) -> Chains:
        """Return the chains over a channel: rows of a thread, merged over the block, then row blocks likewise."""
        merges = -(-self.row_blocks // self.down) + 2 * (self.down - 1).bit_length()
        return Chains(self.turns, self.turns + merges)


def plan_for(sets: Sets, width: int, itemsize: int, device: Device) -> FusedPlan | None:
    """Return the plan for a view with run 1, or None if its passes have three kernels.

    width: elements of a vector. itemsize: bytes per element.
    """
    batch_norm = sets.batches == sets.channels == 1
    if not FUSED or not batch_norm or device.capability < NEEDED or itemsize > 4 or itemsize * width != BYTES:
        return None
    vectors, processors = sets.parameters // width, device.multiprocessors
    across = min(32, 1 << (vectors - 1).bit_length())
    narrowest = min(across, NARROWEST)
    while across >= narrowest:  # wide blocks first: they read longer runs of memory
        stacks = -(-vectors // across)
        row_blocks = processors // stacks
        busy = row_blocks * vectors / across  # blocks; a block with channels for half of its threads counts as half
        turns = -(-sets.outer * across // (max(1, row_blocks) * THREADS))
        if busy >= BUSY * processors and row_blocks * across * width <= MOST_PIECES and turns >= FEWEST:
            exchange_bytes = 4 * (THREADS * width + THREADS // across)  # static shared memory
            return FusedPlan(across, width, row_blocks, stacks, turns, device.shared_bytes - exchange_bytes)
        across //= 2
    return None


def launch_forward(launch, memory, plan: FusedPlan, one: Outputs):
    """Queue the forward kernel."""
    slots = plan.shared_bytes // (THREADS * BYTES)
    # a ring of RING slots keeps enough copies in flight; every other slot keeps a row from being read again
    kernel = build_forward(one.x.dtype.itemsize, plan.width, plan.across, plan.down, slots, max(0, slots - RING))
    scratch, shared_bytes = _scratch(memory, plan, one), slots * THREADS * BYTES
    given, results = (one.x, one.weight, one.bias, one.eps), (one.mean, one.variance, one.invvar, one.output)
    launch(kernel, *plan.blocks, *given, *scratch, *results, shared_bytes=shared_bytes)


def launch_backward(launch, memory, plan: FusedPlan, one: Gradients):
    """Queue the backward kernel."""
    slots = plan.shared_bytes // (2 * THREADS * BYTES)  # of a vector of dy and a vector of x
    kept = max(0, slots - RING_OF_TWO)
    kernel = build_backward(one.x.dtype.itemsize, plan.width, plan.across, plan.down, slots, kept)
    scratch, shared_bytes = _scratch(memory, plan, one), 2 * slots * THREADS * BYTES
    given = one.grad_output, one.x, one.mean, one.invvar, one.weight
    results = one.grad_input, one.grad_weight, one.grad_bias
    launch(kernel, *plan.blocks, *given, *scratch, *results, shared_bytes=shared_bytes)


def _scratch(memory, plan: FusedPlan, one: Outputs | Gradients) -> tuple:
    """Return the turns that every thread takes, the exchanged pieces, and the counter of blocks at the barrier."""
    turns = np.int64(one.x.shape[1] // (plan.row_blocks * plan.down))
    pieces = memory.empty((2, plan.row_blocks * one.x.shape[2]), one.mean.dtype)
    return turns, pieces, memory.zeros((1,), np.dtype(np.int32))
