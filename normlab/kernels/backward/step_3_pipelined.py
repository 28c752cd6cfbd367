"""Rows fetched ahead into shared memory, and a row's second pass made while the next row's sums travel.

Persistent as step 2. Each block has a ring of rows in shared memory, filled by asynchronous copies that take no
registers: while one row is worked on, the next ones arrive. A row takes two passes: one for its two sums (and for the
columns' sums), one for grad_input. With a lag of one, the first pass over a row comes before the second pass over the
row before it, so that nobody waits for sums on their way. Several teams of threads work on a row each. Rows longer than
a block's share are dealt to the blocks of a cluster, whose barrier comes in two halves: arrive, do the second pass,
wait. The parameters lie in shared memory in float32, widened once and not at every use. When recomputing, the sums for
grad_weight are divided by gamma once, in the end.
Moves: dy and the saved array once, grad_input once.
Bound by: memory for float32. For 16-bit rows of 8192 and more by instructions: the multiprocessor issues one in two of
the cycles that it could at most, with as few warps as the columns' sums leave registers for.
Measured: see the README; up to n2 = 5120, 0.88 to 0.99 of a copy, long 16-bit rows of LayerNorm 0.71 (n2 = 65536), and
recomputing them with a bias up to 1.4 times as long. That was before the second pass of 16-bit rows was unrolled and
1 / gamma kept (`passes`), which takes a third of a recomputed row's instructions away: not measured since.
"""

from typing import NamedTuple

import numpy as np

from normlab.engine import accumulator, block_shared_bytes, compute_capability, multiprocessors, resident_clusters
from normlab.kernels.backward import final_sums, step_2_fused
from normlab.kernels.backward.passes import Kind
from normlab.kernels.backward.pipeline import build
from normlab.kernels.backward.ring import Layout
from normlab.kernels.step import BackwardProblem, BackwardStep, Chains, longest
from normlab.stages.vector import Deal, dealt, whole_warps, widest

MAX_CLUSTER = 16
CLUSTERS_FROM = (9, 0)  # compute capability


class Entry(NamedTuple):
    """Up to so many vectors a row: threads a row (0: a share of the vectors), rows a block, stages, lag."""

    limit: int
    threads: int
    rows: int
    stages: int
    lag: int


# Measured on an H200 with all parameters, as fractions of a copy, LayerNorm / RMSNorm; call after call, so that L2
# still held a little of the inputs: the README's numbers are 0 to 5 hundredths lower.
HALVES = (  # eight elements a vector, four vectors a thread
    Entry(96, 32, 8, 3, 1),  # 768: 0.94 / 0.97; 4 rows: 0.83 / 0.88
    Entry(128, 64, 8, 3, 1),  # 1024: 0.94 / 0.97; 32 threads: 0.93 / 0.92
    Entry(256, 64, 4, 3, 1),  # 2048: 0.96 / 0.98; 128 threads: 0.93 / 0.97
    Entry(768, 0, 2, 3, 1),  # 4096: 0.93 / 0.97, 5120: 0.95 / 0.98; half the vectors a thread: 0.90 / 0.97
    Entry(1024, 0, 1, 3, 1),  # 8192: 0.88 / 0.94; no lag: 0.85 / 0.90
)
SINGLES = (  # four elements a vector
    Entry(192, 64, 4, 3, 1),  # 768: 0.99 / 1.00
    Entry(256, 64, 4, 3, 0),  # 1024: 0.99 / 0.99
    Entry(512, 128, 2, 3, 0),  # 2048: 0.99 / 1.00
    Entry(1024, 256, 1, 3, 0),  # 4096: 0.98 / 0.99; a lag of 1: 0.97 / 0.95
    Entry(1280, 160, 2, 2, 0),  # 5120: 0.99 / 1.02; 320 threads: 0.98 / 0.97
    Entry(2048, 256, 1, 3, 0),  # 8192: 0.96 / 0.95; a lag of 1: 0.93 / 0.94
)
# Clusters: threads, rows, stages, lag of the slices, each of four (HALVES) or eight vectors a thread.
# 16384: 0.81 / 0.88 and 0.97 / 0.94, 65536: 0.72 / 0.77 and 0.94 / 0.93; twice as many blocks: 0.79 / 0.85.
SLICES = {2: Entry(1024, 256, 2, 3, 1), 4: Entry(2048, 256, 1, 3, 1)}
LONG_SLICES = {2: Entry(2048, 512, 1, 2, 0), 4: Entry(4096, 512, 1, 1, 0)}  # for rows that 16 such slices do not hold
MAX_ELEMENTS = 40  # of a thread: the columns' sums, in registers


