"""Adapt the kernel of step 6 to where rows begin and where their parameters are.

    aligned    every row begins at a vector (`stages.vector`); each thread loads its parameters itself
    sampled    aligned, with parameters per sample, which a block copies to shared memory (`stages.sampled`)
    shifted    rows may begin in the middle of a vector; a block shifts the parameters once (`stages.shifted`)

What one of them does not need is a function that does nothing.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda, flat, shift_of
from normlab.kernels.forward.layouts import RegisterLayout
from normlab.stages.gate import Gate
from normlab.stages.output import row_parameter_loader, row_writer
from normlab.stages.row_map import RowMap, place_finder
from normlab.stages.sampled import SampledMap, rows_finder, sample_stager
from normlab.stages.shifted import ShiftedMap, outside_filler, parameter_stager, shifted_row_loader, shifted_row_writer
from normlab.stages.vector import row_loader


class Extras(NamedTuple):
    """What a kernel does beside a norm of rows; its fields are constants of the kernel.

    offset: of the weight (`stages.output`). row_map, gate_map: where the rows of x and of the gate lie. gating: where a
    gate goes, or None.
    sampled: parameters are a row per sample (`stages.sampled`); None where all rows have the same.
    """

    offset: float = 0.0
    row_map: RowMap | None = None
    gating: Gate | None = None
    gate_map: RowMap | None = None
    sampled: SampledMap | None = None


PLAIN = Extras()


class Parameters(NamedTuple):
    """How weight and bias reach a thread: device functions, each of which may do nothing.

    stage(weight, bias, output, row): start to bring those of the block's rows to shared memory, before the first row.
    stage_beside(weight, bias, output, row): as `stage`, but while the row is on its way: one wait for both.
    load_parameters(gammas, betas, weight, bias, first, n2): load the thread's to registers, beside the row.
    arrive(): wait for what `stage` has started.
    """

    stage: Any
    stage_beside: Any
    load_parameters: Any
    arrive: Any


class Phases(NamedTuple):
    """The parts of the kernel that depend on where rows begin: device functions.

    rows_of(output, weight): (begin, end, step) of the rows that the block's first row group takes, one after another,
    and the end of the rows that the block has. apart: the distance to the row of the next row group.
    extent_of(x, row, n2): the row's length n2, or (elements of its first vector before it, n2), as of `group_size`.
    load_row(values, x, row, extent, first), write_row(values, (gammas, betas), x, output, (row, first), weight, bias,
    center, scale): of the thread's elements of a row.
    fill_outside(values, extent, first, value): elements that are no columns of the row get this value.
    parameters_held: elements of gamma and of beta that a thread has beside the row; at least 1, as an array needs.
    """

    rows_of: Any
    extent_of: Any
    load_row: Any
    fill_outside: Any
    write_row: Any
    parameters: Parameters
    apart: int = 1
    parameters_held: int = 1


@cuda.jit(device=True)
def stage_nothing(weight, bias, output, row):
    """Do nothing: threads read the parameters from global memory, or the block stages them at another time."""


@cuda.jit(device=True)
def load_nothing(gammas, betas, weight, bias, first, n2):
    """Do nothing: parameters come after the sums, vector by vector."""


@cuda.jit(device=True)
def arrived():
    """Do nothing: threads read the parameters from global memory, or a barrier has told them that they are there."""


def phases_for(layout: RegisterLayout, dtype: Any, extras: Extras) -> Phases:
    """Return the phases of a layout's kernel, for an accumulator dtype."""
    if layout.shifted is not None:
        return shifted_phases(layout, layout.shifted, dtype)
    return (sampled_phases if extras.sampled else aligned_phases)(layout, dtype, extras)


