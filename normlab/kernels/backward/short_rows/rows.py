"""Make the two passes over rows that lie in shared memory, by the lanes that own them."""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cast, cuda, load, load_bits_into, reciprocal, store_bits_from
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.tiles import TileLayout, row_finder
from normlab.stages.gradient import corrected, leave_means
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.unroll import repeated
from normlab.stages.warp import sums_of_lanes


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
    """The block's shared memory in four dtypes; offsets tell the arrays apart (`TileLayout`)."""

    saved: Any
    grads: Any
    results: Any
    floats: Any  # statistics, and in the end the columns' sums


class Place(NamedTuple):
    """Where a lane works. A team is one warp, or all warps of a block, that take a tile together."""

    warp: Any  # in the block
    team: Any  # in the block
    thread: Any  # in the team
    turn: Any  # the first one of this warp: a team's warps divide the turns of a tile among them
    lane: Any  # in the warp
    row: Any  # the tile's row that the lane group takes first
    column: Any  # of the lane's first vector of each row
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
    vectors, width, span, _ = layout.thread_map.loop
    n2, weighted, biased, recomputes = layout.n2, kind.weighted, kind.biased, kind.memory_efficient

    @cuda.jit(device=True)
    def load_parameters(parameters, weight, bias, eps, first):
        gammas, clamped, inverses, betas = parameters
        for v in range(vectors):
            for j in range(width):
                k, column = v * width + j, first + v * span + j
                gammas[k] = cast(0, gammas)
                betas[k] = cast(0, gammas)
                if column < n2:
                    if weighted:
                        gammas[k] = load(weight, column)
                    if biased:
                        betas[k] = load(bias, column)
                if recomputes and weighted:  # once per kernel: the clamped gamma and its reciprocal
                    clamped[k] = clamp_by_magnitude(gammas[k], eps)
                    inverses[k] = reciprocal(clamped[k])

    return load_parameters


@cache
def rows_taker(layout: TileLayout, kind: Kind, dtype: Any, count: int) -> Any:
    """Return the device function `take_rows(turn, operands, memory, place, stage, results, top, parameters, sums)`.

    The lane group adds its rows number `turn`, … of the tile to the columns' sums, and leaves their grad_input in
    `memory.results`, from `results` on: `count` rows, whose sums are added up over the lanes together. top: the tile's
    first row. A row of n1 or more consists of zeros, which add nothing.
    """
    thread_map, n2, rows, tile_elements = layout.thread_map, layout.n2, layout.rows, layout.tile
    (vectors, width, span, _), filled, elements = thread_map.loop, thread_map.filled, thread_map.elements
    grads_at, row_of = layout.grads_at, row_finder(layout)
    statistics_at, statistics = layout.statistics_at, layout.statistics
    add_up_row, make_gradient = row_adder(layout, kind), gradient_maker(layout, kind)
    centered, rms = kind.centered, kind.rms
    held, totals_held = count * elements, count if rms else 2 * count
    reduce_scatter, all_gather, _, _ = sums_of_lanes(layout.lanes, totals_held)

    @cuda.jit(device=True)
    def load_row(k, values, grads, scales, operands, memory, place, cell, numbers):
        at = cell + row_of(k) * n2
        for v in range(vectors):
            own, there = k * elements + v * width, at + v * span
            if v < filled or place.column + v * span < n2:
                load_bits_into(values, own, memory.saved, there, width, operands.saved)
                load_bits_into(grads, own, memory.grads, grads_at + there, width, operands.grad_output)
            else:
                for j in range(width):
                    values[own + j] = cast(0, values)
                    grads[own + j] = cast(0, values)
        scales[k] = load(memory.floats, numbers + row_of(k))
        if centered:
            center = load(memory.floats, numbers + row_of(k) + rows)
            # Once for both passes, which then find x - mean in `values`.
            for j in range(elements):
                values[k * elements + j] -= center

    @cuda.jit(device=True)
    def first_pass(k, totals, values, grads, scales, parameters, sums):
        # The lane's part of the row's two sums, and its terms of the columns' sums.
        sum_gx, sum_g = add_up_row(k * elements, values, grads, scales[k], parameters, sums)
        totals[k] = sum_gx
        if not rms:
            totals[count + k] = sum_g

    @cuda.jit(device=True)
    def second_pass(k, totals, values, grads, scales, parameters, operands, memory, place, result, top):
        row = top + row_of(k)
        sum_gx = totals[k]
        mean_g = cast(0, values)
        if not rms:
            mean_g = totals[count + k] * operands.factor
        # The last tile may have fewer rows. Lane groups without a row have added zeros, but own no row's statistics.
        if row < operands.saved.shape[0]:
            sum_gx = corrected(sum_gx, operands.row_sums, row)
        mean_gx = sum_gx * operands.factor
        if place.column == 0 and row < operands.saved.shape[0]:
            leave_means(operands.row_sums, row, mean_g, mean_gx)

        make_gradient(k * elements, values, grads, scales[k], parameters, mean_gx, mean_g)
        # To shared memory, in the order of the tile: the team stores it to global memory as one line of whole vectors.
        for v in range(vectors):
            if v < filled or place.column + v * span < n2:
                there = result + row_of(k) * n2 + v * span
                own = k * elements + v * width
                store_bits_from(memory.results, there, grads, own, width, operands.grad_input)

    load_rows, first_passes, second_passes = (repeated(one, count) for one in (load_row, first_pass, second_pass))

    @cuda.jit(device=True)
    def take_rows(turn, operands, memory, place, stage, results, top, parameters, sums):
        values, grads = cuda.local.array(held, dtype), cuda.local.array(held, dtype)
        scales, totals = cuda.local.array(count, dtype), cuda.local.array(totals_held, dtype)
        row = place.row + row_of(turn)
        cell = row * n2 + place.column
        numbers = statistics_at + stage * rows * statistics + row
        load_rows(0, values, grads, scales, operands, memory, place, stage * tile_elements + cell, numbers)
        first_passes(0, totals, values, grads, scales, parameters, sums)
        reduce_scatter(totals, place.lane)
        all_gather(totals, place.lane)
        own = results + cell
        second_passes(0, totals, values, grads, scales, parameters, operands, memory, place, own, top + row)

    return take_rows


