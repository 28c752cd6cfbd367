"""Exchange a row's sums between its warps in the pipelined backward, within a block or in a cluster.

The exchange buffer is (phases, row groups, sums, warps), as in `stages.row_group`. Sum 0 is that of g x̂ and sum 1 that
of g, which RMSNorm does not need.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cast, cluster_arrive_shared, cluster_wait, cuda, team_sync
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.stages.row_group import collector, leave


class Exchange(NamedTuple):
    """The device functions of an exchange, in the order of their use.

        write_sums(memory, share, phase, sum_gx, sum_g)     write this warp's sums
        arrive()                                            begin the row group's barrier after `write_sums`
        wait(share)                                         end it: all warps' sums are written
        read_sums(partials, memory, share, phase)           load the sums of the warps that this lane has to add up
        means(partials, correction, mean_factor)            add them up: mean(g x̂) and mean(g), in every lane

    A row of one warp has nothing to exchange: `keep_sums(partials, sum_gx, sum_g)` takes the place of the first four.
    """

    write_sums: Any
    arrive: Any
    wait: Any
    read_sums: Any
    means: Any
    keep_sums: Any
    partials: int  # how many values `partials` has: those that a lane loads, for both sums


@cache
def exchange_of(layout: PipelineLayout, kind: Kind) -> Exchange:
    """Return the exchange for a layout and a kind."""
    warps, blocks, threads, rms = layout.thread_map.warps, layout.blocks, layout.thread_map.threads, kind.rms
    loads, fetch_sums, add_up = collector(warps, blocks)  # loads: per lane and sum, more than 1 above 32 warps

    @cuda.jit(device=True)
    def write_sums(memory, share, phase, sum_gx, sum_g):
        # to this block's own memory: the other blocks read it after the barrier (`stages.row_group` says why)
        leave(memory.exchange, phase, share.group, 0, share.warp, sum_gx)
        if not rms:
            leave(memory.exchange, phase, share.group, 1, share.warp, sum_g)

    @cuda.jit(device=True)
    def arrive():
        if blocks > 1:  # waits for this block's stores to shared memory, not for those of grad_input
            cluster_arrive_shared()

    @cuda.jit(device=True)
    def wait(share):
        if blocks > 1:
            cluster_wait()  # all blocks' sums are written before a warp reads them
        else:
            team_sync(share.group + 1, threads)  # this row group's sums are written; barrier 0 is the block's

    @cuda.jit(device=True)
    def read_sums(partials, memory, share, phase):
        # both loads are in flight before `means` adds up: a load from another block takes a microsecond
        fetch_sums(partials, 0, memory.exchange, phase, share.group, 0)
        if not rms:
            fetch_sums(partials, loads, memory.exchange, phase, share.group, 1)

    @cuda.jit(device=True)
    def means(partials, correction, mean_factor):
        """Return the row's mean(g x̂) and mean(g). correction: what the exact mode adds to the sum of g x̂, or 0."""
        mean_gx = (add_up(partials, 0) + correction) * mean_factor
        if rms:
            return mean_gx, cast(0, partials)
        return mean_gx, add_up(partials, loads) * mean_factor  # times 1 / n2: no division per row

    @cuda.jit(device=True)
    def keep_sums(partials, sum_gx, sum_g):
        partials[0], partials[loads] = sum_gx, sum_g  # one warp has all: its sums are the row's

    return Exchange(write_sums, arrive, wait, read_sums, means, keep_sums, 2 * loads)
