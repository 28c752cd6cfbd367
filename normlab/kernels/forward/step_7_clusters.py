"""Hold a long row in the shared memory of a cluster of blocks; short rows are done as in step 6.

Idea: each block of a cluster keeps a slice of the row in shared memory, and the blocks exchange their sums through
distributed shared memory, still with one barrier. The slice of the next row is fetched while this one is worked on.
Moves: x once, the output once, the parameters once per cluster. With few rows, x once per reader.
Bound by: the wait for the slowest block of a cluster, once per row.
Measured: see the README, `plan_for` and `spread_out`.
Next: rows of more than LONGEST columns, which are cut into pieces (`split_rows`).

What changed since step 6:
- Asynchronous copies bring the row to shared memory without registers: above 32 KB a row does not fit in the registers
  of a block that shares its multiprocessor.
- Blocks are persistent. A slot is free as soon as its vector is in registers; the next row's vector goes there.
- The slice's parameters lie in shared memory beside the row, loaded once for all rows.
- Many rows, at most one parameter (`one_row`): three blocks fit on a multiprocessor, and each cluster takes one row.
- Few rows (`spread`): smaller blocks on more multiprocessors share a row, because latency is most of the time.
- Few rows (`readers`): a cluster's multiprocessors share one path to memory, so several clusters read the same row.
  Each computes the statistics and writes a part of the output.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from normlab.engine import (
    accumulator,
    block_shared_bytes,
    cast,
    cluster_arrive_shared,
    cluster_rank,
    cluster_wait,
    commit_copies,
    compute_capability,
    copy_async,
    cuda,
    load_bits_into,
    load_vector_into,
    multiprocessors,
    resident_clusters,
    store,
    store_vector_from,
    wait_copies,
)
from normlab.kernels import split
from normlab.kernels.forward import split_rows, step_4_column_blocks
from normlab.kernels.forward.step_6_one_barrier import STEP as ROWS
from normlab.kernels.forward.step_6_one_barrier import launch_rows
from normlab.kernels.step import Chains, ForwardStep, longest
from normlab.stages.ahead import BITS
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.row_group import leave
from normlab.stages.vector import BYTES, Deal, widest
from normlab.stages.warp import warp_sum_butterfly

# Elements a vector: threads and vectors a thread, and the same of larger slices, for rows that a cluster does not hold.
SLICES = {8: ((512, 4), (512, 8), (1024, 8)), 4: ((256, 8), (512, 8), (1024, 8))}
NARROW = ((512, 8),)  # for narrower vectors: 64 registers, with 1024 threads, do not hold the addresses of eight
MAX_CLUSTER = 16
CLUSTERS_FROM = (9, 0)  # compute capability
STATIC_BYTES = 2304  # shared memory, at most: the exchange buffer, and what is gathered from other blocks
SPLIT_FROM = 2**15  # columns: a block's registers hold as many, of whatever alignment
LONGEST = 2**18  # columns: a cluster might hold more, but is alone on its multiprocessors (see `split_rows`)
KEPT = 2048  # vectors of a slice, at most, that registers hold for all passes
ROOMY = 256  # threads of a block, at most, of which three leave each as many registers as it needs for that
MANY = 16  # slices a multiprocessor: more than five times as many as it holds at once
SMALLEST_BLOCK = 64  # threads; a slice is eight blocks then, or four, and more would only have more to wait for


class Plan(NamedTuple):
    """deal: of a slice to threads. blocks: slices of a row. itemsize: bytes an element of x. The bits depend on these.

    spread: blocks that share a slice. parameter_bytes: of an element of weight and bias, where shared memory holds them
    too; else 0, and they come from global memory for every row. parameters: how many of both there are. readers:
    clusters that read the same row; each writes one of so many vectors of each thread. one_row: whether a cluster takes
    one row and ends, and the GPU starts the next one where there is room; else it takes rows in turn.
    """

    deal: Deal
    blocks: int
    itemsize: int
    spread: int = 1
    parameter_bytes: int = 0
    parameters: int = 2
    readers: int = 1
    one_row: bool = False

    @property
    def cluster(self) -> int:
        """Blocks that share a row, as one of its readers."""
        return self.blocks * self.spread

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.deal.threads // self.spread

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block: its parts of the row, and of weight and bias."""
        return self.deal.columns * (self.itemsize + self.parameters * self.parameter_bytes) // self.spread

    @property
    def kept(self) -> bool:
        """Whether a thread's registers hold its part of the row.

        Of 64 registers, two blocks of 512 threads', eight vectors and their addresses would spill, and four of a row
        that ends within its slice: which of them there are takes registers, too; of the 40 that three blocks leave,
        any four. And where shared memory does not hold the parameters, it has room for more blocks than so many
        registers allow.
        """
        threads, vectors, _, whole = self.deal
        room = (whole and not self.one_row) or threads <= ROOMY
        return threads * vectors <= KEPT and room and self.parameter_bytes > 0

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has registers for: three slices', or two where 40 a thread are too few."""
        light = self.deal.whole and not self.kept and not self.parameters * self.parameter_bytes
        slices = 3 if self.one_row or light else 2
        return self.spread * (slices if self.deal.threads <= 512 else 1)


