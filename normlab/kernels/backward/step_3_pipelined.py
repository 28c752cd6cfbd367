"""Rows fetched ahead into shared memory, and a row's second pass made while the next row's sums travel.

Persistent as step 2. Each block has a ring of rows in shared memory, filled by asynchronous copies that take no
registers: while one row is worked on, the next ones arrive. A row takes two passes: one for its two sums (and for the
columns' sums), one for grad_input. With a lag of one, the first pass over a row comes before the second pass over the
row before it, so that nobody waits for sums on their way. Several teams of threads work on a row each, and where
they have it to themselves, none waits for another one before all rows are done: each has a barrier of its own. A short
row's team is some of a warp's lanes, which need none. Rows longer than a block's share are dealt to the blocks of a
cluster, whose barrier comes in two halves: arrive, do the second pass, wait. The parameters lie in shared memory
(`parameters`). When recomputing, the sums for grad_weight are divided by gamma once, in the end. No second
kernel follows where there are so few rows that one block does them; or eight blocks, a cluster, which add up their
columns' sums through each other's shared memory; or, of long rows, one cluster, beside which another one makes the
parameters' gradients (`apart`).
Moves: dy and the saved array once (twice where two clusters share the work), grad_input once.
Bound by: memory; long 16-bit rows of LayerNorm by instructions and by waiting for shared memory, for the columns' sums
leave registers for no more than 16 warps. Recomputing takes a tenth more instructions (profile_h200, bfloat16 65536:
1.29e8 for 1.16e8; 63 % of the issue slots busy, 73 % of the memory): 4 % behind there, in float16 5 %, whose
widening is an instruction (HADD2.F32) for the pipe that the sums go through, too. Tried in float16 at 65536, where
saving the input gives 0.85: parameters widened beforehand 0.79, only 1 / gamma so 0.80, as they are 0.78, and by four
blocks of 512 threads in place of eight of twice 256 0.82.
Measured: see the README and the entries below.
"""

import itertools
from typing import NamedTuple

import numpy as np

from normlab.engine import accumulator, block_shared_bytes, compute_capability, multiprocessors, resident_clusters
from normlab.kernels.backward import final_sums, step_2_fused
from normlab.kernels.backward.columns import GATHERED
from normlab.kernels.backward.kind import Kind, kind_of
from normlab.kernels.backward.pipeline import build
from normlab.kernels.backward.ring import Layout
from normlab.kernels.step import BackwardProblem, BackwardStep, Chains, longest
from normlab.stages.vector import WARP, dealt, whole_warps, widest

CLUSTERS_FROM = (9, 0)  # compute capability


class Entry(NamedTuple):
    """For rows of up to `limit` vectors. slice: vectors of a block (0: all of the row's). threads: of a row in a block
    (0: a quarter of the vectors; fewer than 32: lanes of a warp). rows: of a block.
    """

    limit: int
    slice: int
    threads: int
    rows: int
    stages: int
    lag: int


