"""Fetch rows ahead into shared memory, and make a row's second pass while the next row's sums travel.

Idea: asynchronous copies, which need no registers, bring the next rows while a persistent block works on this one. The
first pass makes a row's two sums and the columns' sums, the second pass makes grad_input. With a lag of one row, the
first pass over a row comes before the second pass over the previous one, so no warp waits for sums on their way.
Moves: dy and the saved array once (twice where two clusters share the work), grad_input once.
Bound by: memory. Long 16-bit rows of LayerNorm are bound by instructions and by waits for shared memory: the columns'
sums leave registers for 16 warps at most.
Measured: see the README and `layouts`. Recomputing at n2 = 65536 in bfloat16 on an H200 takes a tenth more instructions
(1.28e8 instead of 1.16e8) and the same time; in float16 it takes 5 % longer, because each widening is an instruction
(HADD2.F32) of the pipe that also does the sums. Tried there in float16, where recomputing reaches 0.81 of a copy and
saving the input 0.85: two rows by 256 threads in eight blocks 0.79, the same with a lag 0.77.

What changed since step 2:
- Several row groups share a block, each with its own row, pipeline stages and barrier; short rows share a warp.
- Long rows are divided among the blocks of a cluster, whose barrier has two halves: arrive, second pass, wait.
- The parameters lie in shared memory (`parameters`). When recomputing, the sums for grad_weight are divided by gamma
  once, at the end.
- Few rows need no second kernel: one block adds up its own columns' sums, a cluster of eight blocks through distributed
  shared memory (`gathers`), and for one long row a second cluster makes the parameters' gradients (`apart`).
- Rows that no cluster holds, or whose copies are too narrow, are cut into pieces (`split_rows`).
"""

import numpy as np

from normlab.engine import accumulator, compute_capability, multiprocessors, resident_clusters
from normlab.kernels import split
from normlab.kernels.backward import final_sums, split_rows, step_2_fused
from normlab.kernels.backward.columns import GATHERED
from normlab.kernels.backward.kind import Kind, kind_of
from normlab.kernels.backward.layouts import CLUSTERS_FROM, KINDS, layout_for
from normlab.kernels.backward.pipeline import build
from normlab.kernels.backward.ring import Layout
from normlab.kernels.step import BackwardProblem, BackwardStep, Chains, longest
from normlab.stages.vector import WARP, widest

APART_FROM = 2**15  # columns: shorter rows pass in less time than a second cluster's start is worth


