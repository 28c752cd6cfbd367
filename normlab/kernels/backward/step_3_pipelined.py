"""Fetch rows ahead into shared memory, and make a row's second pass while the next row's sums travel.

Idea: asynchronous copies, which need no registers, bring the next rows while a persistent block works on this one. The
first pass makes a row's two sums and the columns' sums, the second pass makes grad_input. With a prefetch of one row,
the first pass over a row comes before the second pass over the previous one, so no warp waits for sums on their way.
Moves: dy and the saved array once (few rows twice, mostly from L2), grad_input once.
Bound by: memory. Long 16-bit rows of LayerNorm are bound by instructions and by waits for shared memory: the columns'
sums leave registers for 16 warps at most.
Measured: records norm_*; and `tables`. To recompute x̂ at n2 = 65536 takes a tenth more instructions than to save the
input. In bfloat16 it takes the same time on an H200. In float16 it takes 5 % longer, 0.81 of a copy instead of 0.85:
each widening is an instruction (HADD2.F32) of the pipe that also does the sums.
Tried: that float16 row in eight blocks whose 256 threads take two rows: 0.79; the same with a prefetch: 0.77.

What changed since step 2:
- Several row groups share a block, each with its own row, pipeline stages and barrier; short rows share a warp.
- A cluster divides a long row among its blocks. Its barrier has two halves: arrive, second pass, wait.
- Parameters lie in shared memory (`parameters`). Recomputing divides grad_weight by gamma once, in the last kernel.
- Few rows have blocks of their own for the columns (`beside`). Short rows come as tiles (`short_rows`).
- A cluster takes odd rows by whole vectors, alignment after alignment (`edges`). Longer rows are cut (`split_rows`).
- A residual's gradient, or a gate, comes through the same stages (`gated`).
"""

from dataclasses import replace
from functools import cache

import numpy as np

from normlab.engine import accumulator
from normlab.kernels import split
from normlab.kernels.backward import final_sums, split_rows, step_1_apex, step_2_fused
from normlab.kernels.backward.layouts import KINDS, alignments_for, layout_for
from normlab.kernels.backward.operands import OPERANDS
from normlab.kernels.backward.pipelined import beside
from normlab.kernels.backward.pipelined.kernel import build
from normlab.kernels.backward.pipelined.kind import Kind, kind_of
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.short_rows import plan as short_rows
from normlab.kernels.plan import (
    FLOAT32_ALONE,
    Chains,
    Device,
    PersistentPlan,
    Plan,
    Refusal,
    Work,
    exchanged_row_chains_of,
    longest,
)
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.step import BackwardStep
from normlab.kernels.words import counted
from normlab.stages.vector import BYTES, WARP, widest

H200 = Device.named("h200")
PARTIAL_SUMS = "part_weight", "part_bias"
THIRDS = "grad_residual", "gate"  # arrays of rows beside the saved array and grad_output: one of these, or none
PARAMETERS = "grad_weight", "grad_bias"
MOST_EACH = 7  # clusters per sample, at most, where those that fit the GPU at once would leave much of it idle
BUSY = 0.9  # of the clusters that the GPU holds, averaged over rounds: take the fewest per sample that reach it
# Up to so many rows (with a bias: True) and bytes per matrix, other blocks of the launch make the columns' sums. With
# more, they are slower: RMSNorm 1,024 x 256 takes 5.3 us instead of 4.8, LayerNorm 512 x 16,384 of float32 55 instead
# of 35. On an H100, in us:
#
#     LayerNorm    rows x columns           MiB    other blocks    the same blocks
#     bfloat16      64 x 64,136, output       8         32               43
#                  128 x 64,136, output      16         61               53
#     odd rows      23 x 91,707               4         28               34
#                   46 x 91,707               8         50               41
#     float32       24 x 14,560, output       1         11               15
#                   24 x 42,832, output       4         22               18
FEW_ROWS = {True: 1024, False: 768}
# Of rows that begin in the middle of a vector, which those other blocks load by elements. 1,000 rows of 1,001 columns
# take 15.4 us with them, and 12.0 in the same blocks (LayerNorm of bfloat16, H200).
FEW_ROWS_AT_OFFSETS = 640
FEW_BYTES = 2**23
FEW_BYTES_AT_OFFSETS = 2**22  # of rows that begin in the middle of a vector
FEW_BYTES_ALONE = 3 * 2**19  # of 32 bits per element, in blocks that are alone on their multiprocessor
# (rows at most, threads per block), else MOST_THREADS. A block's warps share the rows whose columns they add up, so
# more rows want more warps: 500 rows of 768 columns take 6.8 us with 256 threads, 6.0 with 512 (RMSNorm of bfloat16,
# H200). Blocks that hold long rows find less room on a multiprocessor if they are larger: 300 rows of 2,048 columns of
# float32 take 6.9 us with 256 threads, 8.9 with 512.
FEW_THREADS, FEW_THREADS_OF_LONG = ((64, 128), (256, 256)), ((64, 128), (512, 256))
MOST_THREADS, LONG_BYTES = 512, 6144  # bytes of a row
FEW_WHY = (
    "so few rows have blocks of their own for the columns' sums, and no second kernel: 128 rows of 7,168 columns take "
    "6.5 us instead of 12.0 on an H200 (LayerNorm, bfloat16, in a CUDA graph)"
)


