"""Nothing is found in any kernel of the ladders, whose outputs and scratch memory come without contents."""

import itertools
import os

import devices
import ml_dtypes
import numpy as np
import pytest
from watching import Memory, launcher

from normlab.kernels import LADDERS, BackwardProblem, ForwardProblem
from normlab.kernels.backward import layouts, step_3_pipelined
from normlab.kernels.backward.tables import Candidate
from normlab.kernels.exact.choose import launch_choice
from normlab.kernels.exact.correct import launch_correction
from normlab.kernels.exact.keep import launch_keeping
from normlab.kernels.exact.repair import launch_repair
from normlab.kernels.exact.risk import limits
from normlab.kernels.exact.spread import launch_spread
from normlab.kernels.exact.survey import Norms, launch_survey
from normlab.kernels.forward import layouts as forward_layouts
from normlab.kernels.forward import step_7_clusters
from normlab.kernels.plan import Chosen
from normlab.stages.vector import ThreadMap

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
# shape, dtype, weight and bias given, RMSNorm, schedule: every value of each with several of the others
CASES = [
    ((1, 1), "float32", (True, True), False, "forward"),
    ((1, 2), "float16", (False, False), True, "reverse"),
    ((3, 31), "float64", (True, False), False, 5),
    ((2, 33), "bfloat16", (True, False), True, "forward"),
    ((5, 7), "float32", (False, True), False, "reverse"),
    ((2, 129), "float16", (True, True), False, 6),
    ((33, 3), "bfloat16", (False, False), False, "forward"),
    ((1, 65), "float32", (True, False), True, 7),
    ((4, 64), "float64", (False, False), True, "forward"),
    ((17, 40), "bfloat16", (True, True), False, "reverse"),  # rows of one warp, several in a block
    ((3, 136), "float32", (True, True), False, 8),  # 34 vectors a row: two lanes have two
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def operands(case):
    (n1, n2), dtype, (has_weight, has_bias), rms, _ = case
    random = np.random.default_rng(n1 * n2)
    kind = DTYPES[dtype]
    statistics = np.float64 if dtype == "float64" else np.float32
    x, grad = (random.standard_normal((n1, n2)).astype(kind) for _ in range(2))
    weight, bias = (random.standard_normal(n2).astype(kind) if given else None for given in (has_weight, has_bias))
    return x, grad, weight, None if rms else bias, statistics


@every_case
@pytest.mark.parametrize("step", LADDERS["forward"], ids=lambda step: step.name)
def test_nothing_is_found_in_a_forward_step(step, case):
    x, _, weight, bias, statistics = operands(case)
    memory = Memory()
    output = memory.empty(x.shape, x.dtype)
    mean = None if case[3] else memory.empty(x.shape[:1], statistics)
    invvar = memory.empty(x.shape[:1], statistics)
    problem = ForwardProblem(x, weight, bias, statistics(1e-5), output, mean, invvar)
    step.run(launcher(memory, case[4]), memory, problem)
    assert not memory.empties
    assert np.isfinite(output.astype(np.float64)).all()


@pytest.mark.parametrize("room", [2**17, 2**13], ids=["parameters in shared memory", "in global memory"])
def test_nothing_is_found_in_rows_that_one_cluster_holds_one_after_another(room, monkeypatch):
    """Rows of 452 columns in two blocks; those that a cluster is for are hundreds of times as long."""
    slices = forward_layouts.ClusterLayout(ThreadMap(64, 2, 2, False), 2, 2)
    monkeypatch.setattr(forward_layouts, "rows_for", lambda *arguments: None)
    monkeypatch.setattr(forward_layouts, "slices_for", lambda *arguments: Chosen(slices, "a test"))
    devices.find_room_for(monkeypatch, 1)
    devices.plan_for(monkeypatch, multiprocessors=1, shared_bytes=room)  # so that these are many rows
    case = (3, 452), "bfloat16", (True, True), False, "reverse"
    test_nothing_is_found_in_a_forward_step(step_7_clusters.STEP, case)


@pytest.mark.parametrize("resident", [6, 3], ids=["all rows at once", "one row after another"])
def test_nothing_is_found_in_rows_that_several_clusters_read(resident, monkeypatch):
    """Each of three rows by two clusters of two blocks."""
    slices = forward_layouts.ClusterLayout(ThreadMap(64, 2, 2, False), 2, 2)
    monkeypatch.setattr(forward_layouts, "rows_for", lambda *arguments: None)
    monkeypatch.setattr(forward_layouts, "slices_for", lambda *arguments: Chosen(slices, "a test"))
    devices.find_room_for(monkeypatch, resident)
    devices.plan_for(monkeypatch, multiprocessors=14)
    assert forward_layouts.spread_out(slices, 3, 2, devices.of((9, 0), 14)).readers == 2
    case = (3, 452), "bfloat16", (True, True), False, "reverse"
    test_nothing_is_found_in_a_forward_step(step_7_clusters.STEP, case)


def paths(step, case):
    """Both, where asked for all; else one: a step's cases, and a case's steps, take them in turn."""
    turn = LADDERS["backward"].index(step) + CASES.index(case)
    return [False, True] if os.environ.get("NORMLAB_ALL_PLANS") else [turn % 2 == 1]


BACKWARD_CASES = [
    pytest.param(step, path, case, id=f"{step.name}-{path}-{case}")
    for step, case in itertools.product(LADDERS["backward"], CASES)
    for path in paths(step, case)
]


@pytest.mark.parametrize(("step", "memory_efficient", "case"), BACKWARD_CASES)
def test_nothing_is_found_in_a_backward_step(step, memory_efficient, case):
    x, grad, weight, bias, statistics = operands(case)
    memory = Memory()
    problem = BackwardProblem(
        grad_output=grad,
        saved=x,
        mean=None if memory_efficient or case[3] else x.astype(statistics).mean(1),
        invvar=np.ones(x.shape[0], statistics),
        weight=weight,
        bias=bias,
        eps=statistics(1e-5),
        rms=case[3],
        memory_efficient=memory_efficient,
        grad_input=memory.empty(x.shape, x.dtype),
        grad_weight=None if weight is None else memory.empty(x.shape[1:], x.dtype),
        grad_bias=None if bias is None else memory.empty(x.shape[1:], x.dtype),
    )
    step.run(launcher(memory, case[4]), memory, problem)
    results = problem.grad_input, problem.grad_weight, problem.grad_bias
    assert not any(one is result for one in memory.empties for result in results)
    assert np.isfinite(problem.grad_input.astype(np.float64)).all()


RING = [
    ((35, 96), "bfloat16", (True, True), False, "reverse"),  # a warp a row, a lag of one row
    ((11, 198), "bfloat16", (True, False), True, 1),  # two warps a row
    ((11, 201), "float32", (True, True), False, "forward"),  # no lag
]
TWO_BLOCKS = ((3, 2049), "float32", (False, False), False, "reverse")  # a row, which take ten times as long


@pytest.mark.parametrize(
    ("case", "memory_efficient"),
    # rows of two warps are watched on both paths in `kernels/test_invariance`, too: here they take turns
    [(RING[0], False), (RING[0], True), (RING[1], False), (RING[2], True), (TWO_BLOCKS, True)],
    ids=str,
)
def test_nothing_is_found_where_one_cluster_takes_all_rows_through_its_ring(case, memory_efficient, monkeypatch):
    if case == RING[-1]:
        # several warps, and no prefetch, as longer rows
        several = Candidate(columns_up_to=2048, threads=64, rows=4, stages=3, why="a test")
        monkeypatch.setattr(layouts, "table_for", lambda *how: (several,))
    devices.find_room_for(monkeypatch, 1)
    devices.many_rows(monkeypatch)
    test_nothing_is_found_in_a_backward_step(step_3_pipelined.STEP, memory_efficient, case)


EXACT = [CASES[0], CASES[3], CASES[5], CASES[9]]
# The mode's own kernels are the same for all steps, each of which takes their sums of a row in its own way.
EXACT_CASES = [
    pytest.param(step, case, id=f"{step.name}-{case}")
    for step in LADDERS["backward"]
    for case in (EXACT if step is LADDERS["backward"][-1] else (CASES[3], CASES[9]))
]


@pytest.mark.parametrize(("step", "case"), EXACT_CASES)
def test_nothing_is_found_in_the_exact_mode(step, case):
    x, grad, weight, bias, statistics = operands(case)
    n1, n2 = x.shape
    if weight is None and bias is None:
        weight = np.ones(n2, x.dtype)
    for parameter, value in ((weight, 0), (bias, 1000)):
        if parameter is not None:
            parameter[::3] = value  # at risk
    memory = Memory()
    launch = launcher(memory, case[4])
    mean, invvar = (None if case[3] else x.astype(statistics).mean(1)), np.ones(n1, statistics)
    eps = statistics(1e-5)
    bounds, spread = limits(eps, x.dtype.name), np.full(1, np.nan, statistics)
    launch_spread(launch, invvar, eps, spread)
    columns = memory.empty((-(-n2 // 3) + 2,), np.float32).view(np.int32)  # two slots more than needed
    memory.empties[-1] = columns
    kept, counts = memory.empty((n1, len(columns)), x.dtype), np.zeros(3, np.int64)
    launch_choice(launch, n2, weight, bias, spread, bounds, columns, counts)
    launch_keeping(launch, x, mean, invvar, columns, kept)
    assert counts[0] >= len(columns) - 2
    table, told = np.array([[n2, 0, 0, 0, n2], [n2, 0, 0, 0, 0]]), np.zeros(2, np.int64)
    listed = memory.empty((2 * n2,), np.float32).view(np.int32)
    memory.empties[-1] = listed
    launch_survey(launch, Norms(n2, table, weight, bias, spread), bounds, listed, told)
    np.testing.assert_array_equal(told, counts[[0, 0]])
    problem = BackwardProblem(
        grad_output=grad, saved=x, mean=None, invvar=invvar, weight=weight, bias=bias, eps=statistics(1e-5),
        rms=case[3], memory_efficient=True, grad_input=memory.empty(x.shape, x.dtype),
        grad_weight=None if weight is None else memory.empty(x.shape[1:], x.dtype),
        grad_bias=None if bias is None else memory.empty(x.shape[1:], x.dtype),
        row_sums=memory.empty((3, n1), statistics),
    )  # fmt: skip
    launch_correction(launch, problem, columns, kept)
    step.run(launch, memory, problem)
    launch_repair(launch, memory, problem, columns, kept)
    for result in (problem.grad_input, problem.grad_weight, problem.grad_bias):
        assert result is None or not np.isnan(result.astype(np.float64)).any()