def layout_for(
    n2: int, width: int, saved_bytes: int, grad_bytes: int, parameters: int, capability: tuple[int, int]
) -> Layout | None:
    """How the work is laid out, for vectors of `width` elements and so many arrays of parameters in shared memory.

    None: the kernel does not do it. Depends on no n1, so that a row's bits are the same in every batch.
    """
    if width * min(saved_bytes, grad_bytes) < 4:  # no asynchronous copy is that narrow
        return None
    itemsize = max(saved_bytes, grad_bytes)
    count = -(-n2 // width)
    table = HALVES if itemsize == 2 else SINGLES
    entry = next((entry for entry in table if count <= entry.limit), None)
    candidates = []
    if entry is not None:
        threads = entry.threads or whole_warps(-(-count // 4))
        candidates = _fewer(entry, dealt(n2, width, threads), 1, saved_bytes, grad_bytes)
    elif capability >= CLUSTERS_FROM:
        for slices in (SLICES, LONG_SLICES):
            if itemsize in slices:
                candidates += _clusters(n2, width, slices[itemsize], saved_bytes, grad_bytes)
    room = block_shared_bytes(capability)
    for layout in candidates:
        if layout.deal.elements <= MAX_ELEMENTS and layout.shared_bytes(parameters) + layout.board_bytes <= room:
            return layout
    return None


def _clusters(n2: int, width: int, entry: Entry, saved_bytes: int, grad_bytes: int) -> list[Layout]:
    """Layouts with the fewest blocks a cluster whose slices hold a row."""
    blocks = 2
    while blocks < MAX_CLUSTER and blocks * entry.limit * width < n2:
        blocks *= 2
    columns = entry.limit * width
    if blocks * columns < n2:
        return []
    deal = dealt(columns, width, entry.threads)._replace(whole=blocks * columns == n2)
    return _fewer(entry, deal, blocks, saved_bytes, grad_bytes)


def _fewer(entry: Entry, deal: Deal, blocks: int, saved_bytes: int, grad_bytes: int) -> list[Layout]:
    """Layouts after an entry, for a ring that may be too large for a block: with fewer rows, then with fewer stages."""
    ways = [(rows, entry.stages, entry.lag) for rows in range(entry.rows, 0, -1)] + [(1, 2, 0)]
    if blocks > 1:  # no stage to fetch ahead into, but an earlier step reads a row as long as that again and again
        ways.append((1, 1, 0))
    return [Layout(deal, rows, blocks, stages, lag, saved_bytes, grad_bytes) for rows, stages, lag in ways]


def _run(launch, memory, problem: BackwardProblem):
    n1, n2 = problem.saved.shape
    kind = Kind(problem.rms, problem.memory_efficient, problem.weight is not None, problem.bias is not None)
    sizes = problem.saved.dtype.itemsize, problem.grad_output.dtype.itemsize
    layout = None
    if problem.invvar.dtype.itemsize == 4:
        width = widest(n2, *problem.matrices)
        layout = layout_for(n2, width, *sizes, kind.parameters, compute_capability(problem.saved))
    if layout is None:
        step_2_fused.STEP.run(launch, memory, problem)
        return
    dtype = accumulator(problem.invvar)
    kernel = build(dtype, layout, kind)
    block = layout.deal.threads, layout.rows
    how = {"shared_bytes": layout.shared_bytes(kind.parameters), "cluster": layout.blocks}
    args = *problem.operands, np.float32(1 / n2), problem.row_sums, problem.grad_input
    resident = resident_clusters(kernel, block, *args, *final_sums.like_parts(problem), **how)
    clusters = min(-(-n1 // layout.rows), resident)
    if layout.lag and layout.blocks == 1:  # whose teams leave no gaps: a second block only adds partial sums
        clusters = min(clusters, multiprocessors(problem.saved))
    parts = final_sums.parts_for(memory, problem, clusters)
    launch(kernel, clusters * layout.blocks, block, *args, *parts, **how)
    final_sums.launch_sums(launch, dtype, parts, problem)


def _layouts(n2: int) -> list[Layout]:
    """Those of all dtypes and alignments, for bounds that hold for all."""
    found = []
    for saved_bytes, grad_bytes in ((2, 2), (4, 4), (2, 4), (4, 2)):
        for width in (1, 2, 4, 8):
            if n2 % width == 0 and width * max(saved_bytes, grad_bytes) <= 16:
                for parameters in range(3):
                    layout = layout_for(n2, width, saved_bytes, grad_bytes, parameters, (9, 0))
                    if layout is not None and layout not in found:
                        found.append(layout)
    return found


def _row_chains(n2: int) -> Chains:
    own = [Chains(layout.deal.elements + layout.deal.warps * layout.blocks // 32, 10) for layout in _layouts(n2)]
    return longest(*own, step_2_fused.STEP.row_chains(n2))


def _column_chains(n1: int, n2: int) -> Chains:
    own = []
    for layout in _layouts(n2):
        clusters = final_sums.CLUSTERED_PROCESSORS // layout.blocks
        most = min(-(-n1 // layout.rows), 8 * clusters)  # blocks that the GPU may hold, at most
        rows = -(-n1 // (layout.rows * min(clusters, -(-n1 // layout.rows))))
        own.append(Chains(rows + layout.rows + final_sums.terms(most) + 1, 2))
    return longest(*own, step_2_fused.STEP.column_chains(n1, n2))


STEP = BackwardStep(
    name="pipelined",
    summary="rows fetched ahead, sums travel meanwhile, long rows in clusters",
    run=_run,
    row_chains=_row_chains,
    simulated_seconds=lambda n1, n2: n1 * (0.006 + 30e-6 * n2) + 280e-6 * n2,
    column_chains=_column_chains,
)