# The first entry that a GPU can do is taken. Measured on an H200 with all parameters, as fractions of a copy, to choose
# among layouts: where it says "cold" as the bench does, else call after call, so that L2 still held a little of the
# inputs. What the kernels of today reach is in the records (README): between 8 hundredths more and 7 less.
# 16 bits, eight elements a vector. Tried, too: teams that wait for themselves alone at an mbarrier each, which could do
# it in clusters as well: 0.82 where `team_sync` gives 0.93 (4096), and 0.79 for 0.85 (16384). More than three stages
# change nothing, half as many warps cost a tenth: long rows wait for instructions, not for memory.
SHORT = (  # LayerNorm / recomputing / RMSNorm
    Entry(8, 0, 8, 32, 3, 0),  # 64: 0.87 / 0.84 / 0.95; 4 lanes: 0.75 / 0.80 / 0.87; a whole warp: 0.2
    Entry(16, 0, 16, 16, 3, 0),  # 128: 0.89 / 0.86 / 0.96; 8 lanes: 0.82 / 0.83 / 0.89
    Entry(32, 0, 16, 32, 5, 1),  # 256: 0.91 / 0.90 / 0.94; a whole warp: 0.90 / 0.87 / 0.97
    Entry(48, 0, 16, 16, 4, 1),  # 384: 0.92 / 0.91 / 0.98; a whole warp: 0.88 / 0.84 / 1.00
    Entry(96, 0, 32, 8, 3, 1),  # 768: 0.94 / 0.93 / 0.98; LayerNorm by 4 rows: 0.83
    Entry(128, 0, 64, 8, 3, 1),  # 1024: 0.94 / 0.94 / 0.95; 32 threads: 0.93 / 0.93
)
MIDDLE = Entry(768, 0, 0, 2, 3, 1)  # 4096: 0.92 / 0.94 / 0.93, 5120: 0.95 / 0.94; half the vectors a thread: 0.90
ONE_BLOCK = Entry(1024, 0, 0, 1, 3, 1)  # 8192: 0.87 / - / 0.90
LONGEST = Entry(32768, 2048, 512, 1, 2, 0)
SAVED = (  # LayerNorm
    *SHORT,
    Entry(256, 0, 64, 4, 3, 1),  # 2048: 0.96; 128 threads: 0.93
    MIDDLE,
    Entry(4096, 512, 128, 4, 3, 1),  # 8192: 0.91, 16384: 0.89; two rows, half as many warps: 0.82
    ONE_BLOCK,
    Entry(16384, 1024, 256, 2, 3, 1),  # 65536: 0.78; no lag, two stages: 0.77; 128 threads: 0.63
    LONGEST,
)
RECOMPUTED = (  # RMSNorm, or LayerNorm without a bias
    *SHORT,
    Entry(256, 0, 128, 4, 3, 1),  # 2048: 0.94; 64 threads: 0.93
    MIDDLE,
    Entry(1024, 512, 128, 4, 3, 1),  # 8192: 0.93
    ONE_BLOCK,
    Entry(4096, 512, 128, 4, 2, 0),  # 16384: 0.93; 256 threads: 0.90
    Entry(16384, 1024, 256, 2, 2, 0),  # 65536: 0.92; 128 threads: 0.88
    LONGEST,
)
RECOMPUTED_WITH_BIAS = (  # bfloat16 / float16, cold
    *SHORT[:4],
    Entry(96, 0, 32, 4, 2, 0),  # 768: 0.96 / 0.95; eight rows and a lag: 0.93 / 0.91
    Entry(128, 0, 64, 8, 3, 1),  # 1024: 0.95 / 0.96
    Entry(256, 0, 128, 4, 3, 1),  # 2048: 0.96 / 0.96; 64 threads: 0.95
    Entry(384, 0, 0, 2, 3, 1),
    Entry(512, 0, 256, 2, 3, 1),  # 4096: 0.96 / 0.96; 128 threads: 0.94 / 0.92
    Entry(640, 0, 128, 2, 3, 1),  # 5120: 0.93 / 0.94; 160 threads: 0.94 / 0.92
    MIDDLE,
    Entry(1024, 0, 512, 1, 4, 1),  # 8192: 0.95 / 0.93; two rows, no lag: 0.93 / 0.94; by two blocks: 0.95 / 0.91
    Entry(2048, 0, 512, 1, 2, 0),  # 16384: 0.93 / 0.95; by two blocks: 0.95 / 0.91
    LONGEST,  # 65536: 0.83 / 0.82; 256 threads, two rows: 0.83 / 0.78
    Entry(1024, 0, 0, 2, 2, 0),  # widened, as what follows
    Entry(16384, 1024, 256, 2, 2, 0),
)
HALVES = SAVED, SAVED, RECOMPUTED, RECOMPUTED_WITH_BIAS  # by `Kind.parameters`
# 32 bits, four elements a vector. LayerNorm / RMSNorm:
SINGLES = (
    Entry(16, 0, 16, 32, 3, 0),  # 64: 0.99 / 1.01
    Entry(32, 0, 16, 32, 3, 0),  # 128: 0.98 / 1.01
    Entry(64, 0, 32, 16, 3, 0),  # 256: 0.99 / 1.01
    Entry(96, 0, 32, 8, 4, 1),  # 384: 0.99 / 1.01
    Entry(192, 0, 64, 4, 3, 1),  # 768: 0.99 / 1.00
    Entry(256, 0, 64, 3, 3, 1),  # 1024: 0.99 / 1.01, cold; four rows, no lag: 0.93 / 0.93
    Entry(512, 0, 160, 2, 3, 1),  # 2048: 1.02 / 1.00, cold; 128 threads: 0.97; no lag: 0.93 / 0.96
    Entry(1024, 0, 256, 1, 3, 0),  # 4096: 0.98 / 0.99; a lag of 1: 0.97 / 0.95
    Entry(1280, 0, 160, 2, 2, 0),  # 5120: 0.99 / 1.02; 320 threads: 0.98 / 0.97
    Entry(2048, 0, 256, 1, 3, 0),  # 8192: 0.96 / 0.95; a lag of 1: 0.93 / 0.94
    Entry(32768, 2048, 256, 1, 3, 1),  # 16384: 0.97 / 0.94, 65536: 0.94 / 0.93
    Entry(65536, 4096, 512, 1, 1, 0),
)
MAX_ELEMENTS = 40  # of a thread: the columns' sums, in registers


