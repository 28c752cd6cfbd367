"""Make the two passes over a row that lies in shared memory, by the lanes that own it."""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cast, cuda, load, load_bits_into, reciprocal, store_vector_from
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.tiles import TileLayout
from normlab.stages.gradient import corrected, leave_means
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.warp import lanes_sum


class Operands(NamedTuple):
    """The kernel's arrays in global memory, and its scalars. factor: 1 / n2."""

    grad_output: Any
    saved: Any
    mean: Any
    invvar: Any
    weight: Any
    eps: Any
    row_sums: Any
    grad_input: Any
    factor: Any


class Memory(NamedTuple):
    """The block's shared memory in three dtypes; offsets tell them apart (`TileLayout`)."""

    saved: Any
    grads: Any
    floats: Any  # statistics and results


class Place(NamedTuple):
    """Where a lane works. A team is one warp, or all warps of a block, that take a tile together."""

    warp: Any  # in the block
    team: Any  # in the block
    thread: Any  # in the team
    turn: Any  # the first one of this warp: a team's warps divide the turns of a tile among them
    group: Any  # the lane group in the warp
    column: Any  # the lane's first column of each row
    cell: Any  # the lane's first element of its group's first row, counted from the tile's first element
    whole: Any  # how many tiles have all of their rows


class Parameters(NamedTuple):
    """A lane's columns of the parameters, in registers. clamped, inverses: gamma as in x̂, and 1 / that."""

    gammas: Any
    clamped: Any
    inverses: Any
    betas: Any


@cache
def parameters_loader(layout: TileLayout, kind: Kind) -> Any:
    """Return the device function `load_parameters(parameters, weight, bias, eps, first)`: a lane's, from column first.

    Columns past the row's end have zeros. What a kind does not need the compiler drops.
    """
    elements, n2 = layout.elements, layout.n2
    weighted, biased, recomputes = kind.weighted, kind.biased, kind.memory_efficient

    @cuda.jit(device=True)
    def load_parameters(parameters, weight, bias, eps, first):
        gammas, clamped, inverses, betas = parameters
        for k in range(elements):
            gammas[k] = cast(0, gammas)
            betas[k] = cast(0, gammas)
            if first + k < n2:
                if weighted:
                    gammas[k] = load(weight, first + k)
                if biased:
                    betas[k] = load(bias, first + k)
            if recomputes and weighted:  # once per kernel: the clamped gamma and its reciprocal
                clamped[k] = clamp_by_magnitude(gammas[k], eps)
                inverses[k] = reciprocal(clamped[k])

    return load_parameters


