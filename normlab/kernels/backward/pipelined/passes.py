"""Do one thread's share of the pipelined backward: fetch a row, and make the two passes over it.

    first pass    adds dy x̂ and dy to the columns' sums in registers, and g x̂ and g to the row's sums
    second pass   grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, once the row's sums are known; the residual's
                  gradient is added where grad_input is stored

Both passes read the row from shared memory, so it takes no registers in between. Every thread reads only the elements
that it fetched itself: it waits for its own copies and needs no barrier.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, copy_async, cuda, load, load_bits_into
from normlab.kernels.backward.pipelined import edges, gated
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.parameters import readers
from normlab.stages.row_map import place_finder
from normlab.stages.unroll import repeated
from normlab.stages.warp import lanes_sum

MOST_UNROLLED = 384  # threads per block up to which registers allow all vectors at once; above it, two vectors


@cache
def fetcher(layout: PipelineLayout, kind: Kind) -> Any:
    """Return the device function `fetch(operands, memory, row, at, share)`.

    It starts the copies of the thread's share of row `row`, or none if row >= share.end. at: the share's offset in the
    pipeline stages.
    """
    thread_map, grads_at, thirds_at = layout.thread_map, layout.grads_at, layout.thirds_at
    vectors, width, span, _ = thread_map.loop
    filled = layout.filled
    third, has_gate = layout.third_bytes > 0, kind.gating is not None
    place_of, gate_place_of = place_finder(kind.row_map), place_finder(kind.gate_map)

    @cuda.jit(device=True)
    def fetch(operands, memory, row, at, share):
        n2 = operands.grad_input.shape[1]
        if row < share.end:
            place = place_of(row)
            for v in range(vectors):
                column = share.first + v * span
                if v < filled or column < n2:  # the same columns as in both passes: each thread reads its own copies
                    copy_async(memory.saved_stages, at + v * span, operands.saved, (place, column), width)
                    copy_async(memory.grad_stages, grads_at + at + v * span, operands.grad_output, (row, column), width)
                    if third:
                        there = thirds_at + at + v * span
                        if has_gate:
                            at_gate = gate_place_of(row), column
                            copy_async(memory.saved_stages, there, operands.gate, at_gate, width)
                        else:
                            copy_async(memory.saved_stages, there, operands.grad_residual, (row, column), width)

    return edges.fetcher(layout) if layout.alignments > 1 else fetch


@cache
def first_pass(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `pass_1(operands, memory, share, row, rare, sums) -> (sum of g x̂, sum of g)`.

    Both are the sums over the lanes of this warp that share the row, and 0 if there is no row. rare: see `parameters`.
    sums: `Sums`, to which the row's terms are added.
    """
    adder = share_adder if kind.gating is None else gated.share_adder
    add_up_share, sum_of_lanes = adder(layout, kind, dtype), lanes_sum(layout.thread_map.lanes)
    rms = kind.rms

    @cuda.jit(device=True)
    def pass_1(operands, memory, share, row, rare, sums):
        sum_gx = cast(0, memory.exchange)
        sum_g = cast(0, memory.exchange)
        if row.number < share.end:
            sum_gx, sum_g = add_up_share(operands, memory, share, row, rare, sums)
        # The shuffles stand outside of the condition: all lanes take part, also those of row groups without a row.
        sum_gx = sum_of_lanes(sum_gx)
        if not rms:
            sum_g = sum_of_lanes(sum_g)
        return sum_gx, sum_g

    return pass_1


