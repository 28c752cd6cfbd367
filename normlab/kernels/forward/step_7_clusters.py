"""Hold a long row in the shared memory of a cluster of blocks; short rows are done as in step 6.

Idea: each block of a cluster keeps a slice of the row in shared memory, and the blocks exchange their sums through
distributed shared memory, still with one barrier. A block fetches its slice of the next row while it works on this row.
Moves: x once, the output once, the parameters once per cluster. With few rows several clusters read the same x
(`readers` below).
Bound by: the wait for the slowest block of a cluster, once per row.
Measured: records norm_*_h200, `normlab.kernels.forward.tables.SLICES`, and `layouts.EDGES_WHY`.
Next: rows of more than LONGEST columns, which are cut into pieces (`split_rows`).

What changed since step 6:
- Asynchronous copies bring the row to shared memory without registers: a row of more than 16,384 columns does not fit
  in the registers of a block that shares its multiprocessor. Registers hold it for all passes where they suffice
  (`kept`).
- Blocks are persistent: a cluster takes row after row. Each thread reads only the vectors that it copied itself. A
  vector's slot in shared memory is free after the thread's last load from it, and the next row's vector goes there.
- The slice's parameters lie in shared memory beside the row, loaded once for all rows.
- Many rows (`one_row`): three blocks fit on a multiprocessor, and each cluster takes one row.
- Few rows: a slice is divided among smaller blocks on more multiprocessors (`spread`), and several clusters read the
  same row, because a cluster's multiprocessors share one path to memory (`readers`).
- Rows that begin in the middle of a vector (`edges`): threads have whole vectors of memory.
"""

from itertools import product
from typing import Any

import numpy as np

from normlab.engine import accumulator
from normlab.kernels import split
from normlab.kernels.forward import layouts, short_rows, split_rows, step_4_column_blocks, step_6_one_barrier
from normlab.kernels.forward.clusters.kernel import build
from normlab.kernels.forward.layouts import ClusterLayout
from normlab.kernels.forward.operands import FACTOR_OPERANDS
from normlab.kernels.halves import FORWARD, whole_vectors_pay
from normlab.kernels.plan import (
    FLOAT32_ALONE,
    Chains,
    Chosen,
    Device,
    PersistentPlan,
    Plan,
    Refusal,
    Work,
    exchanged_row_chains_of,
    longest,
)
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.kernels.words import counted
from normlab.stages.vector import BYTES, shifts_alike, widest