@cache
def row_adder(layout: TileLayout, kind: Kind) -> Any:
    """Return the device function `add_up_row(at, values, grads, scale, parameters, sums) -> (sum of g x̂, sum of g)`.

    It adds up a lane's elements of a row, values[at], …: x - mean, or y. It leaves gamma x̂ there instead of y.
    """
    elements, rms, recomputes = layout.thread_map.elements, kind.rms, kind.memory_efficient
    weighted, biased = kind.weighted, kind.biased

    @cuda.jit(device=True)
    def add_up_row(at, values, grads, scale, parameters, sums):
        sum_gx = cast(0, values)
        sum_g = cast(0, values)
        for k in range(elements):
            grad = grads[at + k]
            if recomputes and biased:
                values[at + k] -= parameters.betas[k]
            product = grad * values[at + k]
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
    """Return the device function `make_gradient(at, values, grads, scale, parameters, mean_gx, mean_g)`.

    It writes grad_input of a lane's elements of a row to grads[at], …:

        grad_input = g invvar - (x̂ slope + shift)        slope = mean(g x̂) invvar, shift = mean(g) invvar
    """
    elements, rms, recomputes, weighted = layout.thread_map.elements, kind.rms, kind.memory_efficient, kind.weighted

    @cuda.jit(device=True)
    def make_gradient(at, values, grads, scale, parameters, mean_gx, mean_g):
        slope = mean_gx * scale
        if not recomputes:  # it is multiplied by x - mean, which is x̂ / invvar
            slope *= scale
        shift = mean_g * scale
        for k in range(elements):
            value = values[at + k]
            gradient = grads[at + k]
            if weighted:
                if recomputes:  # x̂ and g take the clamped gamma, as in apex
                    value *= parameters.inverses[k]
                    gradient *= parameters.clamped[k]
                else:
                    gradient *= parameters.gammas[k]
            subtracted = value * slope
            if not rms:
                subtracted += shift
            grads[at + k] = gradient * scale - subtracted

    return make_gradient
