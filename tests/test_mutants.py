"""Tests that cannot fail prove nothing: each mutant is the code with one mistake in it, and the suite must reject it.

A mutant replaces code in one module of stages or kernels; this module and those that use it are imported afresh, and a
test of the suite runs on them, in the simulator. It must fail, by an assertion or by an error that the simulator or an
array raises, and the same test must pass without the mutation.

Comments and blank lines are dropped before the code is replaced, so that they may change freely. A barrier is found by
the code line before or after it.
"""

import ast
import functools
import importlib
import importlib.util
import io
import itertools
import sys
import tokenize
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from draws import Case, gammas, inputs
from examine import (
    arithmetic,
    backward_bound,
    backward_truth,
    examine_backward,
    examine_forward,
    hold,
    statistics,
    with_plan,
)
from family.examples import example, few_blocks

from normlab.engine import use_gpu, using
from normlab.host import add_norm, checks, exact, family, gated_norm, modulated_norm, norms
from normlab.kernels import BackwardProblem
from normlab.sim import SimulationError, simulate
from normlab.sim.sanitizing.collector import Collector
from normlab.sim.vectorised import engine

code_of = functools.cache(SourceFileLoader.get_code)  # of all modules but one, the same for every mutant
FRESH = "normlab.stages", "normlab.kernels", "kernels."  # the last: tests that other tests take helpers from
TESTS = Path(__file__).parent
SCHEDULES = ("forward", "reverse", 1)
BFLOAT16 = ml_dtypes.bfloat16


class Mutation(NamedTuple):
    """One mistake: (old, new) code in a module, and the check that must find it."""

    name: str
    module: str
    old: str  # without comments and blank lines
    new: str
    check: str  # "file.py::test", "file.py::test[its first argument]" or a name below
    times: int = 1  # `old` occurs so often; every occurrence is replaced

    def mutated(self, source: str) -> str:
        """Return the module's source with the mistake; raise LookupError if `old` occurs more or less often."""
        code = without_comments(source)
        found = code.count(self.old)
        if found != self.times:
            raise LookupError(f"{self.name!r} replaces {self.old!r}, which {self.module} has {found} times")
        return code.replace(self.old, self.new)


