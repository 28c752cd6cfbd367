"""Normalise channels that lie side by side: channels last, or a matrix (N, C). Lanes take neighbouring channels.

Idea: a thread takes one vector of neighbouring channels and walks down the rows, so a warp reads adjacent memory
although the values of one channel lie far apart. Rows are prefetched into shared memory (`stages.ahead`), because the
thread's statistics take most of its registers.
Moves: x twice and the output once; backward: both arrays twice and grad_input once. Parameters are loaded once for all
rows of a thread.
Bound by: memory.
Measured: record family_h200, and the site's speed pages.
Next: read x once where shared memory holds it, in one kernel per pass (`fused`).

What changed from `planes`: lanes take channels instead of values of a run · a thread merges value by value (Chan), and
one division serves all its channels of a row · prefetched rows lie in shared memory instead of registers · the block's
threads of a channel merge through shared memory; a piece is a block's result for a channel · the last kernel walks up
where the first one walked down, because L2 still holds what was read last.

x is (batches, outer, channels of x): every batch has `outer` rows and statistics of its own. Batch norm has one batch;
instance and group norm have one per sample. A set, over which one mean is taken, is all rows of a batch in `channels`
neighbouring channels (`sets`).
"""

import numpy as np

from normlab.engine import accumulator
from normlab.kernels.family.column_outputs import build_gradient, build_output
from normlab.kernels.family.column_pieces import build_moments, build_sums
from normlab.kernels.family.column_vectors import THREADS
from normlab.kernels.family.fused import plan_for
from normlab.kernels.family.operands import Gradients
from normlab.kernels.family.sets import Pieces, Sets
from normlab.kernels.plan import Device
from normlab.stages.vector import widest

BLOCKS = 256  # wanted, although an H200 holds 396: merging more pieces takes longer than more blocks gain
MANY = 4  # times BLOCKS are wanted if one row block makes more than BLOCKS / 2: the last wave is then a small part
TURNS = 16  # rows per thread of the last kernel
FEWEST = 4  # rows per thread at least: with fewer, the merge takes longer than the walk


class Columns:
    """The kernels for x with channels last. A pass is three of them: moments or sums of pieces, the merge, the output.

    A block is (across, down): `across` threads side by side take neighbouring vectors of channels, and `down` threads
    share the rows of each vector. The first kernels' grid is `row_blocks` blocks per batch, which divide the rows, by
    `stacks` blocks, which divide the channels.

    arrays: x and all arrays like x that the kernels read or write. fused: the plan by which a pass is one kernel, or
    None.
    """

    def __init__(self, sets: Sets, *arrays, device: Device):
        self.sets = sets
        self.width = widest(sets.parameters, *arrays)
        vectors = sets.parameters // self.width
        self.across = min(
            32, 1 << (vectors - 1).bit_length()
        )  # a power of two; 32 vectors are 512 bytes: more gain nothing
        self.down = THREADS // self.across
        self.stacks = -(-vectors // self.across)  # blocks side by side that cover all channels
        least = self.stacks * sets.batches  # the number of blocks with one row block per batch
        row_blocks = BLOCKS // least if 2 * least <= BLOCKS else -(-MANY * BLOCKS // least)
        self.row_blocks = max(1, min(sets.outer // (FEWEST * self.down), row_blocks))
        self.fused = plan_for(sets, self.width, arrays[0].dtype.itemsize, device)

    @property
    def pieces(self) -> Pieces:
        """Return the shape of the pieces that the first kernels write: one per row block and channel."""
        batches, outer, sets, channels, _ = self.sets
        turns = -(-outer // (self.row_blocks * self.down)) + 1  # rows per thread, at most: row blocks differ by a row
        # A thread merges its rows one after another, so each is a level; then come the levels over the `down` threads.
        levels = turns + (self.down - 1).bit_length()
        return Pieces(batches, self.row_blocks, sets, inner=channels, slices=1, terms=turns, levels=levels)

    def launch_moments(self, launch, x, pieces):
        """Queue the kernel for the moments of all pieces; pieces: (3, self.pieces.size)."""
        kernel = build_moments(accumulator(pieces), x.dtype.itemsize, self.width, self.across)
        launch(kernel, *self._blocks, x, np.int64(self.row_blocks), pieces)

    def launch_sums(self, launch, grad_output, x, mean, invvar, pieces):
        """Queue the kernel for the sums of dy and dy x̂ of all pieces; pieces: (2, self.pieces.size)."""
        kernel = build_sums(accumulator(pieces), x.dtype.itemsize, self.width, self.across)
        launch(kernel, *self._blocks, grad_output, x, mean, invvar, *self._view, pieces)

    def launch_output(self, launch, x, mean, invvar, weight, bias, output):
        """Queue the kernel for output = x̂ weight + bias."""
        kernel = build_output(accumulator(invvar), x.dtype.itemsize, self.width)
        blocks, view = self._applying
        launch(kernel, *blocks, x, mean, invvar, weight, bias, *view, output)

    def launch_gradient(self, launch, one: Gradients, mean_g, mean_gx):
        """Queue the kernel for grad_input.

        mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x.
        """
        kernel = build_gradient(accumulator(one.invvar), one.x.dtype.itemsize, self.width)
        blocks, view = self._applying
        given = one.grad_output, one.x, one.mean, one.invvar, one.weight
        launch(kernel, *blocks, *given, mean_g, mean_gx, *view, one.grad_input)

    @property
    def _blocks(self) -> tuple:
        """Return the first kernels' (grid, block)."""
        return (self.sets.batches * self.row_blocks, self.stacks), (self.across, self.down)

    @property
    def _applying(self) -> tuple:
        """Return the last kernel's (grid, block), and its arguments (sets, row blocks, turns)."""
        turns = min(TURNS, -(-self.sets.outer // self.down))
        row_blocks = -(-self.sets.outer // (turns * self.down))
        blocks = self.sets.batches * row_blocks * self.stacks, (self.across, self.down)
        return blocks, (np.int64(self.sets.sets), np.int64(row_blocks), np.int64(turns))

    @property
    def _view(self) -> tuple:
        """Return the first kernels' arguments (sets, row blocks)."""
        return np.int64(self.sets.sets), np.int64(self.row_blocks)
