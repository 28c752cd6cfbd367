"""Build the pipelined backward kernel for a layout and a kind; `step_3_pipelined` says what it does and why.

A row group is the threads of a block that share a row. Each row group has its own pipeline stages, its own part of the
exchange buffer and a barrier of its own, so row groups do not wait for each other. The whole block meets only before
the first row, for the parameters, and after the last one, for the columns' sums (`columns`).
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, same_lengths
from normlab.kernels.backward.pipelined import gated
from normlab.kernels.backward.pipelined.beside import column_summer, counters, resident_of
from normlab.kernels.backward.pipelined.columns import epilogue
from normlab.kernels.backward.pipelined.exchange import exchange_of
from normlab.kernels.backward.pipelined.kind import NARROW_BYTES, Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.operands import Gradients, Memory, Operands, Sums
from normlab.kernels.backward.pipelined.parameters import keepers
from normlab.kernels.backward.pipelined.prologue import beginner, sharer
from normlab.kernels.backward.pipelined.samples import samplers
from normlab.kernels.backward.pipelined.turns import turns_ahead, turns_at_once
from normlab.kernels.lengths import lengths_with
from normlab.stages.ahead import BITS


@cache
def build(dtype: Any, layout: PipelineLayout, kind: Kind) -> Any:
    """Return the kernel for an accumulator dtype, a layout and a kind."""
    elements, rows, warps = layout.thread_map.elements, layout.rows, layout.thread_map.warps
    saved_bits, grad_bits = BITS[layout.saved_bytes], BITS[layout.grad_bytes]
    parameter_bits = BITS[NARROW_BYTES] if kind.narrow else dtype
    weight_sums, bias_sums = (elements if wanted else 1 for wanted in kind.sums)
    collected, kept_values = exchange_of(layout, kind).partials, gated.kept_values(layout, kind)
    samples_of, operands_of, gradients_of = samplers(layout, kind)
    (alignments_of, share_of), fetch_first_rows = sharer(layout, kind.sampled), beginner(layout, kind)
    fetch_parameters, keep_parameters = keepers(layout, kind, dtype)
    take_rows = (turns_ahead if layout.prefetch else turns_at_once)(layout, kind, dtype)
    add_up_columns = epilogue(layout, kind, dtype)
    resident = resident_of(layout) if kind.beside else gated.resident(layout, kind)
    anywhere = layout.alignments > 1
    is_beside, sum_columns, (row_blocks, _) = kind.beside, column_summer(layout, kind, dtype), counters(layout)

    @cuda.jit(device=True)
    def take_share(operands, memory, row_sums, share, sums, partials, gradients):
        """Take the cluster's rows, all of the same alignment. row_sums stays an argument by itself, see below."""
        for k in range(weight_sums):
            sums.weight[k] = cast(0, memory.exchange)
        for k in range(bias_sums):
            sums.bias[k] = cast(0, memory.exchange)
        # Fetch the parameters and the first rows; the rows travel while the parameters are widened.
        fetch_parameters(operands, memory, share)
        row = fetch_first_rows(operands, memory, share)
        rare = keep_parameters(operands, memory, share)
        # First pass, exchange and second pass, row after row.
        take_rows(operands, memory, share, row, row_sums, rare, sums, partials)
        # Epilogue: the columns' sums, in the memory of the pipeline stages.
        add_up_columns(operands, memory, share, sums, gradients)

    @same_lengths(lengths_with(saved=kind.row_map, gate=kind.gate_map))
    @cuda.jit(launch_bounds=(layout.threads, resident))
    def backward_pipelined(
        grad_output, saved, mean, invvar, weight, bias, eps, mean_factor, row_sums, grad_residual, gate,
        grad_input, grad_gate, grad_weight, grad_bias, part_weight, part_bias,
    ):  # fmt: skip
        # Prologue: empty sums, and which columns of which rows this thread has.
        # (phases, row groups, sums, warps). Two phases: a slot is free again only after the next row's barrier.
        exchange = cuda.shared.array((2, rows, 2, warps), dtype)
        # One piece of dynamic shared memory in three dtypes. Bits, not values: a copy converts nothing.
        saved_stages = cuda.shared.array(0, saved_bits, alignment=16)
        grad_stages = cuda.shared.array(0, grad_bits, alignment=16)
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)
        partials = cuda.local.array(collected, dtype)
        kept = cuda.local.array(kept_values, dtype)
        sums_weight = cuda.local.array(weight_sums, dtype)
        sums_bias = cuda.local.array(bias_sums, dtype)
        for k in range(collected):
            partials[k] = cast(0, exchange)
        whole = Operands(
            grad_output, saved, mean, invvar, weight, bias, eps, mean_factor, grad_residual, gate, grad_input, grad_gate
        )
        if is_beside and cuda.blockIdx.x >= row_blocks(grad_input.shape[0]):  # whole clusters, without a row
            sum_columns(whole, Gradients(grad_weight, grad_bias, part_weight, part_bias))
            return
        samples, operands = samples_of(whole), operands_of(whole)
        memory = Memory(saved_stages, grad_stages, parameters, exchange, kept)
        sums = Sums(sums_weight, sums_bias)
        gradients = gradients_of(Gradients(grad_weight, grad_bias, part_weight, part_bias), samples)

        # row_sums (of the exact mode, else None) stays an argument. `Kind` does not say whether it is None, and the
        # compiler drops a branch `row_sums is not None` only for an argument, not for a tuple's member.
        if anywhere:
            alignment, last = alignments_of(grad_input.shape)
            while alignment <= last:
                share = share_of(grad_input.shape, samples, alignment)
                take_share(operands, memory, row_sums, share, sums, partials, gradients)
                cuda.syncthreads()  # the columns' sums are stored before the next alignment's rows come in their place
                alignment += 1
        else:
            share = share_of(operands.grad_input.shape, samples, 0)
            take_share(operands, memory, row_sums, share, sums, partials, gradients)

    return backward_pipelined