def plan_for(n2: int, width: int, itemsize: int, capability: tuple[int, int]) -> Plan | None:
    """How long rows are dealt out; None: longer ones than LONGEST, or not with this vector, or on no such GPU.

    Slices of 32 KB: two of them, with two parameters, share a multiprocessor. Measured on an H200, n2 = 65536, as
    fractions of a copy, LayerNorm / RMSNorm, by threads and vectors a thread: bfloat16 (512, 4) 0.90 /
    0.92, (256, 8) 0.85 / 0.91, (256, 4) 0.89 / 0.93, (512, 8) 0.74 / 0.85; float32 (256, 8) 0.92 / 0.95, (512, 4) 0.84
    / 0.94, (256, 4) 0.65 / 0.91. With parameters from global memory, slices of 64 KB were best: 0.89 / 0.92, and 0.90 /
    0.93 in float32. In one run, without and with the part of the row `kept`: bfloat16 0.89 and 0.91 / 0.92 and 0.94,
    float32 0.91 and 0.93 / 0.95 and 0.94; n2 = 131072: bfloat16 0.73 and 0.84 / 0.92 and 0.94, float32 0.62 and 0.93 /
    0.85 and 0.91. Narrower vectors, LayerNorm, float32, microseconds: 1,024 rows of 65,537 took 2868 in slices of 1,024
    threads, which spilled, and 462 in pieces; of 65,535, in slices of 512, 390, and 449 in pieces, and one such row 9.0
    and 12.0; of 32,769, with almost half of the cluster idle, 367 and 237, and one 8.7 and 11.6. Depends on no n1, so
    that a row's bits are the same in every batch.
    """
    if width * itemsize < 4:  # no asynchronous copy is that narrow
        return None
    if n2 > LONGEST:
        return None
    room, most = block_shared_bytes(capability), _largest_cluster(capability)
    for threads, vectors in SLICES.get(width, NARROW):
        columns, blocks = threads * vectors * width, 1
        while blocks < most and blocks * columns < n2:
            blocks *= 2
        plan = Plan(Deal(threads, vectors, width, blocks * columns == n2), blocks, itemsize)
        if blocks * columns >= n2 and plan.shared_bytes + STATIC_BYTES <= room:
            return plan
    return None


def _largest_cluster(capability: tuple[int, int]) -> int:
    return MAX_CLUSTER if capability >= CLUSTERS_FROM else 1