@cache
def share_adder(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `add_up_share(…) -> (sum of g x̂, sum of g)`, arguments as `pass_1`.

    It returns this thread's sums alone, and adds each element's terms to the sums of its column.
    """
    thread_map, grads_at, filled = layout.thread_map, layout.grads_at, layout.filled
    vectors, width, span, _ = thread_map.loop
    load_gammas, _, _, load_betas = readers(layout, kind)
    rms, memory_efficient, centered = kind.rms, kind.memory_efficient, kind.centered
    weighted, biased = kind.weighted, kind.biased
    sums_weight, sums_bias = kind.sums
    # mean(g) takes the gamma that is not clamped; wide parameters in shared memory are clamped.
    unclamped_again = memory_efficient and weighted and not rms and not kind.narrow
    sum_unclamped, trim = unclamped_adder(layout), edges.trimmer(layout)

    @cuda.jit(device=True)
    def add_up_share(operands, memory, share, row, rare, sums):
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        sum_gx = cast(0, values)
        sum_g = cast(0, values)
        trim(operands, memory, share, row)  # does nothing if rows begin at whole vectors
        # Vector by vector: only the columns' sums stay in registers from row to row.
        for v in range(vectors):
            if v < filled or share.first + v * span < operands.grad_input.shape[1]:
                load_bits_into(values, 0, memory.saved_stages, row.at + v * span, width, operands.saved)
                load_bits_into(grads, 0, memory.grad_stages, grads_at + row.at + v * span, width, operands.grad_output)
                # When recomputing, gamma is in mean(g) alone, which RMSNorm does not have: gamma cancels from g x̂.
                if weighted and not (memory_efficient and rms):
                    load_gammas(gammas, memory.parameters, v, share.offset, operands.weight)
                if memory_efficient and biased:
                    load_betas(betas, memory.parameters, v, share.offset, operands.bias)
                for k in range(width):
                    grad = grads[k]
                    value = values[k]
                    if memory_efficient:  # value = gamma x̂; grad_weight's sums are divided by gamma at the end
                        if biased:
                            value -= betas[k]
                        product = grad * value
                        sum_gx += product  # dy gamma x̂ is g x̂: gamma cancels, however small it is
                        if sums_weight:
                            sums.weight[v * width + k] += product
                    else:
                        if centered:
                            value -= row.center
                        product = grad * value
                        if sums_weight:
                            sums.weight[v * width + k] += product * row.scale
                        if weighted:
                            sum_gx += product * gammas[k]
                        else:
                            sum_gx += product
                    if sums_bias:
                        sums.bias[v * width + k] += grad
                    if not rms:
                        if weighted:
                            sum_g += grad * gammas[k]
                        else:
                            sum_g += grad
        # The rest is once per row.
        if not memory_efficient:
            sum_gx *= row.scale  # the products above are with x - mean, which is x̂ / invvar
        elif unclamped_again and rare:
            sum_g = sum_unclamped(grads, operands, memory, share, row)
        return sum_gx, sum_g

    return add_up_share


@cache
def unclamped_adder(layout: PipelineLayout) -> Any:
    """Return the device function `sum_unclamped(grads, operands, memory, share, row)`: the sum of g, gamma as it is.

    mean(g) needs the gamma that is not clamped. Wide parameters in shared memory are clamped (`parameters`), so this
    function loads gamma from global memory again. Only threads with a clamped gamma call it.

    grads: the caller's registers for a vector of dy. An array of the function's own spilled 32 bytes at n2 = 8192 in
    float32, where 1024 threads leave 64 registers each.
    """
    thread_map, grads_at = layout.thread_map, layout.grads_at
    vectors, width, span = thread_map.vectors, thread_map.width, thread_map.span
    aligned = layout.alignments == 1

    @cuda.jit(device=True)
    def sum_unclamped(grads, operands, memory, share, row):
        sum_g = cast(0, grads)
        # A while loop, because the compiler would unroll a for loop and give it the registers of all other phases.
        v = 0
        while v < vectors and share.first + v * span < operands.grad_input.shape[1]:
            load_bits_into(grads, 0, memory.grad_stages, grads_at + row.at + v * span, width, operands.grad_output)
            for k in range(width):
                if aligned or 0 <= share.first + v * span + k < operands.saved.shape[1]:
                    sum_g += grads[k] * load(operands.weight, share.first + v * span + k)
            v += 1
        return sum_g

    return sum_unclamped


@cache
def second_pass(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `pass_2(operands, memory, share, row, rare, mean_gx, mean_g)`.

    It stores grad_input of the thread's share of a row:

        grad_input = g invvar - (x̂ slope + shift)        slope = mean(g x̂) invvar, shift = mean(g) invvar
    """
    vectors, memory_efficient, gating = layout.thread_map.vectors, kind.memory_efficient, kind.gating is not None
    # Unrolled, rows in 16 bits take an eighth fewer instructions (689 instead of 788 at n2 = 4096) and more registers.
    # Vectors per turn of the loop. Two spilled from the output: of odd rows (31,255 columns), and of float16 (8,192).
    # Five spilled in a cluster (float16 from the output, 20,480 columns).
    many = kind.float16 and layout.blocks > 1 and vectors > 4
    at_once = 1
    if layout.saved_bytes == 2:
        if layout.threads <= MOST_UNROLLED and not (layout.once or many):
            at_once = vectors
        elif (layout.alignments == 1 or not memory_efficient) and not kind.float16:
            at_once = 2 - vectors % 2  # two, or one of an odd number. Four spilled where `once` leaves 64 registers
    storer = vector_storer if kind.gating is None else gated.vector_storer
    several_vectors = repeated(storer(layout, kind, dtype), at_once)

    @cuda.jit(device=True)
    def pass_2(operands, memory, share, row, rare, mean_gx, mean_g):
        # Two fused operations per element: both factors are made once per row.
        slope = mean_gx * row.scale
        if not (memory_efficient or gating):  # `vector_storer` multiplies it by x - mean, which is x̂ / invvar
            slope *= row.scale
        shift = mean_g * row.scale
        for v in range(0, vectors, at_once):
            several_vectors(v, operands, memory, share, row, rare, slope, shift)

    return pass_2


@cache
def vector_storer(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `store_vector(v, operands, memory, share, row, rare, slope, shift)`.

    It stores grad_input of the thread's vector v. Other arguments: see `second_pass`.
    """
    thread_map, grads_at, thirds_at = layout.thread_map, layout.grads_at, layout.thirds_at
    width, span, filled = thread_map.width, thread_map.span, layout.filled
    residual = layout.third_bytes > 0
    load_gammas, _, load_inverses, load_betas = readers(layout, kind)
    store_row = edges.storer(layout)
    rms, memory_efficient, centered = kind.rms, kind.memory_efficient, kind.centered
    weighted, biased = kind.weighted, kind.biased

    @cuda.jit(device=True)
    def store_vector(v, operands, memory, share, row, rare, slope, shift):
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        inverses = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        column = share.first + v * span
        if v < filled or column < operands.grad_input.shape[1]:
            load_bits_into(values, 0, memory.saved_stages, row.at + v * span, width, operands.saved)
            load_bits_into(grads, 0, memory.grad_stages, grads_at + row.at + v * span, width, operands.grad_output)
            if weighted:
                if memory_efficient:  # x̂ and g take the clamped gamma, as in apex
                    load_inverses(
                        gammas, inverses, memory.parameters, v, share.offset, operands.weight, operands.eps, rare
                    )
                else:
                    load_gammas(gammas, memory.parameters, v, share.offset, operands.weight)
            if memory_efficient and biased:
                load_betas(betas, memory.parameters, v, share.offset, operands.bias)
            for k in range(width):
                value = values[k]
                if centered:
                    value -= row.center
                if memory_efficient and biased:
                    value -= betas[k]
                if memory_efficient and weighted:
                    value *= inverses[k]  # 1 / gamma is there already: a product instead of a division
                gradient = grads[k]
                if weighted:
                    gradient *= gammas[k]
                subtracted = value * slope
                if not rms:
                    subtracted += shift
                grads[k] = gradient * row.scale - subtracted
            if residual:  # the array that was normalised went on beside the output
                there = thirds_at + row.at + v * span
                load_bits_into(values, 0, memory.saved_stages, there, width, operands.grad_residual)
                for k in range(width):
                    grads[k] += values[k]
            store_row(grads, operands.grad_input, row.number, column)

    return store_vector
