"""Take the rows of a row group one after another, one row per turn, in the pipelined backward.

    prefetch 0   first pass, exchange, second pass over the same row
    prefetch 1   first pass over this row, then second pass over the previous row. The previous row's sums had a whole
                 pass to arrive, and the row stays in its pipeline stage meanwhile. One turn more than there are rows.

Either way all row groups take as many turns as the first one, because in a cluster their warps meet at one barrier. A
row group whose row number is `Share.end` or more goes through its turn without a row.

A row's copies are one group. A turn waits for all groups except the latest `PipelineLayout.in_flight`, so it commits a
group even if it has started no copy.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, commit_copies, cuda, load, wait_copies
from normlab.kernels.backward.pipelined.exchange import exchange_of
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.operands import Row
from normlab.kernels.backward.pipelined.passes import fetcher, first_pass, second_pass
from normlab.kernels.backward.pipelined.prologue import statistics_loader
from normlab.stages.gradient import leave_means


@cuda.jit(device=True)
def correction_of(row_sums, row, like):
    """Return what the exact mode adds to a row's sum of g x̂; 0 in the other modes and if row >= n1.

    row_sums: (3, n1), or None outside the exact mode. like: an array, for the dtype of 0.
    """
    correction = cast(0, like)
    if row_sums is not None and row < row_sums.shape[1]:
        correction = load(row_sums, (0, row))
    return correction


@cache
def turns_at_once(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function for a prefetch of 0:

        take_rows(operands, memory, share, row, row_sums, rare, sums, partials)

    row: the row group's first row. row_sums: as in `correction_of`. rare: see `parameters`. sums: the columns' sums, to
    which the rows' terms are added. partials: local memory for `Exchange`.
    """
    rows, columns, stages = layout.rows, layout.thread_map.columns, layout.stages
    prefetched, in_flight = layout.prefetched, layout.in_flight
    fetch, load_statistics, exchange = fetcher(layout, kind), statistics_loader(kind), exchange_of(layout, kind)
    write_sums, arrive, wait, read_sums, means, keep_sums, _ = exchange
    pass_1, pass_2, alone = first_pass(layout, kind, dtype), second_pass(layout, kind, dtype), layout.alone
    once = layout.once

    @cuda.jit(device=True)
    def take_rows(operands, memory, share, row, row_sums, rare, sums, partials):
        end = share.end
        top = share.top  # the row of the block's first row group
        slot = 0  # the pipeline stage of this row
        phase = 0  # the half of the exchange buffer for this row
        while top < end:
            # The offset is made anew in each turn: carried from turn to turn it took two registers more in float32 at
            # n2 = 2048, and four with a prefetch of 1 in bfloat16 at n2 = 8192.
            row = Row(row.number, (slot * rows + share.group) * columns + share.offset, row.center, row.scale)
            # Fetch ahead into the stage of the previous row, which is free. With one stage, fetch this row into it.
            next_center, next_scale = row.center, row.scale
            if not once:
                free = stages - 1 if slot == 0 else slot - 1
                ahead = row.number + prefetched * share.stride
                fetch(operands, memory, ahead, (free * rows + share.group) * columns + share.offset, share)
                commit_copies()
                # Load the next row's statistics a turn ahead: a load takes most of a microsecond.
                next_center, next_scale = load_statistics(operands, row.number + share.stride)
            correction = correction_of(row_sums, row.number, operands.invvar)

            # First pass: the row's two sums, and its terms of the columns' sums.
            wait_copies(in_flight)  # no barrier: each thread reads only its own copies
            sum_gx, sum_g = pass_1(operands, memory, share, row, rare, sums)

            # Exchange.
            phase = 1 - phase  # other warps may still read the previous row's sums
            if alone:
                keep_sums(partials, sum_gx, sum_g)
            else:
                write_sums(memory, share, phase, sum_gx, sum_g)
                arrive()
                wait(share)
                read_sums(partials, memory, share, phase)
            mean_gx, mean_g = means(partials, correction, operands.mean_factor)

            # Second pass: grad_input.
            if row.number < end:
                if share.first <= 0:  # before the second pass, in which row_sums then takes no registers
                    leave_means(row_sums, row.number, mean_g, mean_gx)
                pass_2(operands, memory, share, row, rare, mean_gx, mean_g)
            slot = 0 if slot == stages - 1 else slot + 1
            top = end if once else top + share.stride
            row = Row(row.number + share.stride, row.at, next_center, next_scale)

    return take_rows


@cache
def turns_ahead(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `take_rows(…)` for a prefetch of 1; arguments as in `turns_at_once`."""
    rows, columns, stages = layout.rows, layout.thread_map.columns, layout.stages
    prefetched, in_flight = layout.prefetched, layout.in_flight
    fetch, load_statistics, exchange = fetcher(layout, kind), statistics_loader(kind), exchange_of(layout, kind)
    write_sums, arrive, wait, read_sums, means, keep_sums, _ = exchange
    pass_1, pass_2, alone = first_pass(layout, kind, dtype), second_pass(layout, kind, dtype), layout.alone

    @cuda.jit(device=True)
    def take_rows(operands, memory, share, row, row_sums, rare, sums, partials):
        end = share.end
        top = share.top
        slot = 0
        phase = 0
        last = Row(end, row.at, row.center, row.scale)  # the previous row. Number `end`: the first turn has none
        sum_gx = cast(0, operands.invvar)
        sum_g = cast(0, operands.invvar)
        while top < end + share.stride:
            # The offset is made anew in each turn, as in `turns_at_once`.
            row = Row(row.number, (slot * rows + share.group) * columns + share.offset, row.center, row.scale)
            # The previous row's sums: their loads are in flight during the first pass.
            if alone:
                keep_sums(partials, sum_gx, sum_g)
            elif last.number < end:  # not in the first turn, before which no sums were written
                read_sums(partials, memory, share, phase)
            # Load the next row's statistics a turn ahead: a load takes most of a microsecond.
            next_center, next_scale = load_statistics(operands, row.number + share.stride)
            correction = correction_of(row_sums, last.number, operands.invvar)

            # First pass: this row's two sums, and its terms of the columns' sums.
            wait_copies(in_flight)  # no barrier: each thread reads only its own copies
            sum_gx, sum_g = pass_1(operands, memory, share, row, rare, sums)

            # Exchange: this row's sums travel during the second pass over the previous row.
            mean_gx, mean_g = means(partials, correction, operands.mean_factor)
            phase = 1 - phase  # other warps may still read the previous row's sums
            if not alone:
                write_sums(memory, share, phase, sum_gx, sum_g)
                arrive()

            # Second pass: grad_input of the previous row.
            if last.number < end:
                if share.first <= 0:  # before the second pass, in which row_sums then takes no registers
                    leave_means(row_sums, last.number, mean_g, mean_gx)
                pass_2(operands, memory, share, last, rare, mean_gx, mean_g)
                # Fetch ahead into the stage that this thread has just read for the last time.
                fetch(operands, memory, last.number + prefetched * share.stride, last.at, share)
                commit_copies()
            if not alone:
                wait(share)  # this row's sums are written before the next turn reads them
            last = row
            slot = 0 if slot == stages - 1 else slot + 1
            top += share.stride
            row = Row(row.number + share.stride, row.at, next_center, next_scale)

    return take_rows
