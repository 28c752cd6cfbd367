"""Channels side by side: channels last, or a matrix (N, C). Lanes take neighbouring channels.

x is (batches, outer, parameters). A thread takes a few neighbouring channels, one vector, and walks down the rows; so
a warp asks for whole stretches of memory, though every channel's values lie far apart. What it knows of its channels
takes most of its registers, so that rows are fetched ahead into shared memory (`stages.ahead`). Statistics: Chan's
merge, one value at a time, whose division serves all channels of a row. Then the block's threads of a channel merge
through shared memory. A piece is what a block makes of a channel.

A batch norm whose rows give all multiprocessors enough to do is one kernel a pass (`together`), all else is three. All
blocks of the first one fit on the GPU at once and go through memory side by side. The last one walks up where the first
one walked down: what was read last still lies in L2.
Moves: as `planes`. Parameters are loaded once for all rows of a thread. Bound by: memory.
"""

import numpy as np

from normlab.engine import accumulator
from normlab.kernels.family.column_outputs import build_gradient, build_output
from normlab.kernels.family.column_pieces import build_moments, build_sums
from normlab.kernels.family.column_ring import THREADS
from normlab.kernels.family.sets import Pieces, Sets
from normlab.kernels.family.together import plan_for
from normlab.kernels.plan import Device
from normlab.stages.vector import widest

BLOCKS = 256  # wanted, where an H200 holds 396: merging more pieces takes longer than they gain
MANY = 4  # times as many, where there are too many for that: then the last ones to work alone are few
TURNS = 16  # rows of a thread in the last kernel
FEWEST = 4  # rows of a thread, which a part is not cut below


class Columns:
    """The kernels of one view of x, whose run is 1; `arrays` are all that are like x.

    together: how all of a pass is one kernel, or None.
    """

    def __init__(self, sets: Sets, *arrays, device: Device):
        self.sets = sets
        self.width = widest(sets.parameters, *arrays)
        vectors = sets.parameters // self.width
        self.across = min(32, 1 << (vectors - 1).bit_length())
        self.down = THREADS // self.across
        self.stacks = -(-vectors // self.across)  # of blocks beside each other
        least = self.stacks * sets.batches  # blocks, with one part
        parts = BLOCKS // least if 2 * least <= BLOCKS else -(-MANY * BLOCKS // least)
        self.together = plan_for(sets, self.width, arrays[0].dtype.itemsize, device)
        self.parts = max(1, min(sets.outer // (FEWEST * self.down), parts))

    @property
    def pieces(self) -> Pieces:
        """What the first kernels leave."""
        batches, outer, sets, channels, _ = self.sets
        turns = -(-outer // (self.parts * self.down)) + 1  # parts differ by a row
        return Pieces(batches, self.parts, sets, channels, 1, turns, turns + (self.down - 1).bit_length())

    def launch_moments(self, launch, x, pieces):
        """Moments of all pieces; pieces: (3, self.pieces.size)."""
        kernel = build_moments(accumulator(pieces), x.dtype.itemsize, self.width, self.across)
        launch(kernel, *self._blocks, x, np.int64(self.parts), pieces)

    def launch_sums(self, launch, grad_output, x, mean, invvar, pieces):
        """Sums of dy and dy x̂ over all pieces; pieces: (2, self.pieces.size)."""
        kernel = build_sums(accumulator(pieces), x.dtype.itemsize, self.width, self.across)
        launch(kernel, *self._blocks, grad_output, x, mean, invvar, *self._view, pieces)

    def launch_output(self, launch, x, mean, invvar, weight, bias, output):
        """output = x̂ weight + bias."""
        kernel = build_output(accumulator(invvar), x.dtype.itemsize, self.width)
        blocks, view = self._applying
        launch(kernel, *blocks, x, mean, invvar, weight, bias, *view, output)

    def launch_gradient(self, launch, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input):
        """grad_input; mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x."""
        kernel = build_gradient(accumulator(invvar), x.dtype.itemsize, self.width)
        blocks, view = self._applying
        launch(kernel, *blocks, grad_output, x, mean, invvar, weight, mean_g, mean_gx, *view, grad_input)

    @property
    def _blocks(self) -> tuple:
        return (self.sets.batches * self.parts, self.stacks), (self.across, self.down)

    @property
    def _applying(self) -> tuple:
        """Blocks of the last kernel, and what it has to know."""
        turns = min(TURNS, -(-self.sets.outer // self.down))
        parts = -(-self.sets.outer // (turns * self.down))
        blocks = self.sets.batches * parts * self.stacks, (self.across, self.down)
        return blocks, (np.int64(self.sets.sets), np.int64(parts), np.int64(turns))

    @property
    def _view(self) -> tuple:
        return np.int64(self.sets.sets), np.int64(self.parts)