def layout_for(
    n2: int,
    width: int,
    saved_bytes: int,
    grad_bytes: int,
    input_bytes: int,
    kind: Kind,
    capability: tuple[int, int],
) -> Layout | None:
    """How the work of a kind is laid out, for vectors of `width` elements.

    The bytes are those of an element of the saved array, of grad_output and of grad_input.

    None: the kernel does not do it. Depends on no n1, so that a row's bits are the same in every batch.
    """
    if width * min(saved_bytes, grad_bytes) < 4:  # no asynchronous copy is that narrow
        return None
    table = HALVES[kind.parameters] if max(saved_bytes, grad_bytes, input_bytes) == 2 else SINGLES
    room = block_shared_bytes(capability)
    for entry in table:
        if entry.limit * width < n2 or (entry.slice and capability < CLUSTERS_FROM):
            continue
        for layout in _fewer(entry, n2, width, saved_bytes, grad_bytes):
            shared_bytes = layout.shared_bytes(kind.parameter_bytes) + layout.board_bytes
            if layout.deal.elements <= MAX_ELEMENTS and shared_bytes <= room:
                return layout
    return None


def _fewer(entry: Entry, n2: int, width: int, saved_bytes: int, grad_bytes: int) -> list[Layout]:
    """Layouts after an entry, for a ring that may be too large for a block: with fewer rows, then with fewer stages.

    A cluster has a power of two of blocks, as few as hold a row.
    """
    count = -(-n2 // width)
    if entry.slice:
        blocks = 1 << (-(-count // entry.slice) - 1).bit_length()
        deal = dealt(entry.slice * width, width, entry.threads)
        deal = deal._replace(whole=blocks * deal.columns == n2)
    else:
        blocks, deal = 1, dealt(n2, width, entry.threads or whole_warps(-(-count // 4)))
    some = [rows for rows in range(entry.rows, 0, -1) if rows * deal.threads % WARP == 0]
    ways = [(rows, entry.stages, entry.lag) for rows in some] + [(some[-1], 2, 0)]
    if blocks > 1:  # no stage to fetch ahead into, but an earlier step reads a row as long as that again and again
        ways.append((1, 1, 0))
    return [Layout(deal, rows, blocks, stages, lag, saved_bytes, grad_bytes) for rows, stages, lag in ways]


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
        step_2_fused.STEP.run(launch, memory, problem)
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
        how["cluster"] = GATHERED  # those without rows still add up columns
        launch(build(dtype, layout, kind, gathered=True), GATHERED, block, *args, None, None, **how)
        return
    no_parts = final_sums.like_parts(problem)
    if apart(layout, kind, n1):
        launch(build(dtype, layout, kind, apart=True), 2 * layout.blocks, block, *args, *no_parts, **how)
        return
    kernel = build(dtype, layout, kind)
    resident = resident_clusters(kernel, block, *args, *no_parts, **how)
    clusters = min(-(-n1 // layout.rows), resident)
    if layout.lag and layout.blocks == 1:  # whose teams leave no gaps: a second block only adds partial sums
        clusters = min(clusters, multiprocessors(problem.saved))
    parts = final_sums.parts_for(memory, problem, clusters)
    launch(kernel, clusters * layout.blocks, block, *args, *parts, **how)
    if clusters > 1:
        final_sums.launch_sums(launch, dtype, parts, problem)


def gathers(layout: Layout, kind: Kind, n1: int, capability: tuple[int, int]) -> bool:
    """Are so few rows done by one cluster of blocks, which add up their columns' sums among themselves?

    A launch and the memory for partial sums less, which an eager call of few rows waits for on the host.
    """
    few = layout.rows < n1 <= GATHERED * layout.rows
    return few and layout.blocks == 1 and (kind.weighted or kind.biased) and capability >= CLUSTERS_FROM


def apart(layout: Layout, kind: Kind, n1: int) -> bool:
    """Is there one turn of a cluster's rows, for which the parameters' gradients are left to a second cluster?

    A cluster's blocks lie in one part of the GPU (a GPC), through which no more goes than its share of the bandwidth:
    one row of 262,144 float32 took 1.45 us for every 1e6 bytes, and LayerNorm's backward 16.0 us on an H200; with the
    second cluster, though both read dy and the saved array, 14.7 (RMSNorm 13.2 and 12.2).
    """
    return layout.blocks > 1 and n1 <= layout.rows and (kind.weighted or kind.biased)


_ALL = [Kind(False, *has, 1) for has in itertools.product(*[(False, True)] * 4)]  # type: ignore[call-arg]
KINDS = list({(kind.parameters, kind.parameter_bytes): kind for kind in _ALL}.values())  # as far as layouts differ


def _layouts(n2: int) -> list[Layout]:
    """Those of all dtypes and alignments, for bounds that hold for all."""
    found = []
    for sizes in ((2, 2, 2), (4, 4, 4), (2, 4, 2), (4, 2, 4), (2, 2, 4)):  # (4, 4, 2) are laid out as all 4
        for width in (1, 2, 4, 8):
            if n2 % width == 0 and width * max(sizes) <= 16:
                for kind in KINDS:
                    layout = layout_for(n2, width, *sizes, kind, (9, 0))
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