def spread_out(plan: Plan, n1: int, parameter_bytes: int, processors: int, capability: tuple[int, int]) -> Plan:
    """The plan for n1 rows: where parameters lie, and how many blocks a slice has, clusters a row, and rows a cluster.

    Shared memory holds the parameters where a multiprocessor has room for two such blocks; or for one, if rows are few.
    (Clusters of blocks that are alone do not find room on all multiprocessors: not on an eighth.) Smaller blocks share
    few rows, as many as there are multiprocessors. A thread keeps its columns and a warp its number among the row's
    warps, so that no bit depends on n1. Multiprocessors that would be idle read a row, too. In one run, microseconds
    for one row and one, two or four readers: of 262,144 columns LayerNorm float32 10.8, 10.5, 10.1, bfloat16 9.7, 8.9,
    8.8, RMSNorm float32 8.9, 8.1, 7.7, bfloat16 7.4, 7.2, 7.0; of 131,072 LayerNorm float32 7.5, 6.9, 7.0; of 40,000
    no difference.

    With three slices a multiprocessor and a row for each cluster, more rows are on their way than with two slices and
    one row fetched ahead; but of few rows the last clusters find the GPU half empty. Fractions of a copy, RMSNorm, in
    turn and one row each, n2 = 65536: bfloat16 264 rows 0.956, 0.934, 528 0.961, 0.943, 792 0.929, 0.954, 2,048 0.932,
    0.973; float32 132 rows 0.954, 0.968, 264 0.953, 0.957, 2,048 0.937, 0.988; three slices and rows in turn: 0.919.
    n2 = 131072: bfloat16 264 rows 0.902, 0.914, 1,024 0.919, 0.963; float32 66 rows 0.892, 0.931. MANY lies between: at
    528 rows of bfloat16 it is too low, for longer ones too high.
    """
    held = plan._replace(parameter_bytes=parameter_bytes)
    neighbours = 1 if 8 * n1 * plan.blocks <= 7 * processors else 2
    fit = neighbours * (held.shared_bytes + STATIC_BYTES) <= block_shared_bytes(capability)
    if plan.deal.width * parameter_bytes < 4 or not fit:
        return plan
    most = min(processors // n1, _largest_cluster(capability))
    while 2 * held.cluster <= most and held.threads >= 2 * SMALLEST_BLOCK:
        held = held._replace(spread=2 * held.spread)
    while 2 * held.readers <= held.deal.vectors and 8 * n1 * held.cluster * 2 * held.readers <= 7 * processors:
        held = held._replace(readers=2 * held.readers)
    many = n1 * held.blocks >= MANY * processors
    return held._replace(one_row=many and held.kept and held.parameters < 2)


@cache
def build(dtype, plan: Plan):
    """Return the kernel for an accumulator dtype and a plan."""
    deal, blocks, itemsize, spread, parameter_bytes, _, readers, _ = plan
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    cluster, columns = plan.cluster, deal.columns
    warps, stretch = deal.warps // spread, span // spread
    beside = parameter_bytes > 0  # the parameters lie beside the row
    bits, parameter_bits = BITS[itemsize], BITS[parameter_bytes or itemsize]
    held_columns = columns // spread
    behind_row = held_columns * itemsize // (parameter_bytes or itemsize)  # the parameters' offset, in their elements
    kept = plan.kept
    elements, hop = (deal.elements, width) if kept else (width, 0)  # values in registers; their step per vector
    later = int(beside)  # groups of copies that may be in flight when the row must be there: the parameters'
    next_row = int(kept)  # and when the parameters must be there: the next row's
    size, merge = group_size(deal, blocks), group_merger(deal, blocks, spread)

    @cuda.jit(device=True)
    def fetch_row(held, offset, x, row, first):
        """Start to copy the thread's part of a row, as one group of copies; after the last row the group is empty."""
        if row < x.shape[0]:
            for v in range(vectors):
                if whole or first + v * span < x.shape[1]:
                    copy_async(held, offset + v * stretch, x, (row, first + v * span), width)
        commit_copies()

    @cuda.jit(device=True)
    def take(values, held, at, x):
        """Load a vector from shared memory, if registers do not hold the row."""
        if not kept:
            load_bits_into(values, 0, held, at, width, x)

    @cuda.jit(device=True)
    def writes(reader, v):
        """Return True if this reader of the row writes the thread's vector v."""
        return readers == 1 or v % readers == reader

    @cuda.jit(device=True)
    def fetch(parameters, at, array, column):
        """Start to copy a vector of weight or bias to shared memory."""
        if array is not None:
            copy_async(parameters, at, array, column, width)

    @cuda.jit(device=True)
    def load_parameter(target, parameters, at, array, column):
        """Load a vector of weight or bias from shared memory or, where it is not there, from global memory."""
        if array is not None:
            if beside:
                load_bits_into(target, 0, parameters, at, width, array)
            else:
                load_vector_into(target, 0, array, column, width)

    @cuda.jit(launch_bounds=(plan.threads, plan.resident))
    def forward_clusters(x, weight, bias, eps, factor, output, mean, invvar):
        # Prologue: which columns of which rows this thread has.
        exchange = cuda.shared.array((2, 1, 2, warps), dtype)  # two phases: see `stages.row_group`
        held = cuda.shared.array(0, bits, alignment=16)  # the block's part of the row
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)  # the same memory, in the parameters' bits
        values = cuda.local.array(elements, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n2 = x.shape[1]
        rank = 0
        if cluster > 1:
            rank = cluster_rank()
        reader = cuda.blockIdx.x // cluster % readers
        row = cuda.blockIdx.x // (cluster * readers)
        stride = cuda.gridDim.x // (cluster * readers)
        warp = cuda.threadIdx.x >> 5
        offset = cuda.threadIdx.x * width  # the offset of the thread's first vector in shared memory
        first = rank // spread * columns + rank % spread * stretch + offset  # and its column in the row
        gammas_at = behind_row + offset
        betas_at = gammas_at
        if weight is not None:
            betas_at += held_columns

        # Fetch the first row, then the parameters: the first pass needs only the row.
        fetch_row(held, offset, x, row, first)
        if beside:
            for v in range(vectors):
                if writes(reader, v) and (whole or first + v * span < n2):
                    fetch(parameters, gammas_at + v * stretch, weight, first + v * span)
                    fetch(parameters, betas_at + v * stretch, bias, first + v * span)

        phase = 0
        while row < x.shape[0]:
            # Wait for this row.
            following = row + stride
            if beside:
                commit_copies()  # the parameters' group in the first turn, an empty one later
            wait_copies(later)  # no barrier: each thread reads only its own copies
            if kept:  # to registers, once for three passes; its slots are then free for the next row
                for v in range(vectors):
                    if whole or first + v * span < n2:
                        load_bits_into(values, v * width, held, offset + v * stretch, width, x)
                fetch_row(held, offset, x, following, first)

            # First pass: the mean and then the squares of this warp's own values.
            center = cast(0, exchange)
            if mean is not None:
                total = cast(0, exchange)
                for v in range(vectors):
                    if whole or first + v * span < n2:
                        take(values, held, offset + v * stretch, x)
                        for k in range(width):
                            total += values[v * hop + k]
                total = warp_sum_butterfly(total)
                center = total / cast(max(size(n2, rank * warps + warp), 1), exchange)  # max: a warp past the row's end
                leave(exchange, phase, 0, 0, warp, total)
            square_sum = cast(0, exchange)
            for v in range(vectors):
                if whole or first + v * span < n2:
                    take(values, held, offset + v * stretch, x)
                    for k in range(width):
                        deviation = values[v * hop + k] - center
                        square_sum += deviation * deviation
            leave(exchange, phase, 0, 1, warp, warp_sum_butterfly(square_sum))

            # Exchange: one barrier for both sums.
            if cluster > 1:
                cluster_arrive_shared()  # orders stores to shared memory alone: the output's may still be in flight
                cluster_wait()  # all warps of the cluster have written their sums before a warp reads them
            else:
                cuda.syncthreads()  # all warps of the block have written their sums before a warp reads them
            center, square_sum = merge(exchange, phase, 0, n2, factor, mean)
            phase = 1 - phase  # other warps may still read these sums: the next row's go to the other half

            # Second pass: normalise and store.
            if beside:
                wait_copies(next_row)  # for the parameters, in the first turn
            scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)
            for v in range(vectors):
                column = first + v * span
                if whole or column < n2:
                    take(values, held, offset + v * stretch, x)
                    if not kept and following < x.shape[0]:  # last use of this slot: fetch the next row's vector
                        copy_async(held, offset + v * stretch, x, (following, column), width)
                    if writes(reader, v):
                        load_parameter(gammas, parameters, gammas_at + v * stretch, weight, column)
                        load_parameter(betas, parameters, betas_at + v * stretch, bias, column)
                        for k in range(width):
                            gamma = None if weight is None else gammas[k]
                            beta = None if bias is None else betas[k]
                            value = normalised_from_input(values[v * hop + k], center, scale)
                            values[v * hop + k] = affine(value, gamma, beta)
                        store_vector_from(output, (row, column), values, v * hop, width)
            if not kept:
                commit_copies()  # the next row's group
            if cuda.threadIdx.x == 0 and rank == 0 and reader == 0:  # one thread of all the row's blocks
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            row = following

        # Epilogue.
        if cluster > 1:
            cluster_arrive_shared()
            cluster_wait()  # a block's shared memory must live until the other blocks have read its sums

    return forward_clusters