def without_comments(source: str) -> str:
    """Return the source without its comments and without the lines that are then blank."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


MUTATIONS = [
    Mutation("welford: count is never raised", "stages.moments", "count = count + float32(1)\n    delta", "delta", "stages/test_moments.py::test_welford_steps_give_mean_and_variance"),
    Mutation("welford: the old deviation twice", "stages.moments", "delta * (value - mean), count", "delta * delta, count", "stages/test_moments.py::test_welford_steps_give_mean_and_variance"),
    Mutation("chan: the wrong group's share", "stages.moments", "share_b = count_b / count", "share_b = count_a / count", "stages/test_moments.py::test_chan_merge_of_two_parts_equals_the_whole_split_anywhere"),
    Mutation("chan: no care for empty groups", "stages.moments", "if count > 0:", "if count >= 0:", "stages/test_moments.py::test_chan_merge_of_two_empty_groups_gives_zeros"),
    Mutation("chan: weighted average of means", "stages.moments", "mean = mean_a + delta * share_b", "mean = mean_a * (count_a / count) + mean_b * share_b", "stages/test_moments.py::test_chan_merge_of_equal_means_keeps_the_mean_and_0_variance"),
    Mutation("rotation: wrong shuffle offset", "stages.warp", "value, (lane + (1 << level)) & 31", "value, (lane + level + 1) & 31", "stages/test_warp.py::test_each_lane_counts_once"),
    Mutation("rotation of moments: one level short", "stages.warp", "lane = lane_index()\n    for level in range(5):\n        source", "lane = lane_index()\n    for level in range(4):\n        source", "forward apex"),
    Mutation("butterfly: wrong distance", "stages.warp", "cuda.shfl_xor_sync(ALL_LANES, value, 16 >> level)", "cuda.shfl_xor_sync(ALL_LANES, value, 8 >> level)", "stages/test_warp.py::test_each_lane_counts_once"),
    Mutation("butterfly: down, not across", "stages.warp", "cuda.shfl_xor_sync(ALL_LANES, value, 16 >> level)", "cuda.shfl_down_sync(ALL_LANES, value, 16 >> level)", "stages/test_warp.py::test_each_lane_counts_once"),
    Mutation("block sums: no barrier before the reading", "stages.block", "cuda.syncthreads()\n        if lane == 0 and warp < active - half:\n            first", "if lane == 0 and warp < active - half:\n            first", "forward warp_shuffle"),
    Mutation("block sums: no barrier before reuse", "stages.block", "cuda.syncthreads()\n    while active > 1:\n        half = (active + 1) >> 1\n        if lane == 0 and half <= warp < active:\n            buffer[0, warp - half] = first", "while active > 1:\n        half = (active + 1) >> 1\n        if lane == 0 and half <= warp < active:\n            buffer[0, warp - half] = first", "forward warp_shuffle"),
    Mutation("block moments: no barrier before the reading", "stages.block", "cuda.syncthreads()\n        if lane == 0 and warp < active - half:\n            mean", "if lane == 0 and warp < active - half:\n            mean", "forward apex"),
    Mutation("block moments: no barrier before the next round", "stages.block", "buffer[2, warp])\n        cuda.syncthreads()", "buffer[2, warp])", "forward apex"),
    Mutation("block moments: no barrier before the result is read", "stages.block", "buffer[2, 0] = count\n    cuda.syncthreads()", "buffer[2, 0] = count\n    pass", "forward apex"),
    Mutation("block moments: no barrier before reuse", "stages.block", "cuda.syncthreads()\n    while active > 1:\n        half = (active + 1) >> 1\n        if lane == 0 and half <= warp < active:\n            buffer[0, warp - half] = mean", "while active > 1:\n        half = (active + 1) >> 1\n        if lane == 0 and half <= warp < active:\n            buffer[0, warp - half] = mean", "stages/test_block.py::test_every_thread_gets_the_moments_of_all_warps"),
    Mutation("block sums: no barrier before the next round", "stages.block", "second = second + buffer[1, warp]\n        cuda.syncthreads()", "second = second + buffer[1, warp]\n        pass", "forward warp_shuffle"),
    Mutation("block sums: no barrier before the result is read", "stages.block", "buffer[1, 0] = second\n    cuda.syncthreads()", "buffer[1, 0] = second\n    pass", "forward warp_shuffle"),
    Mutation("tree: no barrier before reuse", "stages.block", "cuda.syncthreads()\n    buffer[thread] = value", "buffer[thread] = value", "forward block_tree"),
    Mutation("tree: no barrier before the total is read", "stages.block", "half >>= 1\n    cuda.syncthreads()", "half >>= 1", "forward block_tree"),
    Mutation("tree: no barrier between rounds", "stages.block", "cuda.syncthreads()\n        if thread < half:", "if thread < half:", "forward block_tree"),
    Mutation("row: the last element is left out", "stages.row", "while column < n2:\n        mean", "while column < n2 - 1:\n        mean", "forward apex"),
    Mutation("row: variance of a sample, not of a population", "stages.row", "return mean, m2 / count", "return mean, m2 / (count - 1)", "forward apex"),
    Mutation("two passes: E[x²] - E[x]²", "kernels.forward.step_2_warp_shuffle", "square_sum / cast(n2, invvar) + eps", "(square_sum + cast(n2, invvar) * center * center) / cast(n2, invvar) - center * center + eps", "forward warp_shuffle"),
    Mutation("column blocks: lanes past the end count", "kernels.forward.step_4_column_blocks", "if column < n2:\n                        deviation = load(x, (row, column)) - center", "if True:\n                        deviation = load(x, (row, min(column, n2 - 1))) - center", "forward column_blocks"),
    Mutation("thread per row: eps outside the root", "kernels.forward.step_0_thread_per_row", "math.sqrt(square_sum / cast(n2, invvar) + eps)", "(math.sqrt(square_sum / cast(n2, invvar)) + eps)", "forward thread_per_row"),
    Mutation("recompute: no clamp", "stages.recompute", "value / clamp_by_magnitude(gamma, eps)", "value / gamma", "backward apex recompute"),
    Mutation("recompute: clamp loses the sign", "stages.recompute", "gamma >= 0 else -eps", "gamma >= 0 else eps", "stages/test_recompute.py::test_clamp_pushes_gamma_out_of_the_gap_and_keeps_its_side"),
    Mutation("recompute: beta forgotten", "stages.recompute", "value = value - beta\n    return value", "pass\n    return value", "backward apex recompute"),
    Mutation("affine: beta before gamma", "stages.recompute", "normalised = normalised * gamma\n    if beta is not None:\n        normalised = normalised + beta", "pass\n    if beta is not None:\n        normalised = (normalised + beta) * (gamma if gamma is not None else 1)", "forward apex"),
    Mutation("gradient: gamma clamped when the input was saved (apex's)", "stages.gradient", "    if memory_efficient:\n        return clamp_by_magnitude(gamma, eps)\n    return gamma", "    return clamp_by_magnitude(gamma, eps)", "backward apex saved"),
    Mutation("gradient: mean(g) not subtracted", "stages.gradient", "(weighted - mean_g - xhat", "(weighted - xhat", "backward global_atomics saved"),
    Mutation("strided: a row too many", "stages.strided", "if row < row_end and", "if row <= row_end and row < saved.shape[0] and", "stages/test_strided.py::test_tiles_hold_the_terms_of_their_elements_and_zeros_elsewhere"),
    Mutation("strided: unpadded rows", "stages.strided", "TILE_STRIDE = COLUMNS + 1", "TILE_STRIDE = COLUMNS", "stages/test_strided.py::test_each_tile_element_has_one_owner_and_a_warp_writes_to_32_banks"),
    Mutation("apex partial sums: no barrier after the tile", "kernels.backward.step_1_apex", "row += ROWS\n        cuda.syncthreads()", "row += ROWS", "columns apex"),
    Mutation("apex partial sums: no barrier between rounds", "kernels.backward.step_1_apex", "cuda.syncthreads()\n            if y < half:\n                tile_bias", "if y < half:\n                tile_bias", "columns apex"),
    Mutation("apex partial sums: every second tile is skipped", "kernels.backward.step_1_apex", "row += ROWS", "row += 2 * ROWS", "columns apex"),
    Mutation("apex final sums: half of the parts", "kernels.backward.step_1_apex", "PARTS // FINAL_WARPS) + k", "PARTS // FINAL_WARPS)", "columns apex"),
    Mutation("apex final sums: no barrier before the reading", "kernels.backward.step_1_apex", "cuda.syncthreads()\n            if y < half:\n                total", "if y < half:\n                total", "backward apex saved"),
    Mutation("apex final sums: no barrier before the next round", "kernels.backward.step_1_apex", "total += buffer[y, x]\n            cuda.syncthreads()", "total += buffer[y, x]", "columns apex"),
    Mutation("atomics: rows beyond the grid are left out", "kernels.backward.step_0_global_atomics", "row += cuda.gridDim.x", "row += 1000000000", "test_properties.py::test_blocks_stride_over_rows_beyond_the_grid_limit"),
    Mutation("apex grad_input: RMSNorm takes mean(g) off", "kernels.backward.step_1_apex", "if not rms:", "if True:", "backward apex saved"),
    Mutation("atomics: a plain addition", "kernels.backward.step_0_global_atomics", "cuda.atomic.add(total_weight, column, grad * xhat)", "total_weight[column] = grad * xhat", "backward global_atomics saved"),
    Mutation("vectors: lanes past the end count", "kernels.forward.step_5_vectors", "if v < filled or first + v * span < n2:", "if True:", "forward vectors"),
    Mutation("one barrier: none", "kernels.forward.step_6_one_barrier", "cuda.syncthreads()\n                center", "center", "forward one_barrier"),
    Mutation("vectors: the last one is whole", "stages.vector", "return self.vectors - (not self.whole)", "return self.vectors", "forward one_barrier"),
    Mutation("early parameters: of the first vector alone", "stages.output", "gammas[k] = held[0][v * width + k]", "gammas[k] = held[0][k]", "forward one_barrier"),
    Mutation("early parameters: past the row's end", "stages.output", "if v < filled or column < n2 else n2 - width", "", "forward one_barrier"),
    Mutation("late parameters: of the first vector alone", "stages.output", "    load_parameters(gammas, betas, weight, bias, column)", "    load_parameters(gammas, betas, weight, bias, column - v * span)", "kernels/test_invariance.py::test_a_row_has_the_same_bits_whether_all_rows_find_room_at_once"),
    Mutation("shifted: parameters are read before they are staged", "kernels.forward.row_phases", "if one_warp:", "if False:", "stages/test_shifted.py::test_nothing_is_found"),
    Mutation("shifted: few rows' parameters are read before they are staged", "kernels.forward.row_phases", "if one_warp:", "if not early and one_warp:", "stages/test_shifted.py::test_nothing_is_found_in_few_rows"),
    Mutation("shifted: one phase for all turns", "kernels.forward.step_6_one_barrier", "phase = halves - 1 - phase", "pass", "stages/test_shifted.py::test_nothing_is_found_in_rows_by_turns"),
    Mutation("shifted: a block's rows begin differently", "kernels.forward.row_phases", "block // period * together + block % period", "block * rows", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("shifted: a turn's rows are left out", "kernels.forward.row_phases", "n1, cuda.gridDim.x * rows", "n1, cuda.gridDim.x * together", "stages/test_shifted.py::test_rows_by_turns_have_the_same_bits"),
    Mutation("shifted: parameters are not shifted", "stages.shifted", "weight, place - shift", "weight, place", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("shifted: beta where gamma lies", "stages.shifted", "place if weight is None else place + columns", "place", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("shifted: elements before the row add to its sums", "stages.shifted", "if column < 0:", "if column > 0:", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("shifted: the neighbours' elements deviate from the mean", "kernels.forward.step_6_one_barrier", "fill_outside(values, extent, first, center)", "pass", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("shifted: a warp's values are counted as an aligned row's", "kernels.forward.row_phases", "return shift_of(flat(x), row * n2, period), n2", "return shift_of(flat(x), row * n2, period), n2 + 1", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("shifted: a vector past the matrix's end is read", "stages.shifted", "- int32(width - 1 if last else 0)", "", "stages/test_shifted.py::test_nothing_is_found"),
    Mutation("shifted: the neighbour's first element is overwritten", "stages.shifted", "int32(-column) if v == 0 else 0", "0", "stages/test_shifted.py::test_rows_of_every_place_are_right"),
    Mutation("chosen: the number above", "stages.unroll", "if k <= middle:", "if k < middle:", "stages/test_row_ends.py::test_the_elements_of_the_row_are_stored_and_no_others"),
    Mutation("row ends: a piece too few", "stages.row_ends", "if size == room:", "if size >= room // 2:", "stages/test_row_ends.py::test_the_elements_of_the_row_are_stored_and_no_others"),
    Mutation("row ends: a row that ends before the vector", "stages.row_ends", "elif left > 0:", "else:", "stages/test_row_ends.py::test_the_elements_of_the_row_are_stored_and_no_others"),
    Mutation("grouped: E[x²] - E[x]² between the groups", "stages.grouped", "deviation = sums[k] / cast(values, exchange) - center\n                squares[k] += cast(values, exchange) * (deviation * deviation)", "group = sums[k] / cast(values, exchange)\n                squares[k] += cast(values, exchange) * (group * group - center * center)", "forward one_barrier"),
    Mutation("row group: no barrier before what is gathered is read", "stages.row_group", "cuda.syncthreads()", "pass", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[many warps]"),
    Mutation("row group: gathered from the wrong block", "stages.row_group", "member // warps\n", "member % blocks\n", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[many warps]"),
    Mutation("row group: one level short", "stages.row_group", "for level in range(levels):", "for level in range(levels - 1):", "forward one_barrier"),
    Mutation("clusters: one phase for all rows", "kernels.forward.clusters.kernel", "phase = 1 - phase", "pass", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: the copies are not waited for", "kernels.forward.clusters.fetch", "wait_copies(later)", "pass", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: the copies of a row that registers hold are not waited for", "kernels.forward.clusters.fetch", "wait_copies(later)", "if not kept:\n            wait_copies(later)", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: the next row comes before this one is in registers", "kernels.forward.clusters.fetch", "keep_all(place, memory, x, share)\n            fetch_row(memory, x, share, following)\n", "fetch_row(memory, x, share, following)\n            keep_all(place, memory, x, share)\n", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: the next row comes before this one's last pass", "kernels.forward.clusters.passes", "take(values, memory, share, v, x)\n                if not kept and row.following < x.shape[0]:\n                    fetch(v, memory, x, share, ahead, row.following)\n", "if not kept and row.following < x.shape[0]:\n                    fetch(v, memory, x, share, ahead, row.following)\n                take(values, memory, share, v, x)\n", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[parameters in global memory]"),
    Mutation("clusters: the next row is not fetched", "kernels.forward.clusters.fetch", "fetch_row(memory, x, share, following)", "commit_copies()", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: many rows' parameters from global memory", "kernels.forward.layouts", "fit = held.shared_bytes", "fit = 100 * held.shared_bytes", "kernels/test_traffic.py::test_a_later_row_of_a_cluster_asks_for_no_parameters"),
    Mutation("clusters: no barrier", "kernels.forward.clusters.kernel", "cluster_arrive_shared()\n                cluster_wait()", "pass", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: few rows, all blocks of a slice take the first one's columns", "kernels.forward.clusters.fetch", "rank % spread * block_span + offset", "offset", "kernels/test_invariance.py::test_a_row_has_the_same_bits_however_many_blocks_share_it"),
    Mutation("clusters: parameters are not waited for", "kernels.forward.clusters.kernel", "wait_copies(next_row)", "pass", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: parameters beside a row that registers hold are not waited for", "kernels.forward.clusters.kernel", "next_row = int(layout.kept)", "next_row = 2 * int(layout.kept)", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("clusters: parameters beside a row that registers do not hold are not waited for", "kernels.forward.clusters.kernel", "next_row = int(layout.kept)", "next_row = 1", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[read again]"),
    Mutation("clusters: few rows, one warp's share is another's", "kernels.forward.clusters.passes", "size(place.extent, share.rank * warps + share.warp)", "size(place.extent, share.rank * layout.thread_map.warps + share.warp)", "kernels/test_invariance.py::test_a_row_has_the_same_bits_however_many_blocks_share_it"),
    Mutation("clusters: blocks end while others read", "kernels.forward.clusters.kernel", "cluster_arrive_shared()\n            cluster_wait()", "pass", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_and_nothing_is_found[held]"),
    Mutation("forward edges: the row before is added up", "kernels.forward.clusters.edges", "(v == 0 and place.first + k < 0) or v * span + k", "v * span + k", "kernels/test_forward_edges.py::test_the_neighbours_of_a_row_do_not_reach_it"),
    Mutation("forward edges: the row after is added up", "kernels.forward.clusters.edges", "(v == 0 and place.first + k < 0) or v * span + k >= place.left", "v == 0 and place.first + k < 0", "kernels/test_forward_edges.py::test_the_neighbours_of_a_row_do_not_reach_it"),
    Mutation("forward edges: a copy past the matrix's end", "kernels.forward.clusters.edges", "int32(room - width + 1)", "int32(room)", "kernels/test_forward_edges.py::test_a_row_has_the_same_bits_by_clusters_that_take_rows_of_one_place"),
    Mutation("forward edges: the matrix's last elements are not loaded", "kernels.forward.clusters.edges", "if place.limit <= v * span < place.left and v < vectors:", "if False:", "kernels/test_forward_edges.py::test_long_odd_rows_are_right"),
    Mutation("forward edges: the matrix's first elements are not loaded", "kernels.forward.clusters.edges", "if place.begin < 0:", "if False:", "kernels/test_forward_edges.py::test_views_that_begin_within_a_vector_are_right_and_nothing_beside_the_output_is_written"),
    Mutation("forward edges: the row before is overwritten", "kernels.forward.clusters.edges", "-place.first if v == 0 else 0", "0", "kernels/test_forward_edges.py::test_long_odd_rows_are_right"),
    Mutation("forward edges: the row after is overwritten", "kernels.forward.clusters.edges", "v * span + width <= place.left)", "True)", "kernels/test_forward_edges.py::test_views_that_begin_within_a_vector_are_right_and_nothing_beside_the_output_is_written"),
    Mutation("forward edges: gamma beside the row", "kernels.forward.clusters.edges", "if uint32(column) < uint32(array.shape[0]) else 0", "if column >= 0 else 0", "kernels/test_forward_edges.py::test_nothing_is_found_in_long_odd_rows[kept]"),
    Mutation("forward edges: clusters take rows of all places", "kernels.forward.layouts", "resident - resident % places or n1", "resident", "kernels/test_forward_edges.py::test_a_row_has_the_same_bits_by_clusters_that_take_rows_of_one_place"),
    Mutation("forward edges: the vector before a span is not there", "kernels.forward.clusters.fetch", "if cut and cuda.threadIdx.x == 0:", "if False:", "kernels/test_forward_edges.py::test_long_odd_rows_are_right"),
    Mutation("forward edges: parameters by another shift", "kernels.forward.clusters.edges", "shift = -before & (width - 1)", "shift = before", "kernels/test_forward_edges.py::test_long_odd_rows_are_right"),
    Mutation("forward edges: the next vector's last half", "kernels.forward.clusters.edges", "last = begin + (both if before > 0 else 0)", "last = begin + both", "kernels/test_forward_edges.py::test_nothing_is_found_in_long_odd_rows[few rows, several readers]"),
    Mutation("forward edges: all threads of a row are inner ones", "kernels.forward.clusters.edges", "first >= lane * width and left", "left", "kernels/test_forward_edges.py::test_views_that_begin_within_a_vector_are_right_and_nothing_beside_the_output_is_written"),
    Mutation("forward edges: a vector that only the next row has is not fetched", "kernels.forward.clusters.passes", "elif anywhere and not kept", "elif False and not kept", "kernels/test_forward_edges.py::test_nothing_is_found_in_long_odd_rows[read again]"),
    Mutation("forward edges: elements before the row are counted", "stages.grouped", "int32(values - before) if member == 0 else values", "values", "kernels/test_forward_edges.py::test_long_odd_rows_are_right"),
    Mutation("fused: the sum for grad_weight without x̂", "kernels.backward.step_2_fused", "mine.sums_weight[at] += grad * value", "mine.sums_weight[at] += grad", "backward fused saved"),
    Mutation("final sums: a part is left out", "kernels.backward.final_sums", "for k in range(1, warps):", "for k in range(2, warps):", "kernels/test_final_sums.py::test_more_threads_add_up_many_rows_within_their_bound"),
    Mutation("final sums of many rows: every other stretch of rows is left out", "kernels.backward.final_sums", "row += IN_FLIGHT * groups", "row += 2 * IN_FLIGHT * groups", "kernels/test_final_sums.py::test_more_threads_add_up_many_rows_within_their_bound"),
    Mutation("final sums: lanes of a warp with the same columns are left out", "kernels.backward.final_sums", "for level in range(levels):", "for level in range(levels - 1):", "kernels/test_final_sums.py::test_more_threads_add_up_many_rows_within_their_bound"),
    Mutation("final sums: warps do not wait for each other", "kernels.backward.final_sums", "cuda.syncthreads()", "pass", "kernels/test_final_sums.py::test_nothing_is_found_in_the_sums_of_many_rows"),
    Mutation("final sums: not divided by gamma", "kernels.backward.final_sums", "total / divisor if divides else total", "total", "kernels/test_final_sums.py::test_the_weight_s_sums_are_divided_by_the_clamped_gamma"),
    Mutation("few final sums: not divided by gamma", "kernels.backward.final_sums", "sums[k] = sums[k] / divisors[k]", "pass", "kernels/test_final_sums.py::test_the_weight_s_sums_are_divided_by_the_clamped_gamma"),
    Mutation("final sums: divided by gamma as it is", "kernels.backward.final_sums", "divisor = clamp_by_magnitude(divisor, eps)", "pass", "kernels/test_final_sums.py::test_the_weight_s_sums_are_divided_by_the_clamped_gamma"),
    Mutation("pipelined: partial sums are divided, too", "kernels.backward.pipelined.columns", "if divide and partials.shape[0] == 1:", "if divide:", "kernels/test_invariance.py::test_sums_of_several_blocks_are_right"),
    Mutation("pipelined: a single cluster's sums are not divided", "kernels.backward.pipelined.columns", "if divide and partials.shape[0] == 1:", "if False:", "kernels/test_parameters.py::test_ordinary_gammas_are_within_the_bounds"),
    Mutation("pipelined: row groups' sums without a gap", "kernels.backward.pipelined.columns", "(threads if threads < WARP else 0)", "0", "kernels/test_traffic.py::test_rows_parameters_and_sums_cause_no_bank_conflicts"),
    Mutation("few final sums: a row in flight is left out", "kernels.backward.final_sums", "for ahead in range(FEW_IN_FLIGHT):\n                for k in range(width):\n                    sums", "for ahead in range(FEW_IN_FLIGHT - 1):\n                for k in range(width):\n                    sums", "kernels/test_final_sums.py::test_few_rows_are_added_up_in_their_order"),
    Mutation("pipelined: one phase for all rows", "kernels.backward.pipelined.turns", "phase = 1 - phase", "pass", "kernels/test_invariance.py::test_many_rows_per_block_are_right", times=2),
    Mutation("pipelined: parameters in the order of their columns", "kernels.backward.pipelined.layout", "part = min(self.thread_map.width, 16 // ACCUMULATOR_BYTES)", "part = self.thread_map.width", "kernels/test_traffic.py::test_rows_parameters_and_sums_cause_no_bank_conflicts"),
    Mutation("pipelined: the halves of a vector of parameters swapped", "kernels.backward.pipelined.parameters_wide", "target, number * part, parameters,", "target, (parts - 1 - number) * part, parameters,", "kernels/test_invariance.py::test_whole_vectors_of_eight_are_right"),
    Mutation("pipelined: a copy too many in flight", "kernels.backward.pipelined.layout", "return self.stages - 1 - self.prefetch", "return self.stages - self.prefetch", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("pipelined: the copies are not waited for", "kernels.backward.pipelined.turns", "wait_copies(in_flight)", "pass", "kernels/test_invariance.py::test_many_rows_per_block_are_right", times=2),
    Mutation("pipelined: the last row has no second pass", "kernels.backward.pipelined.turns", "while top < end + share.stride:", "while top < end:", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("pipelined: a row group's sums are left out", "kernels.backward.pipelined.columns", "range(0 if by_all else rows - 1)", "range(rows - 2)", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("pipelined: no barrier before the row groups' sums are read", "kernels.backward.pipelined.columns", "cuda.syncthreads()\n        if by_all:", "pass\n        if by_all:", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("pipelined: no barrier after all threads have added up", "kernels.backward.pipelined.columns", "cuda.syncthreads()\n        if share.group == 0:", "pass\n        if share.group == 0:", "kernels/test_invariance.py::test_many_short_rows_a_block_are_right_and_nothing_is_found"),
    Mutation("pipelined: the last of many row groups is left out", "kernels.backward.pipelined.columns", "range(1, rows):", "range(1, rows - 1):", "kernels/test_invariance.py::test_many_short_rows_a_block_are_right_and_nothing_is_found"),
    Mutation("pipelined: no barrier of the row group", "kernels.backward.pipelined.turns", "wait(share)\n            last = row", "pass\n            last = row", "kernels/test_invariance.py::test_many_rows_a_cluster_are_right_backward_and_nothing_is_found"),
    Mutation("pipelined: two row groups at one barrier", "kernels.backward.pipelined.exchange", "team_sync(share.group + 1, threads)", "team_sync(share.group // 2 + 1, threads)", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("pipelined: every cluster's sums are the gradient", "kernels.backward.pipelined.columns", "if partials.shape[0] > 1:", "if False:", "kernels/test_invariance.py::test_sums_of_several_blocks_are_right"),
    Mutation("pipelined: a single cluster's sums are no gradient", "kernels.backward.pipelined.columns", "if partials.shape[0] > 1:", "if True:", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("pipelined: the second gradient's sums over the first's", "kernels.backward.pipelined.columns", "if rows > 1 or anywhere:", "if False:", "kernels/test_invariance.py::test_many_short_rows_a_block_are_right_and_nothing_is_found"),
    Mutation("pipelined: a block ends while others read from its exchange buffer", "kernels.backward.pipelined.columns", "if reads_last_sums:\n            cluster_wait()", "pass", "kernels/test_invariance.py::test_rows_in_a_pipeline_of_one_stage_are_right_and_nothing_is_found"),
    Mutation("beside: the last rows of a turn are left out", "kernels.backward.pipelined.beside", "for ahead in range(AT_ONCE):\n                if row + ahead * stride < n1:", "for ahead in range(AT_ONCE // 2):\n                if row + ahead * stride < n1:", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: the last row counts again", "kernels.backward.pipelined.beside", "if row + ahead * stride < n1:", "if True:", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: no barrier before the lanes' sums are read", "kernels.backward.pipelined.beside", "cuda.syncthreads()\n        if weighted:\n            shared", "pass\n        if weighted:\n            shared", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: no barrier before the warps' sums are read", "kernels.backward.pipelined.beside", "cuda.syncthreads()\n        column = start + lane", "column = start + lane", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: a warp's first row alone", "kernels.backward.pipelined.beside", "shared[first + lane] = strided_sum(shared, first + lane, width, COLUMNS)", "pass", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: a warp too few", "kernels.backward.pipelined.beside", "total = strided_sum(shared, first + lane, members, width * COLUMNS)", "total = strided_sum(shared, first + lane, members - 1, width * COLUMNS)", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: columns past the row's end", "kernels.backward.pipelined.beside", "end = n2 if tile < tiles else 0", "end = n2", "kernels/test_invariance.py::test_warps_of_a_block_have_columns_of_their_own_where_blocks_are_many"),
    Mutation("beside: not divided by gamma", "kernels.backward.pipelined.beside", "total = total / clamp_by_magnitude(gamma, operands.eps)", "pass", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("beside: columns of the first tile for all", "kernels.backward.pipelined.beside", "* tiles + tile) * COLUMNS", "* tiles) * COLUMNS", "kernels/test_invariance.py::test_warps_of_a_block_have_columns_of_their_own_where_blocks_are_many"),
    Mutation("short rows: the copies are not waited for", "kernels.backward.short_rows.kernel", "wait_copies(0)", "pass", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: no barrier before other lanes' copies are read", "kernels.backward.short_rows.kernel", "wait_for_team()\n            fetch(", "fetch(", "kernels/test_short_rows.py::test_nothing_is_found_in_short_rows"),
    Mutation("short rows: no barrier before other lanes' results are stored", "kernels.backward.short_rows.kernel", "wait_for_team()\n        grad_input", "grad_input", "kernels/test_short_rows.py::test_nothing_is_found_in_short_rows"),
    Mutation("short rows: the stage that is read is filled", "kernels.backward.short_rows.kernel", "place, 1 - slot, tile + stride", "place, slot, tile + stride", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: a warp takes every tile of its block", "kernels.backward.short_rows.kernel", "stride = cuda.gridDim.x * tiles_at_once", "stride = cuda.gridDim.x", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: warps that share a tile do not wait for each other", "kernels.backward.short_rows.kernel", "cuda.syncthreads()", "cuda.syncwarp()", "kernels/test_short_rows.py::test_tiles_that_warps_share_are_right_and_nothing_is_found"),
    Mutation("short rows: warps that share a tile take the same rows", "kernels.backward.short_rows.kernel", "take_rows(place.turn + turn,", "take_rows(turn,", "kernels/test_short_rows.py::test_tiles_that_warps_share_are_right_and_nothing_is_found"),
    Mutation("short rows: one warp's lanes copy a shared tile", "kernels.backward.short_rows.kernel", "member * WARP + lane", "lane", "kernels/test_short_rows.py::test_tiles_that_warps_share_are_right_and_nothing_is_found"),
    Mutation("short rows: sums where a warp's results still are", "kernels.backward.short_rows.columns", "cuda.syncthreads()\n        if weighted:\n            leave_sums", "if weighted:\n            leave_sums", "kernels/test_short_rows.py::test_nothing_is_found_in_short_rows"),
    Mutation("short rows: lanes share columns", "kernels.backward.short_rows.kernel", "lane % lanes * width", "lane % lanes", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: lane groups share rows", "kernels.tiles", "turn // neighbours * together", "turn // neighbours * neighbours", "kernels/test_short_rows.py::test_short_rows_are_right"),
    Mutation("short rows: the next row's mean", "kernels.backward.short_rows.rows", "numbers + row_of(k) + rows)", "numbers + row_of(k) + rows + 1)", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: a lane past the row's end reads the next row", "kernels.backward.short_rows.rows", "if v < filled or place.column + v * span < n2:\n                load_bits", "if True:\n                load_bits", "kernels/test_short_rows.py::test_short_rows_are_right"),
    Mutation("short rows: mean(g) takes the clamped gamma", "kernels.backward.short_rows.rows", "sum_g += grad * parameters.gammas[k] if weighted", "sum_g += grad * (parameters.clamped[k] if recomputes else parameters.gammas[k]) if weighted", "kernels/test_short_rows.py::test_short_rows_are_right"),
    Mutation("short rows: only some lane groups' sums", "kernels.backward.short_rows.columns", "lanes << level", "1 << level", "kernels/test_short_rows.py::test_short_rows_are_right"),
    Mutation("short rows: a warp's sums are left out", "kernels.backward.short_rows.columns", "for warp in range(1, warps):", "for warp in range(2, warps):", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: each block's sums are the gradient", "kernels.backward.short_rows.columns", "partials.shape[0] > 1", "False", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: no barrier before the warps' sums are read", "kernels.backward.short_rows.columns", "cuda.syncthreads()\n        if weighted:\n            write_sums", "if weighted:\n            write_sums", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: the row's sum is not corrected", "kernels.backward.short_rows.rows", "sum_gx = corrected(sum_gx, operands.row_sums, row)", "pass", "kernels/test_short_rows.py::test_the_exact_mode_has_the_means_of_every_row"),
    Mutation("short rows: elements past the matrix's end", "stages.line_tile", "store(stages, at + place + k, 0)", "pass", "kernels/test_short_rows.py::test_many_tiles_a_warp_are_right"),
    Mutation("short rows: a vector past the matrix's end is copied", "stages.line_tile", "if place + width <= left:", "if place < left:", "kernels/test_short_rows.py::test_short_rows_are_right"),
    Mutation("short rows: the matrix's last element is not stored", "stages.line_tile", "if place < left:\n            copy_bits(line", "if place + 1 < left:\n            copy_bits(line", "kernels/test_short_rows.py::test_short_rows_are_right"),
    Mutation("short rows: the vector in which the matrix ends is not fetched", "stages.line_tile", "if place < left:\n            store(stages", "if place + 1 < left:\n            store(stages", "kernels/test_forward_short_rows.py::test_tiles_are_right_forward"),
    Mutation("sums of lanes: the upper lane keeps the lower half", "stages.warp", "if upper:", "if not upper:", "stages/test_warp.py::test_several_sums_have_the_bits_of_a_butterfly_each"),
    Mutation("sums of lanes: all lanes get the first part's share", "stages.warp", "first + part * sharing", "first", "stages/test_warp.py::test_several_sums_have_the_bits_of_a_butterfly_each"),
    Mutation("sums of lanes: a level too few", "stages.warp", "for level in range(splits, levels):", "for level in range(splits + 1, levels):", "stages/test_warp.py::test_several_sums_have_the_bits_of_a_butterfly_each"),
    Mutation("short rows: results in the stage that is filled next", "kernels.backward.short_rows.kernel", "grads_at + stage * elements if in_place", "grads_at + (stage ^ 1) * elements if in_place", "kernels/test_short_rows.py::test_nothing_is_found_in_short_rows"),
    Mutation("tiles forward: the copies are not waited for", "kernels.forward.short_rows", "wait_copies(0)", "pass", "kernels/test_forward_short_rows.py::test_many_tiles_a_warp_are_right_forward"),
    Mutation("tiles forward: no barrier before other lanes' copies are read", "kernels.forward.short_rows", "cuda.syncwarp()\n            fetch(", "fetch(", "kernels/test_forward_short_rows.py::test_nothing_is_found_in_tiles_forward"),
    Mutation("tiles forward: no barrier before other lanes' results are stored", "kernels.forward.short_rows", "cuda.syncwarp()\n            begin", "begin", "kernels/test_forward_short_rows.py::test_nothing_is_found_in_tiles_forward"),
    Mutation("tiles forward: the stage that is read is filled", "kernels.forward.short_rows", "stage + (1 - slot) * tile_elements", "stage + slot * tile_elements", "kernels/test_forward_short_rows.py::test_many_tiles_a_warp_are_right_forward"),
    Mutation("tiles forward: warps share tiles", "kernels.forward.short_rows", "cuda.blockIdx.x * warps + warp", "cuda.blockIdx.x * warps", "kernels/test_forward_short_rows.py::test_many_tiles_a_warp_are_right_forward"),
    Mutation("tiles forward: statistics of the next row", "kernels.forward.short_rows", "// sharing * left + k)", "// sharing * left + k) + 1", "kernels/test_forward_short_rows.py::test_tiles_are_right_forward"),
    Mutation("tiles forward: a deviation past the row's end", "kernels.forward.short_rows", "if mean is None or v < filled or column + v * span < n2:", "if True:", "kernels/test_forward_short_rows.py::test_many_tiles_a_warp_are_right_forward"),
    Mutation("tiles forward: a lane past the row's end reads the next row", "kernels.forward.short_rows", "if v < filled or column + v * span < n2:\n                load_bits", "if True:\n                load_bits", "kernels/test_forward_short_rows.py::test_tiles_are_right_forward"),
    Mutation("tiles forward: lanes share columns", "kernels.forward.short_rows", "lane % lanes * width", "lane % lanes", "kernels/test_forward_short_rows.py::test_many_tiles_a_warp_are_right_forward"),
    Mutation("tiles forward: parts are added up in another order", "kernels.forward.short_rows", "(sums[0] + sums[2]) + (sums[1] + sums[3])", "sums[0] + sums[1] + sums[2] + sums[3]", "kernels/test_forward_short_rows.py::test_a_short_row_s_bits_depend_neither_on_the_number_of_rows_nor_on_the_grid"),
    Mutation("tiles forward: few rows have fewer lanes", "kernels.forward.short_rows", "layout.lanes * parts_of(layout)", "layout.lanes", "kernels/test_forward_short_rows.py::test_a_short_row_s_bits_depend_neither_on_the_number_of_rows_nor_on_the_grid"),
    Mutation("split rows: a piece is left out", "kernels.backward.split_rows", "while piece < sums.shape[1]:", "while piece + 1 < sums.shape[1]:", "kernels/test_split_rows.py::test_gradients_of_split_rows_are_within_the_bounds"),
    Mutation("split rows: groups share rows", "kernels.backward.split_rows", "row = top + ahead * stride", "row = top + ahead", "kernels/test_split_rows.py::test_gradients_of_split_rows_are_within_the_bounds", times=2),
    Mutation("split rows: both sums in one place", "kernels.backward.split_rows", "store(sums, (n1 + row, cuda.blockIdx.x), sum_gx)", "store(sums, (row, cuda.blockIdx.x), sum_gx)", "kernels/test_split_rows.py::test_gradients_of_split_rows_are_within_the_bounds"),
    Mutation("split rows: pieces overlap", "kernels.backward.split_rows", "first = cuda.blockIdx.x * VECTORS * span", "first = cuda.blockIdx.x * span", "kernels/test_split_rows.py::test_gradients_of_split_rows_are_within_the_bounds"),
    Mutation("split rows: pieces' means are left out", "kernels.forward.split_rows", "square_sum += size * (deviation * deviation)", "square_sum += deviation - deviation", "kernels/test_split_rows.py::test_split_rows_are_within_the_bounds_forward"),
    Mutation("split rows: E[x²] - E[x]² of a piece", "kernels.forward.split_rows", "deviation = values[v * width + k] - center\n                        square_sum += deviation * deviation", "square_sum += values[v * width + k] * values[v * width + k] - center * center", "kernels/test_split_rows.py::test_split_rows_are_within_the_bounds_forward"),
    Mutation("ranks: a part of several ranks counts as one", "kernels.ranks", "count_of(messages, second, step)", "count_of(messages, second, 1)", "kernels/test_ranks.py::test_merged_statistics_are_within_the_bounds"),
    Mutation("ranks: the last pair is left out", "kernels.ranks", "while first + step < ranks:\n            second", "while first + 2 * step < ranks:\n            second", "kernels/test_ranks.py::test_merged_statistics_are_within_the_bounds"),
    Mutation("ranks: one level only", "kernels.ranks", "step *= 2\n@cuda.jit(device=True)\ndef add_ranks", "step *= 1024\n@cuda.jit(device=True)\ndef add_ranks", "kernels/test_ranks.py::test_merged_statistics_are_within_the_bounds"),
    Mutation("ranks: the merged m2 is kept to itself", "kernels.ranks", "store(messages, (first, 1 + sets + index), m2)", "pass", "kernels/test_ranks.py::test_merged_statistics_are_within_the_bounds"),
    Mutation("ranks: the variance is biased", "kernels.ranks", "size - cast(1, messages)", "size", "kernels/test_ranks.py::test_merged_statistics_are_within_the_bounds"),
    Mutation("ranks: the first rank's size for all", "kernels.ranks", "held = count_of(messages, 0, messages.shape[0])", "held = count_of(messages, 0, 1)", "kernels/test_ranks.py::test_merged_statistics_are_within_the_bounds"),
    Mutation("ranks: sums begin at the count", "kernels.ranks", "add_ranks(messages, 1 + index)", "add_ranks(messages, index)", "kernels/test_ranks.py::test_merged_sums_of_squares_and_means_are_within_the_bounds"),
    Mutation("ranks: sums of g in place of g x̂", "kernels.ranks", "add_ranks(messages, first + index) / size", "add_ranks(messages, index) / size", "kernels/test_ranks.py::test_merged_sums_of_squares_and_means_are_within_the_bounds"),
    Mutation("ranks: sums, no means", "kernels.ranks", "add_ranks(messages, index) / size", "add_ranks(messages, index)", "kernels/test_ranks.py::test_merged_sums_of_squares_and_means_are_within_the_bounds"),
    Mutation("ranks: a channel's means without its gamma", "kernels.ranks", "gamma = element(weight, index)", "gamma = None", "kernels/test_ranks.py::test_merged_sums_of_squares_and_means_are_within_the_bounds"),
    Mutation("message: m2 over the means", "kernels.ranks", "store(message, 1 + n1 + row, square_sum)", "store(message, 1 + row, square_sum)", "kernels/test_ranks.py::test_a_message_holds_the_count_and_the_moments_of_whole_rows"),
    Mutation("message: no count", "kernels.ranks", "store(message, 0, cast(n2, message))", "pass", "kernels/test_ranks.py::test_a_message_holds_the_count_and_the_moments_of_whole_rows"),
    Mutation("sums of lanes: a level of the butterfly too few", "stages.warp", "levels, half = lanes.bit_length() - 1,", "levels, half = lanes.bit_length() - 2,", "stages/test_warp.py::test_every_part_of_a_warp_gets_its_own_sum"),
    Mutation("sums of lanes: the neighbour's sums, too", "stages.warp", "lanes.bit_length() - 1, lanes // 2", "lanes.bit_length() - 1, lanes", "stages/test_warp.py::test_every_part_of_a_warp_gets_its_own_sum"),
    Mutation("short rows: a warp's values are counted", "stages.grouped", "thread_map.lanes * thread_map.width", "32 * thread_map.width", "kernels/test_invariance.py::test_short_rows_are_right_forward"),
    Mutation("narrow: a large gamma is inverted in a hurry", "kernels.backward.pipelined.parameters_narrow", " and LEAST <= abs(gamma) <= MOST", "", "kernels/test_parameters.py::test_large_gammas_are_within_the_bounds"),
    Mutation("narrow: a thread's first vector alone is asked", "kernels.backward.pipelined.parameters_narrow", "while v < vectors and", "while v < 1 and", "kernels/test_parameters.py::test_a_single_rare_gamma_is_found_in_a_row_s_last_vector"),
    Mutation("narrow: odd rows have no rare gamma", "kernels.backward.pipelined.parameters_narrow", "cuda.syncthreads_or(int32(rare)) != 0", "cuda.syncthreads_or(0) != 0", "kernels/test_parameters.py::test_a_single_rare_gamma_is_found_at_the_end_of_an_odd_row"),
    Mutation("narrow: few rows have no rare gamma", "kernels.backward.pipelined.parameters_narrow", "if asks else inverted", "if asks else False", "kernels/test_parameters.py::test_clamped_gammas_are_within_the_bounds"),
    Mutation("short rows: the sums are divided by gamma as it is", "kernels.backward.short_rows.columns", "clamp_by_magnitude(load(weight, column), eps)", "load(weight, column)", "kernels/test_short_rows.py::test_clamped_gammas_are_within_the_bounds_in_short_rows"),
    Mutation("narrow: no gamma is clamped", "kernels.backward.pipelined.parameters_narrow", "abs(gamma) >= eps and ", "", "kernels/test_parameters.py::test_a_single_rare_gamma_is_found_in_a_row_s_last_vector"),
    Mutation("narrow: the sums are divided by gamma as it is", "kernels.backward.pipelined.parameters_narrow", "gammas[k] = clamp_by_magnitude(gammas[k], eps)", "pass", "kernels/test_parameters.py::test_clamped_gammas_are_within_the_bounds"),
    Mutation("narrow: beta where gamma lies", "kernels.backward.pipelined.parameters_narrow", "start + kind.weighted * layout.thread_map.columns", "start", "kernels/test_parameters.py::test_clamped_gammas_are_within_the_bounds"),
    Mutation("narrow: not waited for", "kernels.backward.pipelined.parameters_narrow", "wait_copies(prefetched)", "wait_copies(prefetched + 1)", "kernels/test_invariance.py::test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found"),
    Mutation("pipelined without a prefetch: no barrier of the row group", "kernels.backward.pipelined.turns", "wait(share)\n                read_sums", "pass\n                read_sums", "kernels/test_invariance.py::test_nothing_is_found_in_many_rows_per_block"),
    Mutation("edges: the row before is not cleared", "kernels.backward.pipelined.edges", "clear_up_to(int32(-first), memory, row.at)", "pass", "kernels/test_edges.py::test_the_neighbours_of_a_row_do_not_reach_its_sums"),
    Mutation("edges: the row after is not cleared", "kernels.backward.pipelined.edges", "clear_from(int32(left - v * span), memory, row.at + v * span)", "pass", "kernels/test_edges.py::test_the_neighbours_of_a_row_do_not_reach_its_sums"),
    Mutation("edges: a copy past the matrix's end", "kernels.backward.pipelined.edges", "int32(width - 1 if row == n1 - 1 else 0)", "int32(0)", "kernels/test_edges.py::test_odd_rows_are_right"),
    Mutation("edges: the matrix's last elements are not loaded", "kernels.backward.pipelined.edges", "load_last(operands, memory, row.at + v * span, n1 * n2 - left + v * span, left - v * span)", "pass", "kernels/test_edges.py::test_odd_rows_are_right"),
    Mutation("edges: the row before is overwritten", "kernels.backward.pipelined.edges", "if first >= 0 and left >= width:", "if left >= width:", "kernels/test_edges.py::test_odd_rows_are_right"),
    Mutation("edges: the row after is overwritten", "kernels.backward.pipelined.edges", "if first >= 0 and left >= width:", "if first >= 0:", "kernels/test_edges.py::test_no_element_beside_grad_input_is_written"),
    Mutation("edges: clusters take rows of all alignments", "kernels.backward.pipelined.prologue", "alignment, together, min(", "alignment, together + 1, min(", "kernels/test_edges.py::test_few_clusters_take_all_rows_of_all_alignments"),
    Mutation("edges: row groups side by side", "kernels.backward.pipelined.prologue", "row = share.top + share.group * alignments", "row = share.top + share.group", "kernels/test_edges.py::test_odd_rows_are_right"),
    Mutation("edges: the means are left by no thread", "kernels.backward.pipelined.turns", "if share.first <= 0:", "if share.first == 0:", "kernels/test_edges.py::test_the_exact_mode_has_the_means_of_every_row", times=2),
    Mutation("edges: wide gamma beside the row", "kernels.backward.pipelined.parameters_wide", "if aligned or 0 <= first + v * span + k < n2:", "if True:", "kernels/test_edges.py::test_odd_rows_of_a_cluster_are_right_and_nothing_is_found"),
    Mutation("edges: narrow gamma beside the row", "kernels.backward.pipelined.parameters_narrow", "return min(max(column, 0), n2 - 1)", "return column", "kernels/test_edges.py::test_nothing_is_found_in_odd_rows"),
    Mutation("edges: narrow parameters in the first one's place", "kernels.backward.pipelined.parameters_narrow", "bits[turn])", "bits[0])", "kernels/test_edges.py::test_few_clusters_take_all_rows_of_all_alignments"),
    Mutation("edges: sums before the row", "kernels.backward.pipelined.columns", "elif column >= 0 and place < columns:", "elif place < columns:", "kernels/test_edges.py::test_odd_rows_of_a_cluster_are_right_and_nothing_is_found"),
    Mutation("edges: sums of the next block", "kernels.backward.pipelined.columns", "elif column >= 0 and place < columns:", "elif column >= 0:", "kernels/test_edges.py::test_odd_rows_of_a_cluster_are_right_and_nothing_is_found"),
    Mutation("edges: nothing behind the last sum", "kernels.backward.pipelined.columns", "store(partials, (share.line, column), 0)", "pass", "kernels/test_edges.py::test_lines_of_sums_are_written_to_their_ends"),
    Mutation("edges: a line of sums is read before it is there", "kernels.backward.pipelined.columns", "cuda.syncthreads()\n            write_line", "pass\n            write_line", "kernels/test_edges.py::test_odd_rows_of_a_cluster_are_right_and_nothing_is_found"),
    Mutation("edges: the next alignment's rows come over the sums", "kernels.backward.pipelined.kernel", "cuda.syncthreads()\n                alignment", "pass\n                alignment", "kernels/test_edges.py::test_odd_rows_of_a_cluster_are_right_and_nothing_is_found"),
    Mutation("edges: two alignments' sums in one line", "kernels.backward.pipelined.prologue", "n1), cluster + alignment", "n1), cluster", "kernels/test_edges.py::test_few_clusters_take_all_rows_of_all_alignments"),
    Mutation("edges: a cluster goes on with the next one's rows", "kernels.backward.pipelined.prologue", "min(end * together + alignment, n1)", "n1", "kernels/test_edges.py::test_few_clusters_take_all_rows_of_all_alignments"),
    Mutation("edges: an alignment's first rows are left out", "kernels.backward.pipelined.prologue", "begin * together + alignment, together", "(begin + 1) * together + alignment, together", "kernels/test_edges.py::test_few_clusters_take_all_rows_of_all_alignments"),
    Mutation("pipelined: columns of grad_output swapped", "kernels.backward.pipelined.passes", "copy_async(memory.grad_stages, grads_at + at + v * span,", "copy_async(memory.grad_stages, grads_at + at + (vectors - 1 - v) * span,", "kernels/test_invariance.py::test_many_rows_per_block_are_right"),
    Mutation("choose: no barrier before the warps' counts are read", "kernels.exact.choose", "cuda.syncthreads()", "pass", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("choose: the last warp before is left out", "kernels.exact.choose", "for other in range(warp):", "for other in range(warp - 1):", "kernels/test_exact.py::test_the_columns_are_those_of_the_definition_in_order"),
    Mutation("choose: a free slot keeps what stood there", "kernels.exact.choose", "columns[slot] = -1", "pass", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("survey: the first norm's bias for all", "kernels.exact.survey", "table[norm, 2]", "table[0, 2]", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("survey: the first norm's spread for all", "kernels.exact.survey", "table[norm, 3]", "table[0, 3]", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("survey: the first columns alone", "kernels.exact.choose", "top += cuda.blockDim.x", "top = norm.n2", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("survey: all counts in one place", "kernels.exact.survey", "counts[norm] = found", "counts[0] = found", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("exact: beta's share of the risk forgotten", "kernels.exact.risk", "return beta is not None and abs(beta) > limits.ratio * (size * spread)", "return False", "kernels/test_exact.py::test_the_borders_of_the_risk"),
    Mutation("exact: the spread forgotten", "kernels.exact.risk", "limits.ratio * (size * spread)", "limits.ratio * size", "kernels/test_exact.py::test_a_survey_lists_the_columns_of_each_norm"),
    Mutation("spread: rows that are not finite count", "kernels.exact.spread", "if square >= -one:", "if True:", "kernels/test_exact.py::test_the_spread_is_that_of_the_definition"),
    Mutation("spread: the last rows are left out", "kernels.exact.spread", "row += cuda.blockDim.x", "row = invvar.shape[0]", "kernels/test_exact.py::test_the_spread_is_that_of_the_definition"),
    Mutation("keep: the mean is not subtracted", "kernels.exact.keep", "element(mean, row)", "None", "backward pipelined exact"),
    Mutation("correct: what the step adds is not taken away", "kernels.exact.correct", "(right - added)", "right", "backward apex exact"),
    Mutation("pipelined: the row's sum is not corrected", "kernels.backward.pipelined.exchange", "add_up(partials, 0) + correction", "add_up(partials, 0)", "kernels/test_edges.py::test_the_exact_mode_has_the_means_of_every_row"),
    Mutation("repair: gamma forgotten", "kernels.exact.repair", "affine(grad, gamma, None)", "grad", "backward fused exact"),
    Mutation("repair: no barrier", "kernels.exact.repair", "cuda.syncthreads()", "pass", "backward fused exact"),
    Mutation("planes: squares, not of deviations", "kernels.family.planes", "deviation = values[u * width + k] - center", "deviation = values[u * width + k]", "family planes"),
    Mutation("planes: the sum for grad_weight without x̂", "kernels.family.planes", "grads[k] * normalised_from_input(values[k], center, scale)", "grads[k] * values[k]", "family planes"),
    Mutation("planes: mean(g) not subtracted", "kernels.family.planes", "gradient - first - xhat", "gradient - xhat", "family planes"),
    Mutation("planes: a run's end left out", "kernels.family.planes", "x.shape[2] // width", "x.shape[2] // width - 1", "family planes"),
    Mutation("planes: a group's first plane alone", "kernels.family.planes", "plane_end = min(plane + planes, (batch + 1) * outer)", "plane_end = plane + 1", "family planes"),
    Mutation("lane groups: one level short", "stages.lane_groups", "for level in range(levels):\n            value", "for level in range(levels - 1):\n            value", "family planes"),
    Mutation("columns: no barrier between rounds", "kernels.family.column_merge", "cuda.syncthreads()\n            if y < half:\n                other", "if y < half:\n                other", "family columns"),
    Mutation("columns: counts stay those of a thread", "kernels.family.column_merge", "count += other", "pass", "family columns"),
    Mutation("columns: read before it has come", "kernels.family.column_walks", "wait_copies(in_flight)", "wait_copies(slots)", "family columns", times=2),
    Mutation("columns: the last kernel leaves out a thread's last row", "kernels.family.column_outputs", "first + min(turns - 1,", "first + min(turns - 2,", "family columns"),
    Mutation("fused: blocks do not wait for each other", "kernels.family.column_fused", "grid_sync(arrivals, 0)", "cuda.syncthreads()", "family fused", times=2),
    Mutation("fused: a row from its neighbour's slot", "kernels.family.column_returns", "return uint32(slot - 1) if slot > kept else uint32(slots - 1)", "return slot", "family fused"),
    Mutation("fused: an earlier row comes too early", "kernels.family.column_returns", "ring_slots * apart", "(ring_slots - 1) * apart", "family fused", times=2),
    Mutation("fused: kept rows are overwritten", "kernels.family.column_vectors", "uint32(first)", "uint32(0)", "family fused"),
    Mutation("fused: taken before it has come", "kernels.family.column_returns", "wait_copies(all_but_one)", "wait_copies(slots)", "family fused", times=2),
    Mutation("fused: the last row left out", "kernels.family.column_returns", "return uint32(turns + 1) if rows.first + turns * rows.stride < rows.end else uint32(turns)", "return uint32(turns)", "family fused"),
    Mutation("fused: all row blocks have as many rows", "kernels.family.column_merge", "min(max(left - block * down, 0), down)", "down", "family fused"),
    Mutation("fused: a thread's first row block alone", "kernels.family.column_merge", "count += size\n            block += down", "count += size\n            block += blocks", "family fused"),
    Mutation("fused: mean(g) without gamma", "kernels.family.column_fused", "affine(exchange[0, k, column], gamma, None) /", "exchange[0, k, column] /", "family fused"),
    Mutation("merge: a channel's total divided, too", "kernels.family.merge", "store(total_first, index, sum_first)", "store(total_first, index, sum_first / divisor)", "family columns"),
    Mutation("columns: a column's neighbour", "kernels.family.column_vectors", "(channel + k) // each", "channel // each", "family columns"),
    Mutation("merge: the first line's pieces again and again", "kernels.family.merge", "(batch * outer + item // inner) * sets", "batch * outer * sets", "family planes", times=2),
    Mutation("merge: one gamma for all of a group's channels", "kernels.family.merge", "(inner // slices) + item % inner // slices", "(inner // slices)", "family planes"),
    Mutation("rows: lanes past the end count", "kernels.family.rows", "if v < filled or first + v * span < n2:", "if True:", "family rows"),
    Mutation("rows: the first channel's gamma for all of a group", "kernels.family.rows", "(n2 // run) + column // run", "(n2 // run)", "family rows"),
    Mutation("rows: squares of one warp", "kernels.family.rows", "square_sum = block_sum(square_sum, buffer)", "pass", "family rows"),
    Mutation("running: the old ones stay whole", "kernels.family.running", "keep = float32(1) - momentum", "keep = float32(1)", "family running"),
    Mutation("residual: the sum is not rounded before it is normalised", "stages.residual", "rounded(values[k] + others[k], new_residual)", "values[k] + others[k]", "kernels/test_add_norm.py::test_the_stage_adds_rounds_and_stores_what_it_leaves_in_registers[bfloat16]"),
    Mutation("residual: not added", "stages.residual", "rounded(values[k] + others[k], new_residual)", "rounded(values[k], new_residual)", "kernels/test_add_norm.py::test_the_fast_kernels_take_the_residual_and_are_within_the_bounds"),
    Mutation("residual: the sum is not stored", "stages.residual", "store_vector_from(new_residual, (row, column), values, v * width, width)", "pass", "kernels/test_add_norm.py::test_the_stage_adds_rounds_and_stores_what_it_leaves_in_registers[float32]"),
    Mutation("residual: its gradient is not added", "kernels.backward.pipelined.passes", "grads[k] += values[k]", "pass", "kernels/test_add_norm.py::test_the_fast_kernels_take_the_residual_and_are_within_the_bounds"),
    Mutation("residual: its gradient is not fetched", "kernels.backward.pipelined.passes", "copy_async(memory.saved_stages, there, operands.grad_residual, (row, column), width)", "pass", "kernels/test_add_norm.py::test_the_fast_kernels_take_the_residual_and_are_within_the_bounds"),
    Mutation("residual: its gradient's stages lie on dy's", "kernels.backward.pipelined.layout", "both = self.saved_bytes + self.grad_bytes", "both = self.saved_bytes", "kernels/test_add_norm.py::test_the_fast_kernels_take_the_residual_and_are_within_the_bounds"),
    Mutation("residual: the parameters lie on its gradient's stages", "kernels.backward.pipelined.layout", "together = self.saved_bytes + self.grad_bytes + self.third_bytes", "together = self.saved_bytes + self.grad_bytes", "kernels/test_add_norm.py::test_the_fast_kernels_take_the_residual_and_are_within_the_bounds"),
    Mutation("offset: not in the forward", "stages.output", "gammas[at + k] += cast(offset, gammas)", "pass", "kernels/test_add_norm.py::test_an_offset_is_the_weight_with_the_offset_added_bit_for_bit"),
    Mutation("offset: not with narrow parameters", "kernels.backward.pipelined.parameters_narrow", "gammas[k] += cast(offset_of_gamma, gammas)", "pass", "kernels/test_add_norm.py::test_the_fast_kernels_take_the_residual_and_are_within_the_bounds"),
    Mutation("offset: not with wide parameters", "kernels.backward.pipelined.parameters_wide", "gammas[k] += cast(offset, gammas)", "pass", "kernels/test_add_norm.py::test_an_offset_is_the_weight_with_the_offset_added_bit_for_bit"),
    Mutation("added apart: the second array is left out", "kernels.add_norm", "total = value + other", "total = value", "kernels/test_add_norm.py::test_what_the_fast_kernels_refuse_is_done_apart_within_the_same_bounds"),
    Mutation("added apart: the offset is left out", "kernels.add_norm", "total += cast(offset, like)", "pass", "kernels/test_add_norm.py::test_what_the_fast_kernels_refuse_is_done_apart_within_the_same_bounds"),
    Mutation("gate: the exponential grows", "stages.gate", "exponential(-abs(z))", "exponential(abs(z))", "kernels/test_gated_norm.py::test_silu_and_its_slope_are_within_their_bound_however_far_from_0"),
    Mutation("gate: both sigmoids as for a gate above 0", "stages.gate", "(larger, smaller) if z >= 0 else (smaller, larger)", "larger, smaller", "kernels/test_gated_norm.py::test_silu_and_its_slope_are_within_their_bound_however_far_from_0"),
    Mutation("gate: the slope takes σ(z) for σ(-z)", "stages.gate", "z * rest)", "z * sigma)", "kernels/test_gated_norm.py::test_silu_and_its_slope_are_within_their_bound_however_far_from_0"),
    Mutation("gate: the stage does nothing", "stages.gate", "values[k] *= silu(gates[k], gates)", "pass", "kernels/test_gated_norm.py::test_the_stage_gates_all_elements_of_a_row_and_none_beside_it"),
    Mutation("gate: its rows are not the norm's", "kernels.forward.step_6_one_barrier", "load_gates(gates, gate, row, first)", "load_gates(gates, gate, 0, first)", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: before the norm, but not in its input", "kernels.forward.step_6_one_barrier", "if not after:", "if False:", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[gated x]"),
    Mutation("gate: the divisor is not clamped", "stages.gate", "clamp_by_magnitude(factor, eps)", "factor", "kernels/test_gated_norm.py::test_recomputing_beside_gates_and_weights_near_0_loses_x_there_and_nowhere_else"),
    Mutation("gate: x̂ from the output is divided by silu alone", "stages.gate", "silu if gamma is None else gamma * silu", "silu", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[recompute]"),
    Mutation("gate: x̂ of the plain x", "stages.gate", "return value * silu * scale, grad", "return value * scale, grad", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[gated x]"),
    Mutation("gate: dy is not gated", "stages.gate", "return value * scale, grad * silu", "return value * scale, grad", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: its gradient takes silu for the slope", "stages.gate", "grad * normalised * slope", "grad * normalised * silu", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: its gradient lacks gamma", "stages.gate", "normalised = xhat if gamma is None else xhat * gamma", "normalised = xhat", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: the gradient of x is not gated", "stages.gate", "return through * silu, through * value * slope", "return through, through * value * slope", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[gated x]"),
    Mutation("gate: not fetched", "kernels.backward.pipelined.passes", "copy_async(memory.saved_stages, there, operands.gate, at_gate, width)", "pass", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: its stages are taken for the saved array's", "kernels.backward.pipelined.gated", "thirds_at + at", "at", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[gated x]"),
    Mutation("gate: the row's sum lacks gamma", "kernels.backward.pipelined.gated", "product *= gammas[k]", "pass", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: the column's sum is left out", "kernels.backward.pipelined.gated", "sums.weight[v * width + k] += product", "pass", "kernels/test_gated_norm.py::test_few_rows_with_and_without_blocks_for_the_columns_are_within_the_bounds"),
    Mutation("gate: registers keep x̂ where g is", "kernels.backward.pipelined.gated", "kept[k], kept[width + k] = g, xhat", "kept[k], kept[width + k] = xhat, g", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[saved]"),
    Mutation("gate: registers keep x silu for x", "kernels.backward.pipelined.gated", "= value, silu, slope", "= value * silu, silu, slope", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[gated x]"),
    Mutation("gate: its gradient is not stored", "kernels.backward.pipelined.gated", "store_vector_from(operands.grad_gate, (row.number, column), gates, 0, width)", "pass", "kernels/test_gated_norm.py::test_the_fast_kernels_take_the_gate_and_are_within_the_bounds[recompute]"),
    Mutation("gated apart: rows are not gated", "kernels.gated_norm", "return value * silu(z, like)", "return value", "kernels/test_gated_norm.py::test_gated_rows_that_the_fast_kernels_refuse_are_within_the_same_bounds[saved]"),
    Mutation("gated apart: x̂ is handed on for what was normalised", "kernels.gated_norm", "values[k], grads[k] = xhat / scale, inner", "values[k], grads[k] = xhat, inner", "kernels/test_gated_norm.py::test_gated_rows_that_the_fast_kernels_refuse_are_within_the_same_bounds[gated x]"),
    Mutation("gated apart: the gradients are those before the norm", "kernels.gated_norm", "if leaving:", "if False:", "kernels/test_gated_norm.py::test_gated_rows_that_the_fast_kernels_refuse_are_within_the_same_bounds[gated x]"),
    Mutation("gate apart: read as if its rows followed each other", "stages.gate", "place_of = place_finder(gate_map)", "place_of = place_finder(None)", "kernels/test_gated_apart.py::test_rows_are_read_where_they_lie_and_have_a_copy_s_bits[saved]"),
    Mutation("gate apart, backward: read as if its rows followed each other", "kernels.backward.pipelined.passes", "place_finder(kind.gate_map)", "place_finder(None)", "kernels/test_gated_apart.py::test_rows_are_read_where_they_lie_and_have_a_copy_s_bits[saved]"),
    Mutation("modulated: every row has the first sample's parameters", "stages.sampled", "sample = uint32(row) // (uint32(output.shape[0]) // uint32(weight.shape[0]))", "sample = 0", "kernels/test_modulated_norm.py::test_the_fast_kernels_modulate_and_are_within_the_bounds"),
    Mutation("modulated: a block takes rows of two samples", "kernels.forward.row_phases", "return first, first + 1, 1, end", "return first, first + 1, 1, output.shape[0]", "kernels/test_modulated_norm.py::test_nothing_is_found_where_a_block_has_places_for_more_rows_than_its_sample"),
    Mutation("modulated: parameters are read before all threads' copies have arrived", "stages.sampled", "wait_copies(0)\n        cuda.syncthreads()", "wait_copies(0)", "kernels/test_modulated_norm.py::test_nothing_is_found_where_a_block_has_places_for_more_rows_than_its_sample"),
    Mutation("modulated: every sample begins with its first block's rows", "stages.sampled", "(cuda.blockIdx.x - int32(sample) * int32(blocks)) * rows", "0", "kernels/test_modulated_norm.py::test_the_fast_kernels_modulate_and_are_within_the_bounds"),
    Mutation("modulated: a block takes the rows of the next sample", "kernels.backward.pipelined.samples", "first = sample * rows", "first = (sample + 1) % samples * rows", "kernels/test_modulated_norm.py::test_the_fast_kernels_modulate_and_are_within_the_bounds"),
    Mutation("modulated: every cluster of a sample begins with its first row", "kernels.backward.pipelined.prologue", "turn //= samples", "turn = 0", "kernels/test_modulated_norm.py::test_a_sample_s_rows_may_be_shared_by_several_clusters"),
    Mutation("modulated: a cluster steps over rows that no other one takes", "kernels.backward.pipelined.prologue", "clusters //= samples", "pass", "kernels/test_modulated_norm.py::test_a_sample_s_rows_may_be_shared_by_several_clusters"),
    Mutation("modulated: neighbouring clusters have the same sample", "kernels.backward.pipelined.samples", "cuda.blockIdx.x // blocks % samples", "cuda.blockIdx.x // blocks // (cuda.gridDim.x // blocks // samples)", "kernels/test_modulated_norm.py::test_a_sample_s_rows_may_be_shared_by_several_clusters", 2),
    Mutation("modulated apart: scale without 1", "kernels.modulated_norm", "scales[k] + cast(1, values)", "scales[k]", "kernels/test_modulated_norm.py::test_rows_that_the_fast_kernels_refuse_are_modulated_apart"),
    Mutation("modulated apart: no shift", "kernels.modulated_norm", "values[k] += shifts[k]", "pass", "kernels/test_modulated_norm.py::test_rows_that_the_fast_kernels_refuse_are_modulated_apart"),
    Mutation("modulated apart: a sample's last row is left out of its sums", "kernels.modulated_norm", "(sample + 1) * rows)", "(sample + 1) * rows - 1)", "kernels/test_modulated_norm.py::test_rows_that_the_fast_kernels_refuse_are_modulated_apart"),
    Mutation("modulated apart: the sum of dy for that of dy x̂", "kernels.modulated_norm", "store(grad_weight, (sample, column), sum_weight)", "store(grad_weight, (sample, column), sum_bias)", "kernels/test_modulated_norm.py::test_rows_that_the_fast_kernels_refuse_are_modulated_apart"),
    Mutation("row map: rows follow each other", "stages.row_map", "return row + row // heads * gap", "return row", "kernels/test_head_norm.py::test_heads_are_read_where_they_lie_and_have_the_plain_norm_s_bits"),
    Mutation("row map: the backward reads rows that follow each other", "kernels.backward.pipelined.passes", "place = place_of(row)", "place = row", "kernels/test_head_norm.py::test_heads_are_read_where_they_lie_and_have_the_plain_norm_s_bits"),
]  # fmt: skip


def examined_cases(ladder: str) -> list[Case]:
    """A few cases that between them reach every branch: tails, several rows, both norms, tiny gammas, mean ≫ spread.

    The longer rows take several warps in each step: of the forward's last steps one warp does up to 384 columns.
    """
    rng = np.random.default_rng(0)
    cases = []
    drawn = itertools.product([(3, 390 if ladder == "forward" else 257), (18, 5)], ["offset", "normal"])
    for ((n1, n2), kind), rms in zip(drawn, [False, True, True, False], strict=True):
        x = inputs(kind, rng, n1, n2) + (1000 if kind == "offset" else 1)
        weight = gammas("normal" if kind == "offset" else "treacherous", rng, n2, 0.5)
        bias, grad = rng.normal(size=n2), rng.normal(size=(n1, n2)) + 1
        x, weight, bias, grad = (array.astype(np.float32) for array in (x, weight, bias, grad))
        cases.append(Case(x, weight, None if rms else bias, grad, 0.5, rms))
    return cases


def check_step(ladder: str, name: str, path: str = "saved"):
    """Hold a step to its bounds on all examined cases, in a schedule each: these reject every mutant.

    All threads at once come first: they find most mistakes in a tenth of the time.
    """
    step = checks.step_of(ladder, name)
    memory_efficient = {"saved": False, "recompute": True, "exact": "exact"}[path]
    for schedules in (("forward", "forward", "forward", "forward"), ("reverse", 1, "reverse", "forward")):
        for case, schedule in zip(examined_cases(ladder), schedules, strict=True):
            if path == "exact" and case.bias is not None:  # which an output hides its x̂ behind
                case = replace(case, bias=1000 * case.bias)
            with using("simulator", schedule):
                if ladder == "forward":
                    examine_forward(case, step)
                else:
                    examine_backward(case, None, step, memory_efficient)


def check_columns(name: str):
    """The column sums over many rows, in every schedule: of 16 parts, three tiles in each but for the last ones.

    grad_input's kernel, with a block a row, stays out: it has the other checks.
    """
    rng = np.random.default_rng(0)
    grad, x = rng.normal(size=(2, 530, 1)).astype(np.float32)
    case = Case(x, np.ones(1, np.float32), np.ones(1, np.float32), grad, 1e-5, False)
    step = checks.step_of("backward", name)
    truth, exact = backward_truth(case), arithmetic(case, (1, 0))
    for schedule in SCHEDULES:
        grad_weight, grad_bias = np.full((2, 1), np.nan, np.float32)

        def launch(kernel, grid, block, *operands, schedule=schedule):
            if "grad_input" not in kernel.py_func.__name__:
                simulate(kernel, schedule)[grid, block](*operands)

        scratch = SimpleNamespace(empty=lambda shape, dtype: np.full(shape, np.nan, dtype))
        _, plan = with_plan(step.run, launch, scratch, BackwardProblem(
            grad, x, *statistics(case)[1:], case.weight, case.bias, np.float32(case.eps), False, False,
            np.empty_like(x), grad_weight, grad_bias,
        ))  # fmt: skip
        bound = backward_bound(case, arithmetic(case, plan.rows, plan.columns), False, forward=exact)
        hold("grad_weight of many rows", grad_weight, truth.grad_weight, bound.grad_weight)
        hold("grad_bias of many rows", grad_bias, truth.grad_bias, bound.grad_bias)


FAMILY = {
    "planes": [("batch", (2, 1, 1027), 1, False), ("group", (2, 4, 5), 2, False), ("batch", (34, 1, 2), 1, False)],
    "rows": [("instance", (3, 2, 37), 2, False), ("group", (1, 4, 300), 2, False)],
    "columns": [("batch", (8, 33, 8), 33, True), ("group", (2, 8, 5), 4, True)],
    "fused": [
        ("batch", (2, 40, 53), 40, True),
        ("batch", (2, 128, 11), 128, True),
    ],  # row blocks for as many threads, and two for some
}


def check_family(what: str, monkeypatch):
    """Hold norms of the family to their bounds, or running statistics to their formula."""
    monkeypatch.setattr(family, "kernels", importlib.import_module("normlab.kernels.family"))
    if what == "running":
        x, running = np.float32([[1, 2], [3, 6]]), np.float32([[1, 1], [1, 1]])
        family.batch_norm(x, *running, momentum=0.25)
        np.testing.assert_allclose(running, [[1.25, 1.75], [1.25, 2.75]], rtol=1e-6)
        return
    if what == "fused":
        few_blocks(monkeypatch)
    for (norm, shape, groups, last), schedule in zip(FAMILY[what], SCHEDULES, strict=False):
        with using("simulator", schedule):
            example(norm, shape, groups=groups, last=last).examine()


def pipelined_rows(patch):
    """What `test_many_rows_per_block_are_right` takes, for the pipelined backward with a lag."""
    return checks.step_of("backward", "pipelined"), 18, 396, BFLOAT16, False, patch


def pipelined_without_lag(patch):
    """What `test_nothing_is_found_in_many_rows_per_block` takes, for the pipelined backward without a lag."""
    return checks.step_of("backward", "pipelined"), 5, 402, np.float32, False, patch


# What tests take that are not called without arguments, given a monkeypatch.
ARGUMENTS = {
    "test_the_spread_is_that_of_the_definition": lambda patch: (700, np.float32),
    "test_tiles_hold_the_terms_of_their_elements_and_zeros_elsewhere": lambda patch: (32, 64, 20),
    "test_every_thread_gets_the_moments_of_all_warps": lambda patch: (4,),
    "test_blocks_stride_over_rows_beyond_the_grid_limit": lambda patch: (patch,),
    "test_many_rows_per_block_are_right": pipelined_rows,
    "test_nothing_is_found_in_many_rows_per_block": pipelined_without_lag,
    "test_rows_parameters_and_sums_cause_no_bank_conflicts": lambda patch: (True, np.float32, patch),
    "test_a_later_row_of_a_cluster_asks_for_no_parameters": lambda patch: (patch,),
    "test_many_rows_a_cluster_are_right_and_nothing_is_found": lambda patch: (patch,),
    "test_many_rows_a_cluster_are_right_backward_and_nothing_is_found": lambda patch: (False, patch),
    "test_a_row_has_the_same_bits_however_many_blocks_share_it": lambda patch: (1748, False, patch),
    "test_rows_in_a_pipeline_of_one_stage_are_right_and_nothing_is_found": lambda patch: (False, patch),
    "test_many_short_rows_a_block_are_right_and_nothing_is_found": lambda patch: (False, patch),
    "test_warps_of_a_block_have_columns_of_their_own_where_blocks_are_many": lambda patch: (False, 324, patch),
    "test_odd_rows_are_right": lambda patch: (17, 262, BFLOAT16, BFLOAT16, False, patch),
    "test_rows_of_every_place_are_right": lambda patch: (16, 519, BFLOAT16, BFLOAT16),
    "test_nothing_is_found": lambda patch: (False, 0, patch),
    "test_nothing_is_found_in_few_rows": lambda patch: (589,),
    "test_nothing_is_found_in_long_odd_rows": lambda patch: (patch,),
    "test_long_odd_rows_are_right": lambda patch: (9, 1338, BFLOAT16, BFLOAT16, False, patch),
    "test_the_neighbours_of_a_row_do_not_reach_it": lambda patch: (patch,),
    "test_a_row_has_the_same_bits_in_every_batch_and_by_any_number_of_clusters": lambda patch: (4, patch),
    "test_a_row_has_the_same_bits_by_clusters_that_take_rows_of_one_place": lambda patch: (9, patch),
    "test_views_that_begin_within_a_vector_are_right_and_nothing_beside_the_output_is_written": lambda patch: (
        1021,
        3,
        patch,
    ),
    "test_nothing_is_found_in_rows_by_turns": lambda patch: (patch,),
    "test_rows_by_turns_have_the_same_bits": lambda patch: (1281, patch),
    "test_the_elements_of_the_row_are_stored_and_no_others": lambda patch: (BFLOAT16,),
    "test_few_clusters_take_all_rows_of_all_alignments": lambda patch: (259, 5, False, patch),
    "test_odd_rows_of_a_cluster_are_right_and_nothing_is_found": lambda patch: (0, False, patch),
    "test_lines_of_sums_are_written_to_their_ends": lambda patch: (patch,),
    "test_nothing_is_found_in_odd_rows": lambda patch: (False, patch),
    "test_the_neighbours_of_a_row_do_not_reach_its_sums": lambda patch: (False,),
    "test_sums_of_several_blocks_are_right": lambda patch: (checks.step_of("backward", "pipelined"), 2, patch),
    "test_whole_vectors_of_eight_are_right": lambda patch: (BFLOAT16, 1),
    "test_every_part_of_a_warp_gets_its_own_sum": lambda patch: (8,),
    "test_several_sums_have_the_bits_of_a_butterfly_each": lambda patch: (8, 4),
    "test_a_row_has_the_same_bits_whether_all_rows_find_room_at_once": lambda patch: (4096, False, patch),
    "test_large_gammas_are_within_the_bounds": lambda patch: (False,),
    "test_clamped_gammas_are_within_the_bounds": lambda patch: (False,),
    "test_ordinary_gammas_are_within_the_bounds": lambda patch: (False,),
    "test_the_weight_s_sums_are_divided_by_the_clamped_gamma": lambda patch: (72, np.float32),
    "test_a_single_rare_gamma_is_found_in_a_row_s_last_vector": lambda patch: (1e-6,),
    "test_a_single_rare_gamma_is_found_at_the_end_of_an_odd_row": lambda patch: (0.0,),
    "test_clamped_gammas_are_within_the_bounds_in_short_rows": lambda patch: (False,),
    "test_nothing_is_found_in_the_sums_of_many_rows": lambda patch: (40, 72),
    "test_few_rows_with_blocks_for_the_columns_are_right_and_nothing_is_found": lambda patch: (3, patch),
    "test_short_rows_are_right": lambda patch: (50, 31, True),
    "test_many_tiles_a_warp_are_right": lambda patch: (150, 24, np.float16, False, 2, patch),
    "test_nothing_is_found_in_short_rows": lambda patch: (75, 63, BFLOAT16, False, patch),
    "test_tiles_that_warps_share_are_right_and_nothing_is_found": lambda patch: (75, 63, BFLOAT16, patch),
    "test_tiles_are_right_forward": lambda patch: (50, 31, patch),
    "test_many_tiles_a_warp_are_right_forward": lambda patch: (75, 36, np.float16, False, patch),
    "test_nothing_is_found_in_tiles_forward": lambda patch: (75, 63, BFLOAT16, patch),
    "test_a_short_row_s_bits_depend_neither_on_the_number_of_rows_nor_on_the_grid": lambda patch: (patch,),
    "test_split_rows_are_within_the_bounds_forward": lambda patch: (5, 2051, np.float16, patch),
    "test_gradients_of_split_rows_are_within_the_bounds": lambda patch: (5, 2051, np.float16, False, patch),
    "test_merged_statistics_are_within_the_bounds": lambda patch: (7, np.float32, 0.0),
    "test_merged_sums_of_squares_and_means_are_within_the_bounds": lambda patch: (7,),
    "test_a_message_holds_the_count_and_the_moments_of_whole_rows": lambda patch: (False, 100),
    "test_the_fast_kernels_take_the_residual_and_are_within_the_bounds": lambda patch: (3, 520, "bfloat16", None, True),
    "test_the_fast_kernels_take_the_gate_and_are_within_the_bounds": lambda patch: (3, 520, "bfloat16", None),
    "test_gated_rows_that_the_fast_kernels_refuse_are_within_the_same_bounds": lambda patch: (3, 50, "float64"),
    "test_recomputing_beside_gates_and_weights_near_0_loses_x_there_and_nowhere_else": lambda patch: (64,),
    "test_the_fast_kernels_modulate_and_are_within_the_bounds": lambda patch: (2, 9, 520, "bfloat16", None),
    "test_few_rows_with_and_without_blocks_for_the_columns_are_within_the_bounds": lambda patch: (True, patch),
    "test_a_sample_s_rows_may_be_shared_by_several_clusters": lambda patch: (3, patch),
    "test_rows_that_the_fast_kernels_refuse_are_modulated_apart": lambda patch: (50, "float64"),
    "test_heads_are_read_where_they_lie_and_have_the_plain_norm_s_bits": lambda patch: (2, 1, 64, "float32"),
    "test_an_offset_is_the_weight_with_the_offset_added_bit_for_bit": lambda patch: (96, False),
    "test_what_the_fast_kernels_refuse_is_done_apart_within_the_same_bounds": lambda patch: (3, 50, "float64"),
}


# What the host functions take of the kernels beside the ladders.
TAKEN = (
    (exact, "exact.choose", "launch_choice"),
    (exact, "exact.spread", "launch_spread"),
    (exact, "exact.keep", "launch_keeping"),
    (norms, "exact.correct", "launch_correction"),
    (norms, "exact.repair", "launch_repair"),
    (add_norm, "add_norm", "FORWARD"),
    (add_norm, "add_norm", "BACKWARD"),
    (gated_norm, "gated_norm", "FORWARD"),
    (gated_norm, "gated_norm", "BACKWARD"),
    (modulated_norm, "modulated_norm", "FORWARD"),
    (modulated_norm, "modulated_norm", "BACKWARD"),
)


def run_check(check: str, monkeypatch):
    """Run a test of the suite, or one of the checks above, on the modules as they are now."""
    if "::" not in check:
        kind, *rest = check.split()
        if kind == "family":
            return check_family(*rest, monkeypatch)
        return check_columns(*rest) if kind == "columns" else check_step(kind, *rest)
    file, test = check.split("::")
    spec = importlib.util.spec_from_file_location(f"mutant_{Path(file).stem}", TESTS / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test, _, first = test.removesuffix("]").partition("[")
    return getattr(module, test)(*[first] * bool(first), *ARGUMENTS.get(test, lambda patch: ())(monkeypatch))


collect = Collector.add


def ended_by_a_finding(collector, event, keep, make, benign=False, reach=0):
    """End a watched launch at its first harmful finding, with which no check is content: a mutant has thousands.

    A read of garbage may be told before the race that explains it, so the launch goes on.
    """
    if not benign and (finding := make()).kind != "uninitialized-read":
        raise AssertionError(str(finding))
    collect(collector, event, keep, make, benign, reach)


@functools.cache
def imports(name: str) -> list[tuple[str, str]]:
    """Return (module, name) of all that a module imports, wherever in its file; ("module", "") of a plain import."""
    nodes = list(ast.walk(ast.parse(Path(sys.modules[name].__file__).read_text())))
    plain = [(alias.name, "") for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [
        (node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]


def dependents(module: str) -> set[str]:
    """Return the names of the loaded modules of FRESH that hold code of `module`: those that import it, and so on.

    All packages are among them, as their attributes are the modules that have been imported. The others stay as they
    are: a mutant imports 24 modules on average, not all 137.
    """
    loaded = {name for name in sys.modules if name.startswith(FRESH)}
    users = defaultdict(set)
    for name in loaded:
        for source, item in imports(name):
            users[f"{source}.{item}" if f"{source}.{item}" in loaded else source].add(name)
    found, new = set(), {module, *(name for name in loaded if hasattr(sys.modules[name], "__path__"))}
    while new:
        found |= new
        new = set().union(*(users[name] for name in new)) - found
    return found & loaded


@contextmanager
def imported_afresh(mutation: Mutation, folder: Path, monkeypatch):
    """Import a mutated module anew, and all that hold its code, and let the host functions use them."""

    class Finder:
        """Finds the mutated module's file in place of the real one."""

        @staticmethod
        def find_spec(name, path, target=None):
            if name != f"normlab.{mutation.module}":
                return None
            source = Path(PathFinder.find_spec(name, path).origin).read_text()
            mutant = folder / f"{name}.py"
            mutant.write_text(mutation.mutated(source))
            return importlib.util.spec_from_file_location(name, mutant)

    real = {name: module for name, module in sys.modules.items() if name.startswith(FRESH)}
    for name in dependents(f"normlab.{mutation.module}"):
        del sys.modules[name]
    # An assertion that fails is enough, so none is rewritten to say why: that took a fifth of the time.
    finders = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    monkeypatch.setattr(sys, "meta_path", [Finder, *finders])
    profile = hypothesis.settings.get_current_profile_name()
    try:
        # the first counterexample will do
        hypothesis.settings.register_profile(
            "mutants", deadline=None, database=None, phases=["explicit", "generate"], report_multiple_bugs=False
        )
        hypothesis.settings.load_profile("mutants")
        monkeypatch.setattr(SourceFileLoader, "get_code", code_of)
        monkeypatch.setattr(engine, "_learnt", {})  # of a kernel with another mutation, which has the same code
        monkeypatch.setattr(Collector, "add", ended_by_a_finding)
        monkeypatch.setenv("NORMLAB_CACHE_DIR", str(folder))  # a mutant's kernels are nobody else's
        monkeypatch.setattr(checks, "LADDERS", importlib.import_module("normlab.kernels").LADDERS)
        for face, room, name in TAKEN:
            monkeypatch.setattr(face, name, getattr(importlib.import_module(f"normlab.kernels.{room}"), name))
        yield
    finally:
        hypothesis.settings.load_profile(profile)
        for name in [name for name in sys.modules if name.startswith(FRESH)]:
            del sys.modules[name]
        sys.modules.update(real)
        for name, module in real.items():  # a package's attribute, too, is the module imported last
            package, _, attribute = name.rpartition(".")
            setattr(sys.modules[package], attribute, module)