@cache
def aligned_phases(layout: RegisterLayout, dtype: Any, extras: Extras, load_parameters: Any = None) -> Phases:
    """Return the phases of rows that begin at a vector. load_parameters: as of `row_writer`."""
    thread_map, rows = layout.thread_map, layout.rows
    load_aligned, place_of = row_loader(thread_map), place_finder(extras.row_map)
    write_aligned = row_writer(thread_map, dtype, extras.offset, load_parameters, layout.early)
    load, held = load_nothing, 1
    if layout.early:
        load, held = row_parameter_loader(thread_map, extras.offset), thread_map.elements

    @cuda.jit(device=True)
    def rows_of(output, weight):
        row = cuda.blockIdx.x * rows
        return row, row + 1, 1, output.shape[0]  # one row: blocks that stay for further rows were slower

    @cuda.jit(device=True)
    def extent_of(x, row, n2):
        return n2

    @cuda.jit(device=True)
    def load_row(values, x, row, extent, first):
        load_aligned(values, x, place_of(row), first)

    @cuda.jit(device=True)
    def fill_outside(values, extent, first, value):
        """Do nothing: an aligned row begins and ends between two vectors."""

    @cuda.jit(device=True)
    def write_row(values, parameters, x, output, index, weight, bias, center, scale):
        write_aligned(values, parameters, output, index, weight, bias, center, scale)

    parameters = Parameters(stage_nothing, stage_nothing, load, arrived)
    return Phases(rows_of, extent_of, load_row, fill_outside, write_row, parameters, parameters_held=held)


@cache
def sampled_phases(layout: RegisterLayout, dtype: Any, extras: Extras) -> Phases:
    """Return the phases of rows whose block stages the parameters of their sample."""
    stage, arrive, load_parameters = sample_stager(extras.sampled, dtype, extras.offset)
    find_rows = rows_finder(layout.rows)

    @cuda.jit(device=True)
    def rows_of(output, weight):
        # The end is the sample's: rows of the next sample have other parameters.
        first, end = find_rows(output, weight)
        return first, first + 1, 1, end

    # Sampled rows begin at a vector, too: only where rows are and where parameters come from differs.
    aligned = aligned_phases(layout, dtype, extras, load_parameters)
    return aligned._replace(rows_of=rows_of, parameters=aligned.parameters._replace(stage=stage, arrive=arrive))


@cache
def shifted_phases(layout: RegisterLayout, shifted: ShiftedMap, dtype: Any) -> Phases:
    """Return the phases of rows that may begin anywhere. A block's rows begin alike: it stages parameters once."""
    period, rows = shifted.thread_map.width, layout.rows  # every `period`-th row begins alike
    load_row, fill_outside = shifted_row_loader(shifted), outside_filler(shifted)
    write_shifted, together = shifted_row_writer(shifted, dtype), rows * period
    stage_all, one_warp, early = parameter_stager(shifted, rows), layout.thread_map.warps == 1, layout.early

    @cuda.jit(device=True)
    def rows_of(output, weight):
        block, n1 = cuda.blockIdx.x, output.shape[0]
        # `period` neighbouring blocks take neighbouring rows, and each the rows at its own place in a vector: row
        # `begin`, then every `period`-th one.
        begin = block // period * together + block % period
        return begin, n1, cuda.gridDim.x * rows, n1  # the grid: a multiple of period

    @cuda.jit(device=True)
    def extent_of(x, row, n2):
        # The same for all rows of a block, because their distances are multiples of `period`.
        return shift_of(flat(x), row * n2, period), n2

    @cuda.jit(device=True)
    def stage(weight, bias, output, row):
        stage_all(weight, bias, output, row)
        if one_warp:  # rows of several warps have the exchange's barrier, which comes next
            cuda.syncthreads()  # the block's parameters are in shared memory before a thread reads them

    @cuda.jit(device=True)
    def write_row(values, parameters, x, output, index, weight, bias, center, scale):
        write_shifted(values, x, output, index, weight, bias, center, scale)

    # early: few rows, which take one turn
    first, beside = (stage_nothing, stage) if early else (stage, stage_nothing)
    parameters = Parameters(first, beside, load_nothing, arrived)
    return Phases(rows_of, extent_of, load_row, fill_outside, write_row, parameters, apart=period)