def _run(launch, x, weight, bias, eps, output, mean, invvar, memory=None):
    n1, n2 = x.shape
    if launch_rows(launch, x, weight, bias, eps, output, mean, invvar):
        return
    plan = None
    if invvar.dtype.itemsize == 4:
        capability = compute_capability(x)
        plan = plan_for(n2, widest(n2, x, weight, bias, output), x.dtype.itemsize, capability)
    if plan is None:
        if memory is not None and invvar.dtype.itemsize == 4:
            split_rows.run(launch, memory, x, weight, bias, eps, output, mean, invvar)
        else:
            step_4_column_blocks.STEP.run(launch, x, weight, bias, eps, output, mean, invvar)
        return
    plan = plan._replace(parameters=(weight is not None) + (bias is not None))
    plan = spread_out(plan, n1, output.dtype.itemsize, multiprocessors(x), capability)
    kernel = build(accumulator(invvar), plan)
    args = x, weight, bias, eps, np.float32(1 / n2), output, mean, invvar
    how = {"shared_bytes": plan.shared_bytes, "cluster": plan.cluster}
    rows = n1
    if not plan.one_row:
        rows = min(n1, max(1, resident_clusters(kernel, plan.threads, *args, **how) // plan.readers))
    launch(kernel, rows * plan.readers * plan.cluster, plan.threads, *args, **how)


def _chains(n2: int) -> Chains:
    kinds = product((1, 2, 4, 8), (2, 4), ((8, 0), CLUSTERS_FROM))
    plans = [plan_for(n2, *kind) for kind in kinds if n2 % kind[0] == 0 and kind[0] * kind[1] <= BYTES]
    own = [Chains(plan.deal.elements + (plan.deal.warps * plan.blocks) // 32, 10) for plan in plans if plan is not None]
    if n2 > SPLIT_FROM:
        own.append(split.row_chains(n2))
    return longest(*own, ROWS.row_chains(n2))


STEP = ForwardStep(
    name="clusters",
    summary="long rows in the shared memory of a cluster, others as one_barrier",
    run=_run,
    row_chains=_chains,
    simulated_seconds=lambda n1, n2: n1 * (0.002 + 15e-6 * n2),
    statistics="grouped",
    scratch=True,
)