def test_a_mutation_ignores_comments_and_says_when_its_anchor_is_gone_or_ambiguous():
    source = "if a:\n    wait()  # for all\n\n    # a phase\n    read()  # what came\nwait()\n"
    assert Mutation("m", "", "wait()\n    read()", "read()", "").mutated(source) == "if a:\n    read()\nwait()"
    with pytest.raises(LookupError, match="has 2 times"):
        Mutation("m", "", "wait()", "pass", "").mutated(source)
    with pytest.raises(LookupError, match="has 0 times"):
        Mutation("m", "", "# a phase", "pass", "").mutated(source)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_suite_rejects_the_mutant(mutation, tmp_path, monkeypatch):
    rejected = pytest.raises((AssertionError, IndexError, SimulationError))
    with imported_afresh(mutation, tmp_path, monkeypatch), using("simulator"), rejected:
        run_check(mutation.check, monkeypatch)


def mutations_to_accept() -> list[Mutation]:
    """One for each check that the suite does not run by itself, with these very arguments, and one of every file.

    That one shows that its tests work on modules imported afresh. Where there is a GPU the suite runs most tests there.
    """
    checks = {mutation.check: mutation for mutation in sorted(MUTATIONS, key=lambda one: one.check, reverse=True)}
    files = {check.partition("::")[0]: mutation for check, mutation in checks.items()}
    return sorted((checks if use_gpu() else files).values(), key=lambda one: one.check)


@pytest.mark.parametrize("mutation", mutations_to_accept(), ids=lambda mutation: mutation.check)
def test_the_same_check_accepts_the_real_thing(mutation, tmp_path, monkeypatch):
    with imported_afresh(mutation._replace(new=mutation.old), tmp_path, monkeypatch), using("simulator"):
        run_check(mutation.check, monkeypatch)