def plan(problem: BackwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan, if shared memory of a block or a cluster holds rows, and asynchronous copies can bring them."""
    if problem.in_float64:
        return FLOAT32_ALONE
    n1, n2 = problem.shape
    width = widest(n2, *problem.matrices)
    together = min(width, widest(n2, problem.grad_input, problem.weight, problem.bias, *problem.gradients))
    sizes = problem.saved.dtype.itemsize, problem.grad_output.dtype.itemsize, problem.grad_input.dtype.itemsize
    third = problem.gate if problem.grad_residual is None else problem.grad_residual
    third_bytes = 0 if third is None else third.dtype.itemsize
    if third_bytes not in (0, problem.saved.dtype.itemsize):
        return Refusal("a third array shares the saved array's stages, but its elements have another size")
    full, chosen = BYTES // max(sizes), None
    alignments = alignments_for(n2, sizes, problem.bias is not None, problem.memory_efficient)
    plain = third_bytes == 0 and problem.row_map is None and not problem.sampled  # `edges` does nothing else
    if alignments > 1 and plain and widest(full, *problem.matrices) == full:  # the matrices begin with a vector
        kind = kind_of(problem, full, together=1, anywhere=True)
        chosen = layout_for(n2, full, sizes, kind, device, alignments)
    if chosen is None:
        kind = kind_of(problem, width, together)
        chosen = layout_for(n2, width, sizes, kind, device, 1, third_bytes)
    if chosen is None:
        return Refusal(
            f"no table has rows of {n2:,} columns in vectors of {counted(width, 'element')}, or their stages need more "
            f"than the {device.shared_bytes:,} bytes of shared memory of a block"
        )
    layout = chosen.layout
    options = accumulator(problem.invvar), layout, kind
    values = (("factor", np.float32(1 / n2)), *final_sums.absent_partial_sums(problem))

    padded = layout.alignments > 1

    def planned(work: tuple[Work, ...], columns: Chains, parts: int, why: str = chosen.why) -> Plan:
        scratch = final_sums.partial_sums_for(problem, parts, padded) if parts else ()
        rows = exchanged_row_chains_of(layout.thread_map, layout.blocks)
        return Plan("pipelined", work, why, rows, columns, scratch=scratch, values=values, layout=layout)

    if few(layout, kind, n1, n2 * max(sizes), device):
        few_rows, apart = few_rows_layout(layout, n1), kind._replace(beside=True)
        work = _work((options[0], few_rows, apart), beside.grid_of(few_rows, n1, n2), few_rows.blocks, (None, None))
        made = planned((work,), beside.chains_of(few_rows, n1, n2), 0, f"{chosen.why}; {FEW_WHY}")
        return replace(made, layout=few_rows)

    # Persistent clusters: as many as find a place at once, which only the driver knows.
    def persistent(resident: int) -> Plan:
        if layout.prefetch and layout.blocks == 1 and layout.thread_map.threads >= WARP:
            # Row groups of whole warps leave no gaps in which a second block could work: it would only add partial
            # sums. Row groups of lanes do (LayerNorm of 64 bfloat16: 0.90 of a copy instead of 0.82).
            resident = min(resident, device.multiprocessors)
        samples = problem.samples
        each = clusters_for(layout, n1 // samples, resident, samples)
        lines = lines_of(layout, n1 // samples, each)
        work = _work(options, each * samples * layout.blocks, layout.blocks, PARTIAL_SUMS)
        sums = final_sums.sums_of(problem, lines, padded, kind.divisor_offset) if lines * samples > 1 else ()
        return planned((work, *sums), column_chains_of(n1 // samples, layout, each, lines), lines * samples)

    return PersistentPlan(
        _work(options, layout.blocks, layout.blocks, PARTIAL_SUMS),
        final_sums.partial_sums_for(problem, 1, padded),
        values,
        persistent,
    )


def plan_by_length(problem: BackwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan of `short_rows` for short rows, else the pipelined kernel's."""
    short = short_rows.plan(problem, device)
    return plan(problem, device) if isinstance(short, Refusal) else short


def _work(options: tuple, grid: int, cluster: int, parts: tuple) -> Work:
    """Return the kernel that `build(*options)` makes; parts: the names of its partial sums, None where it has none."""
    _, layout, kind, *_ = options
    arguments = *OPERANDS, "factor", "row_sums", *THIRDS, "grad_input", "grad_gate", *PARAMETERS, *parts
    block = layout.thread_map.threads, layout.rows
    shared_bytes = beside.shared_bytes_of(layout, kind) if kind.beside else layout.shared_bytes(kind.parameter_bytes)
    return Work(build, options, grid, block, arguments, shared_bytes, cluster)


def clusters_for(layout: PipelineLayout, n1: int, resident: int, samples: int = 1) -> int:
    """Return how many clusters take n1 rows of each sample.

    Each alignment gets the same number of clusters, unless so many places for clusters would then be left over that the
    alignments have to share clusters.

    resident: how many clusters the GPU holds at a time, of all samples together.
    """
    alignments = layout.alignments  # 1 if there are several samples
    most = -(-n1 // (alignments * layout.rows))  # clusters per alignment: more would have no rows
    if n1 < alignments:
        return n1
    each = resident // (alignments * samples)
    enough = 8 * each * alignments * samples >= 7 * resident
    if samples > 1 and not enough:
        # A few idle multiprocessors are better than more clusters per sample, each of which leaves partial sums.
        rounds = {more: -(-more * samples // resident) for more in range(1, MOST_EACH + 1)}
        each = max(rounds, key=lambda more: (min(BUSY * resident, more * samples / rounds[more]), -more))
    elif not enough:
        # An H100 holds 15 clusters of eight blocks. One cluster for each of 8 alignments would leave half of it idle.
        # So the 15 clusters share the alignments (`prologue`), and leave 22 lines of partial sums. Tried: 7 clusters
        # for each alignment, in four rounds. They left 56 lines, and LayerNorm of 50,257 bfloat16 took 302 us, not 187.
        return min(resident, most * alignments)
    return alignments * min(most, each)


def lines_of(layout: PipelineLayout, n1: int, clusters: int) -> int:
    """Return how many lines of partial sums the clusters leave: each cluster leaves one per alignment that it takes."""
    alike = n1 < layout.alignments or clusters % layout.alignments == 0
    return clusters if alike else clusters + layout.alignments - 1


def column_chains_of(n1: int, layout: PipelineLayout, clusters: int, parts: int) -> Chains:
    """Return the chains over n1 rows, which `clusters` clusters add up to at most `parts` lines of partial sums."""
    turns = -(-n1 // (layout.rows * layout.alignments))  # of an alignment's rows, if one cluster took all of them
    rows = min(turns, -(-turns * layout.alignments // max(clusters, 1)))
    # a row group's rows, the block's row groups, the final sums, and a division by gamma
    return Chains(rows + layout.rows + final_sums.terms(parts) + 1, 2)


def few(layout: PipelineLayout, kind: Kind, n1: int, row_bytes: int, device: Device) -> bool:
    """Return True if rows are so few that other blocks of the launch make the parameters' gradients."""
    rows = FEW_ROWS[kind.biased] if layout.alignments == 1 else FEW_ROWS_AT_OFFSETS
    if kind.sampled or not (kind.weighted or kind.biased) or n1 > rows:
        return False
    held = beside.shared_bytes_of(few_rows_layout(layout, n1), kind)
    most = FEW_BYTES
    if layout.alignments > 1:
        most = FEW_BYTES_AT_OFFSETS
    elif layout.grad_bytes == 4 and 2 * held > device.shared_bytes:
        most = FEW_BYTES_ALONE
    return held <= device.shared_bytes and n1 * row_bytes <= most


def few_rows_layout(layout: PipelineLayout, n1: int) -> PipelineLayout:
    """Return the layout whose blocks take one row per row group; each row has the threads, and the bits, as before."""
    table = FEW_THREADS
    if layout.blocks * layout.thread_map.columns * max(layout.saved_bytes, layout.grad_bytes) > LONG_BYTES:
        table = FEW_THREADS_OF_LONG
    # A warp loads fewer rows at once if they begin in the middle of a vector, so more warps have to share them: 500
    # rows of 1,001 columns take 12.5 us with 256 threads, 9.1 with 512 (RMSNorm of bfloat16, H200).
    rows = n1 if layout.alignments == 1 else 2 * n1
    threads = next((threads for most, threads in table if rows <= most), MOST_THREADS)
    return layout._replace(rows=-(-threads // layout.thread_map.threads), stages=1, prefetch=0, once=True)


@cache
def _layouts(n2: int) -> list[PipelineLayout]:
    """Return every layout that some dtype or alignment can lead to at this n2; the error bound must cover the worst."""
    found = []
    for sizes in ((2, 2, 2), (4, 4, 4), (2, 4, 2), (4, 2, 4), (2, 2, 4), (4, 4, 2)):
        full = BYTES // max(sizes)
        for kind in KINDS:
            alignments = alignments_for(n2, sizes, kind.biased, kind.memory_efficient)
            ways = [(width, 1) for width in (1, 2, 4, 8) if n2 % width == 0 and width <= full]
            for width, several in [*ways, *[(full, alignments)] * (alignments > 1)]:
                chosen = layout_for(n2, width, sizes, kind, H200, several)
                if chosen is not None and chosen.layout not in found:
                    found.append(chosen.layout)
    return found


def _row_chains(n2: int) -> Chains:
    own = [exchanged_row_chains_of(layout.thread_map, layout.blocks) for layout in _layouts(n2)]
    own += map(short_rows.row_chains_of, short_rows.layouts(n2))
    if _may_be_split(n2):
        own.append(split.row_chains(n2))
    return longest(*own, step_2_fused.STEP.row_chains(n2))


def _may_be_split(n2: int) -> bool:
    """Return True if rows of n2 of some dtype and alignment are too long for step 2, this step's fallback."""
    return step_2_fused.thread_map_for(n2, 1) is None


def _column_chains(n1: int, n2: int) -> Chains:
    own = short_rows.column_chains(n1, n2)
    for layout in _layouts(n2):
        clusters = final_sums.CLUSTERED_PROCESSORS // layout.blocks
        fewest, most = (clusters_for(layout, n1, resident) for resident in (clusters, 8 * clusters))  # on any GPU
        own.append(column_chains_of(n1, layout, fewest, lines_of(layout, n1, most)))
        if n1 <= FEW_ROWS[True]:
            own.append(beside.chains_of(few_rows_layout(layout, n1), n1, n2))
    if _may_be_split(n2):
        own.append(split_rows.column_chains(n1, n2))
    return longest(*own, step_2_fused.STEP.column_chains(n1, n2))


STEP = BackwardStep(
    name="pipelined",
    summary="rows fetched ahead, sums travel meanwhile, long rows in clusters",
    ways=(plan_by_length, step_2_fused.plan, split_rows.plan, step_1_apex.plan),
    row_chains=_row_chains,
    column_chains=_column_chains,
)