@cache
def row_taker(layout: TileLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `take_row(turn, operands, memory, place, stage, top, parameters, sums)`.

    The lane group adds its row number `turn` of the tile to the columns' sums, and leaves its grad_input in shared
    memory. top: the tile's first row. A row of n1 or more consists of zeros, which add nothing.
    """
    vectors, width, filled, own, elements = layout.vectors, layout.width, layout.filled, layout.elements, layout.tile
    n2, rows, groups, grads_at, results_at = layout.n2, layout.rows, layout.groups, layout.grads_at, layout.results_at
    statistics_at, statistics = layout.statistics_at, layout.statistics
    add_up_row, make_gradient = row_adder(layout, kind), gradient_maker(layout, kind)
    sum_of_lanes, centered, rms = lanes_sum(layout.lanes), kind.centered, kind.rms

    @cuda.jit(device=True)
    def take_row(turn, operands, memory, place, stage, top, parameters, sums):
        values = cuda.local.array(own, dtype)
        grads = cuda.local.array(own, dtype)
        further = turn * groups * n2  # a constant distance from the lane group's first row
        there = stage * elements + place.cell + further
        for v in range(vectors):
            if v < filled or place.column + v * width < n2:
                load_bits_into(values, v * width, memory.saved, there + v * width, width, operands.saved)
                at = grads_at + there + v * width
                load_bits_into(grads, v * width, memory.grads, at, width, operands.grad_output)
            else:
                for k in range(width):
                    values[v * width + k] = cast(0, values)
                    grads[v * width + k] = cast(0, values)
        numbers = statistics_at + stage * rows * statistics + place.group + turn * groups
        scale = load(memory.floats, numbers)
        if centered:
            center = load(memory.floats, numbers + rows)
            # Once for both passes, which then find x - mean in `values`.
            for k in range(own):
                values[k] -= center

        # First pass: the row's two sums, and its terms of the columns' sums.
        sum_gx, sum_g = add_up_row(values, grads, scale, parameters, sums)
        sum_gx = sum_of_lanes(sum_gx)
        mean_g = cast(0, values)
        if not rms:
            mean_g = sum_of_lanes(sum_g) * operands.factor
        row = top + turn * groups + place.group
        # The last tile may have fewer rows. Lane groups without a row have added zeros, but own no row's statistics.
        if row < operands.saved.shape[0]:
            sum_gx = corrected(sum_gx, operands.row_sums, row)
        mean_gx = sum_gx * operands.factor
        if place.column == 0 and row < operands.saved.shape[0]:
            leave_means(operands.row_sums, row, mean_g, mean_gx)

        # Second pass: grad_input.
        make_gradient(values, grads, scale, parameters, mean_gx, mean_g)
        # To shared memory, in the order of the tile: the team stores it to global memory as one line of whole vectors.
        result = results_at + place.team * elements + place.cell + further
        for v in range(vectors):
            if v < filled or place.column + v * width < n2:
                store_vector_from(memory.floats, result + v * width, grads, v * width, width)

    return take_row


@cache
def row_adder(layout: TileLayout, kind: Kind) -> Any:
    """Return the device function `add_up_row(values, grads, scale, parameters, sums) -> (sum of g x̂, sum of g)`.

    It adds up a lane's elements of a row. values: x - mean, or y. It leaves gamma x̂ there instead of y.
    """
    elements, rms, recomputes = layout.elements, kind.rms, kind.memory_efficient
    weighted, biased = kind.weighted, kind.biased

    @cuda.jit(device=True)
    def add_up_row(values, grads, scale, parameters, sums):
        sum_gx = cast(0, values)
        sum_g = cast(0, values)
        for k in range(elements):
            grad = grads[k]
            if recomputes and biased:
                values[k] -= parameters.betas[k]
            product = grad * values[k]
            if recomputes:  # dy gamma x̂ is g x̂: gamma cancels; the column's sum is divided by gamma at the end
                sum_gx += product
                if weighted:
                    sums.weight[k] += product
            elif weighted:
                sum_gx += product * parameters.gammas[k]
                sums.weight[k] += product * scale
            else:
                sum_gx += product
            if biased:
                sums.bias[k] += grad
            if not rms:  # gamma as it is, not clamped
                sum_g += grad * parameters.gammas[k] if weighted else grad
        if not recomputes:
            sum_gx *= scale  # the products above are with x - mean, which is x̂ / invvar
        return sum_gx, sum_g

    return add_up_row


@cache
def gradient_maker(layout: TileLayout, kind: Kind) -> Any:
    """Return the device function `make_gradient(values, grads, scale, parameters, mean_gx, mean_g)`.

    It writes grad_input of a lane's elements of a row to `grads`:

        grad_input = g invvar - (x̂ slope + shift)        slope = mean(g x̂) invvar, shift = mean(g) invvar
    """
    elements, rms, recomputes, weighted = layout.elements, kind.rms, kind.memory_efficient, kind.weighted

    @cuda.jit(device=True)
    def make_gradient(values, grads, scale, parameters, mean_gx, mean_g):
        slope = mean_gx * scale
        if not recomputes:  # it is multiplied by x - mean, which is x̂ / invvar
            slope *= scale
        shift = mean_g * scale
        for k in range(elements):
            value = values[k]
            gradient = grads[k]
            if weighted:
                if recomputes:  # x̂ and g take the clamped gamma, as in apex
                    value *= parameters.inverses[k]
                    gradient *= parameters.clamped[k]
                else:
                    gradient *= parameters.gammas[k]
            subtracted = value * slope
            if not rms:
                subtracted += shift
            grads[k] = gradient * scale - subtracted

    return make_gradient