def _run(launch, memory, problem: BackwardProblem):
    n1, n2 = problem.saved.shape
    weight, bias = problem.weight, problem.bias
    width = widest(n2, *problem.matrices)
    together = min(width, widest(n2, problem.grad_input, weight, bias, problem.grad_weight, problem.grad_bias))
    kind = kind_of(problem, width, together)
    sizes = problem.saved.dtype.itemsize, problem.grad_output.dtype.itemsize, problem.grad_input.dtype.itemsize
    layout = None
    if problem.invvar.dtype.itemsize == 4:
        layout = layout_for(n2, width, *sizes, kind, compute_capability(problem.saved))
    if layout is None:
        too_long = problem.invvar.dtype.itemsize == 4 and step_2_fused.deal_of(problem) is None
        (split_rows if too_long else step_2_fused.STEP).run(launch, memory, problem)
        return
    dtype = accumulator(problem.invvar)
    block = layout.deal.threads, layout.rows
    how = {"shared_bytes": layout.shared_bytes(kind.parameter_bytes), "cluster": layout.blocks}
    args = (
        *problem.operands,
        np.float32(1 / n2),
        problem.row_sums,
        problem.grad_input,
        problem.grad_weight,
        problem.grad_bias,
    )
    if gathers(layout, kind, n1, compute_capability(problem.saved)):
        how["cluster"] = GATHERED  # blocks without rows still add up columns
        launch(build(dtype, layout, kind, gathered=True), GATHERED, block, *args, None, None, **how)
        return
    no_parts = final_sums.like_parts(problem)
    if apart(layout, kind, n1):
        launch(build(dtype, layout, kind, apart=True), 2 * layout.blocks, block, *args, *no_parts, **how)
        return
    kernel = build(dtype, layout, kind)
    resident = resident_clusters(kernel, block, *args, *no_parts, **how)
    clusters = min(-(-n1 // layout.rows), resident)
    if layout.lag and layout.blocks == 1 and layout.deal.threads >= WARP:
        # Teams of whole warps leave no gaps: a second block only adds partial sums. Teams of lanes do (LayerNorm of 64
        # bfloat16: 0.90 of a copy, where one block a multiprocessor has 0.82).
        clusters = min(clusters, multiprocessors(problem.saved))
    parts = final_sums.parts_for(memory, problem, clusters)
    launch(kernel, clusters * layout.blocks, block, *args, *parts, **how)
    if clusters > 1:
        final_sums.launch_sums(launch, dtype, parts, problem)


def gathers(layout: Layout, kind: Kind, n1: int, capability: tuple[int, int]) -> bool:
    """Return True if one cluster of blocks does so few rows and adds up their columns' sums itself.

    It saves a launch and the memory for partial sums, for both of which an eager call of few rows waits on the host.
    """
    few = layout.rows < n1 <= GATHERED * layout.rows
    return few and layout.blocks == 1 and (kind.weighted or kind.biased) and capability >= CLUSTERS_FROM


def apart(layout: Layout, kind: Kind, n1: int) -> bool:
    """Return True if one turn of one cluster does all rows, so that a second cluster makes the parameters' gradients.

    A cluster's blocks lie in one part of the GPU (a GPC), which has only its share of the bandwidth. On an H200 one row
    of 262,144 float32 took 16.0 us in LayerNorm's backward with one cluster. With two it took 14.7 us, although both
    read dy and the saved array. RMSNorm took 13.2 and 12.2 us.
    """
    long = layout.blocks > 1 and layout.blocks * layout.deal.columns >= APART_FROM
    return long and n1 <= layout.rows and (kind.weighted or kind.biased)


def _layouts(n2: int) -> list[Layout]:
    """Return every layout that some dtype or alignment can lead to at this n2; the error bound must cover the worst."""
    found = []
    for sizes in ((2, 2, 2), (4, 4, 4), (2, 4, 2), (4, 2, 4), (2, 2, 4), (4, 4, 2)):
        for width in (1, 2, 4, 8):
            if n2 % width == 0 and width * max(sizes) <= 16:
                for kind in KINDS:
                    layout = layout_for(n2, width, *sizes, kind, (9, 0))
                    if layout is not None and layout not in found:
                        found.append(layout)
    return found


def _row_chains(n2: int) -> Chains:
    own = [Chains(layout.deal.elements + layout.deal.warps * layout.blocks // 32, 10) for layout in _layouts(n2)]
    if _may_be_split(n2):
        own.append(split.row_chains(n2))
    return longest(*own, step_2_fused.STEP.row_chains(n2))


def _may_be_split(n2: int) -> bool:
    """Return True if rows of n2 of some dtype and alignment are too long for step 2, this step's fallback."""
    return step_2_fused.deal_for(n2, 1) is None


def _column_chains(n1: int, n2: int) -> Chains:
    own = []
    for layout in _layouts(n2):
        clusters = final_sums.CLUSTERED_PROCESSORS // layout.blocks
        most = min(-(-n1 // layout.rows), 8 * clusters)  # blocks that the GPU may hold, at most
        rows = -(-n1 // (layout.rows * min(clusters, -(-n1 // layout.rows))))
        own.append(Chains(rows + layout.rows + final_sums.terms(most) + 1, 2))
    if _may_be_split(n2):
        own.append(split_rows.column_chains(n1, n2))
    return longest(*own, step_2_fused.STEP.column_chains(n1, n2))


STEP = BackwardStep(
    name="pipelined",
    summary="rows fetched ahead, sums travel meanwhile, long rows in clusters",
    run=_run,
    row_chains=_row_chains,
    simulated_seconds=lambda n1, n2: n1 * (0.006 + 30e-6 * n2) + 280e-6 * n2,
    column_chains=_column_chains,
)