def plan(problem: ForwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan, if a cluster holds a row."""
    _, n2 = problem.shape
    if problem.in_float64:
        return FLOAT32_ALONE
    width, itemsize = widest(n2, *problem.matrices), problem.x.dtype.itemsize
    chosen = layouts.slices_for(n2, width, itemsize, device)
    if chosen is None:
        return Refusal(
            f"no cluster holds {n2:,} columns in vectors of {counted(width * itemsize, 'byte')}: "
            f"it has up to {counted(device.largest_cluster, 'block')}, and rows up to {layouts.LONGEST:,} columns"
        )
    return _planned(problem, device, chosen)


def plan_by_length(problem: ForwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan of rows that are faster in clusters although registers might hold them, else step 6's.

    They are those that begin in the middle of a vector (`clusters.edges`), among them some that vectors of half the
    width would do (`kernels.halves`), and those that are longer than the tables'.
    """
    n2, itemsize = problem.shape[1], problem.x.dtype.itemsize
    widest_bytes, rms = max(itemsize, problem.output.dtype.itemsize), problem.mean is None
    full, width, chosen = BYTES // widest_bytes, widest(n2, *problem.matrices), None
    # Vectors of half the width would do: whole ones, which begin anywhere, pay in the lengths that were measured.
    if 2 * width == full:
        anywhere = whole_vectors_pay(n2, FORWARD.get((widest_bytes, rms), ()))
    else:
        anywhere = width < full and n2 >= layouts.EDGES_FROM[widest_bytes, rms]
    if not anywhere:
        if width == full and n2 > layouts.BLOCK_UP_TO and device.largest_cluster > 1:
            chosen = layouts.slices_for(n2, width, itemsize, device)
    # The kernel stores each vector where it lies in x, so x and the output must begin at the same place in a vector.
    elif shifts_alike(full, problem.x, problem.output):
        chosen = layouts.edges_for(n2, full, itemsize, device, rms)
    if chosen is not None and not problem.in_float64:
        found = _planned(problem, device, chosen)
        if not isinstance(found, Refusal):
            return found
    return step_6_one_barrier.plan(problem, device)


def _planned(problem: ForwardProblem, device: Device, chosen: Chosen) -> Plan | PersistentPlan | Refusal:
    """Return the plan for a layout that `slices_for` or `edges_for` has chosen."""
    n1, n2 = problem.shape
    layout = chosen.layout._replace(parameters=(problem.weight is not None) + (problem.bias is not None))
    # So far nothing depends on n1. What `spread_out` chooses by it changes no bit of a row.
    parameters = problem.output if problem.weight is None else problem.weight  # gamma may be wider (`kernels.add_norm`)
    places = layouts.places_of(n2, layout.thread_map.width)
    layout = layouts.spread_out(layout, n1, parameters.dtype.itemsize, device, places)
    if layout.anywhere and layout.parameters and not layout.parameters_held:
        return Refusal("shared memory has no room for the parameters, which rows that begin anywhere need there")
    dtype, values = accumulator(problem.invvar), (("factor", np.float32(1 / n2)),)

    def planned(rows: int) -> Plan:
        work = _work(dtype, layout, rows)
        chains = exchanged_row_chains_of(layout.thread_map, layout.blocks)
        return Plan("clusters", (work,), chosen.why, chains, values=values, layout=layout)

    if layout.one_row:  # a cluster per row: the GPU starts the next one where one ends
        return planned(n1)

    # Persistent clusters: as many as find a place at once, which only the driver knows.
    def persistent(resident: int) -> Plan:
        return planned(layouts.clusters_for(n1, layout, resident // layout.readers, places))

    # This grid is not launched: the driver is asked about the compiled kernel alone.
    return PersistentPlan(_work(dtype, layout, 1), (), values, persistent)


def _work(dtype: Any, layout: ClusterLayout, rows: int) -> Work:
    """Return the kernel with a grid that has `rows` rows at a time: `readers` clusters for each."""
    grid = rows * layout.readers * layout.cluster
    return Work(build, (dtype, layout), grid, layout.threads, FACTOR_OPERANDS, layout.shared_bytes, layout.cluster)


def _chains(n2: int) -> Chains:
    """Return the longest chains of all layouts for n2 columns, whatever the dtype, the alignment and the GPU."""
    devices = Device.named("a100"), Device.named("h200")
    # Widths and bytes per element, of a GPU without clusters and of one with them.
    kinds = product((1, 2, 4, 8), (2, 4), devices)
    found = [layouts.slices_for(n2, *kind) for kind in kinds if n2 % kind[0] == 0 and kind[0] * kind[1] <= BYTES]
    anywhere = product(((8, 2), (4, 2), (4, 4)), devices, (False, True))
    found += [layouts.edges_for(n2, *kind, device, rms) for kind, device, rms in anywhere]
    held = [chosen.layout for chosen in found if chosen is not None]
    own = [exchanged_row_chains_of(layout.thread_map, layout.blocks) for layout in held]
    if n2 > layouts.SPLIT_FROM:
        own.append(split.row_chains(n2))
    return longest(*own, step_6_one_barrier.STEP.row_chains(n2))


STEP = ForwardStep(
    name="clusters",
    summary="long rows in the shared memory of a cluster, others as one_barrier",
    ways=(short_rows.plan, plan_by_length, plan, split_rows.plan, step_4_column_blocks.plan),
    row_chains=_chains,
    statistics="grouped",
)
