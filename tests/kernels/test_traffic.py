"""What fast kernels ask of memory, counted by `trace`."""

import devices
import ml_dtypes
import numpy as np
import pytest
from counting import COPIED, LOADED, STORED, counter

from normlab.kernels import LADDERS, BackwardProblem, ForwardProblem
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.forward import layouts, step_7_clusters
from normlab.kernels.plan import Chosen
from normlab.stages.vector import ThreadMap

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"


class Memory:
    empty = staticmethod(np.zeros)


def counted(memory_efficient, parameters, rows, n2=256) -> dict[str, float]:
    """The counters of the pipelined kernel on so many rows of bfloat16, all of them one block's."""
    launch, found = counter()
    rng = np.random.default_rng(1)
    x, dy = (rng.normal(size=(rows, n2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    weight, bias = (rng.normal(size=n2).astype(parameters) for _ in range(2))
    mean = None if memory_efficient else np.zeros(rows, np.float32)
    gradients = np.zeros_like(x), np.zeros_like(weight), np.zeros_like(bias)
    step_3_pipelined.STEP.run(launch, Memory, BackwardProblem(
        dy, x, mean, np.ones(rows, np.float32), weight, bias, np.float32(1e-5), False, memory_efficient, *gradients,
    ))  # fmt: skip
    return found[0]


@pytest.mark.parametrize("parameters", [ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
def test_rows_parameters_and_sums_cause_no_bank_conflicts(memory_efficient, parameters, monkeypatch):
    devices.many_rows(monkeypatch)
    one, all_groups = (counted(memory_efficient, parameters, rows) for rows in (1, 8))
    assert all_groups[CONFLICTS.format("ld")] == all_groups[CONFLICTS.format("st")] == 0
    # of a row, by one warp: both arrays in both passes, four wavefronts each; gamma in both, and when recomputing beta
    # in both: narrow, as wide; else in float32, twice as wide, and when recomputing 1 / gamma in the second pass, too
    narrow = 2 * 1 + 2 * memory_efficient
    wide = 2 * (2 + 3 * memory_efficient)
    per_row = 2 * 2 + (narrow if parameters == ml_dtypes.bfloat16 else wide)
    assert (all_groups[WAVEFRONTS] - one[WAVEFRONTS]) / 7 == 4 * per_row


def read_by(step, mean) -> tuple[float, int]:
    """The bytes that a step moves of two rows of float32, and how often its plan says that they are read."""
    launch, found = counter()
    x = np.ones((2, 256), np.float32)
    problem = ForwardProblem(x, None, None, np.float32(1), np.empty_like(x), mean, np.empty(2, np.float32))
    step.run(launch, Memory, problem)
    return found[0]["normlab__bytes_moved_mem_global_op_ld.sum"], step.plan(problem, devices.of((9, 0))).reads


@pytest.mark.parametrize("step", LADDERS["forward"], ids=lambda step: step.name)
def test_plans_of_a_norm_without_a_mean_say_whether_a_pass_over_the_row_is_left_out(step):
    (layer, reads), (rms, fewer) = read_by(step, np.empty(2, np.float32)), read_by(step, None)
    assert rms * reads == layer * fewer


def counted_clusters(thread_map, n1, processors, monkeypatch) -> dict[str, float]:
    """The counters of rows of float32 in two blocks, all of them one cluster's, or each of several clusters'."""
    launch, found = counter()
    monkeypatch.setattr(layouts, "rows_for", lambda *args: None)
    monkeypatch.setattr(layouts, "slices_for", lambda *args: Chosen(layouts.ClusterLayout(thread_map, 2, 4), "a test"))
    devices.find_room_for(monkeypatch, 1)
    devices.plan_for(monkeypatch, multiprocessors=processors)
    n2 = 2 * thread_map.columns
    x, mean, invvar = np.ones((n1, n2), np.float32), *np.zeros((2, n1), np.float32)
    weight, bias = np.ones((2, n2), np.float32)
    problem = ForwardProblem(x, weight, bias, np.float32(1), np.empty_like(x), mean, invvar)
    step_7_clusters.STEP.run(launch, Memory, problem)
    return found[0]


def test_a_row_that_several_clusters_read_is_written_once_and_each_parameter_read_once(monkeypatch):
    one, four = (counted_clusters(ThreadMap(64, 4, 4, True), 1, processors, monkeypatch) for processors in (1, 10))
    row = 2048 * 4 // 32
    assert [metrics[COPIED.format("sectors")] for metrics in (one, four)] == [(1 + 2) * row, (4 + 2) * row]
    assert one[STORED.format("sectors")] == four[STORED.format("sectors")] == row + 2, "mean and invvar, too"


def test_a_later_row_of_a_cluster_asks_for_no_parameters(monkeypatch):
    found = [counted_clusters(ThreadMap(64, 1, 4, True), n1, 1, monkeypatch) for n1 in (1, 4)]
    for what, of_a_row in (("requests", 512 * 4 // 512), ("sectors", 512 * 4 // 32)):
        one, four = ([metrics[name] for name in (COPIED.format(what), LOADED.format(what))] for metrics in found)
        assert one == [3 * of_a_row] * 2, "x, weight and bias, and all of them copied"
        assert four == [(4 + 2) * of_a_row] * 2
