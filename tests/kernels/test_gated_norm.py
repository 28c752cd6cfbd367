"""RMSNorms with a gate: within the oracle's bounds, on every way that plans them; what holds between the modes."""

from dataclasses import replace

import devices
import numpy as np
import pytest
from counting import COPIED, LOADED, STORED, counted
from draws import Case, sampled
from examine import as_truth, with_plan
from gated_norms import (
    backward,
    examine_gated_backward,
    examine_gated_forward,
    fixed_case,
    forward,
    gated_cases,
    planned,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab import oracle, rms_norm_forward
from normlab.engine import cuda, float32, load, resources, store, using
from normlab.kernels.apart import EXTRA
from normlab.learn.explain import types_of
from normlab.oracle.gated_norm import held_silu
from normlab.sim import sanitize
from normlab.stages.gate import Gate, row_gater, silus
from normlab.stages.vector import map_threads, row_loader

FEW = settings(max_examples=6)
MODES = {"saved": (True, False), "recompute": (True, True), "gated x": (False, False)}  # (before, memory_efficient)
EACH = pytest.mark.parametrize("mode", MODES)


@settings(max_examples=20)
@given(case=gated_cases())
def test_forward_is_within_its_bound(case):
    examine_gated_forward(case)


@EACH
@settings(max_examples=12)
@given(case=gated_cases(), many=st.booleans())
def test_backward_is_within_its_bound(mode, case, many):
    before, memory_efficient = MODES[mode]
    with pytest.MonkeyPatch.context() as patch:
        if many:
            devices.many_rows(patch)
        examine_gated_backward(replace(case, before=before), memory_efficient)


@EACH
@pytest.mark.parametrize(
    ("n1", "n2", "dtype", "parameters"),
    [
        (3, 1024, "bfloat16", None),
        (19, 64, "float16", None),  # several rows per warp, and blocks without a full set of rows
        (2, 4096, "bfloat16", None),
        (5, 520, "float32", "bfloat16"),
        (2, 2048, "float32", None),
    ],
)
def test_the_fast_kernels_take_the_gate_and_are_within_the_bounds(mode, n1, n2, dtype, parameters):
    before, memory_efficient = MODES[mode]
    case = fixed_case(n1, n2, dtype, before, parameters)
    (output, invvar), plan = with_plan(forward, case)
    assert (plan.step, len(plan.work)) == ("one_barrier", 1)
    _, plan = with_plan(backward, case, output if memory_efficient else case.norm.x, invvar, memory_efficient)
    if not (memory_efficient and parameters):  # an output of another width than the gate's has stages of its own
        assert plan.step == "pipelined"
        assert {"gate", "grad_gate"} <= set(plan.work[0].arguments)
    examine_gated_backward(case, memory_efficient)


@EACH
@pytest.mark.parametrize(("n1", "n2", "dtype"), [(3, 50, "float64"), (3, 61, "bfloat16"), (2, 1027, "float16")])
def test_gated_rows_that_the_fast_kernels_refuse_are_within_the_same_bounds(mode, n1, n2, dtype):
    before, memory_efficient = MODES[mode]
    case = fixed_case(n1, n2, dtype, before)
    (output, invvar), _ = with_plan(forward, case)
    _, plan = with_plan(backward, case, output if memory_efficient else case.norm.x, invvar, memory_efficient)
    assert plan.step.endswith(EXTRA)
    assert [plan.work[at].kernel.py_func.__name__ for at in (0, -1)] == ["pass_gate"] * 2
    examine_gated_backward(case, memory_efficient)


def test_rows_that_no_block_holds_are_gated_apart():
    for before, kernel in ((True, -1), (False, 0)):
        plan, _ = planned("forward", 66_000, "bfloat16", Gate(before), n1=4)
        assert plan.step == "clusters and extra kernels"
        assert plan.work[kernel].kernel.py_func.__name__ == "combine_rows"


@pytest.mark.parametrize("weighted", [True, False])
def test_few_rows_with_and_without_blocks_for_the_columns_are_within_the_bounds(weighted, monkeypatch):
    for many, n1, n2 in ((False, 7, 1024), (False, 1, 40_960), (True, 7, 1024)):
        if many:
            devices.many_rows(monkeypatch)
        case = fixed_case(n1, n2, "bfloat16", before=True)
        if not weighted:
            case = replace(case, norm=replace(case.norm, weight=None))
        examine_gated_backward(case, False)


@FEW
@given(case=gated_cases(widths=(32, 132, 384), rows=(5,)))
def test_both_orders_are_one_where_the_gate_is_the_same_in_a_whole_row_and_eps_is_0(case):
    """silu(z) of a row cancels from the norm of x silu(z), except for its sign; before the norm it multiplies."""
    gate = np.full_like(case.gate, 1.5)
    norm = replace(case.norm, x=np.where(case.norm.x == 0, 1, case.norm.x).astype(case.norm.x.dtype), eps=1e-30)
    (gated, _), bound = examine_gated_forward(replace(case, norm=norm, gate=gate, before=False))
    plain, _ = rms_norm_forward(norm.x, norm.n2, norm.weight, eps=norm.eps)
    both = 2 * bound.output + 2 * np.abs(plain.astype(np.float64)) * np.finfo(np.float16).eps * 8
    oracle.assert_within(gated, plain.astype(np.float64), both, "gated x")


@pytest.mark.parametrize("n2", [64, 61])
def test_recomputing_beside_gates_and_weights_near_0_loses_x_there_and_nowhere_else(n2):
    case = fixed_case(3, n2, "float32", before=True)
    gate, weight = case.gate.copy(), case.norm.weight.copy()
    gate[:, :3], weight[3:6] = [0.0, -0.0, 1e-7], [0.0, -0.0, -1e-7]
    (grad_x, grad_gate, grad_weight), _ = examine_gated_backward(
        replace(case, gate=gate, norm=replace(case.norm, weight=weight)), True
    )
    assert np.isfinite(grad_x).all()
    assert (grad_gate[:, :2] == 0).all()  # in truth half of dy x̂ γ, of which the output has nothing
    assert (grad_weight[3:5] == 0).all()


@FEW
@given(case=gated_cases(widths=(33, 64, 129), rows=(2, 5)))
def test_the_saved_output_gives_the_gradients_of_the_saved_input_within_both_bounds(case):
    case = replace(case, before=True)
    (saved, allowed), (recomputed, looser) = (examine_gated_backward(case, path) for path in (False, True))
    for what, one, other, *bounds in zip("xzw", recomputed, saved, allowed, looser, strict=True):
        if one is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                oracle.assert_within(one, as_truth(other), sum(bounds), f"gradient {what} of both modes")


@EACH
@pytest.mark.parametrize("schedule", ["reverse", 1])
def test_no_schedule_of_threads_changes_a_bit(mode, schedule):
    before, memory_efficient = MODES[mode]
    case, found = fixed_case(6, 520, "bfloat16", before), []
    for order in ("forward", schedule):
        with using("simulator", order):
            output, invvar = forward(case)
            gradients = backward(case, output if memory_efficient else case.norm.x, invvar, memory_efficient)
        found.append([array.tobytes() for array in (output, invvar, *gradients)])
    assert found[0] == found[1]


@EACH
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(mode):
    before, memory_efficient = MODES[mode]
    case = fixed_case(9, 520, "bfloat16", before)
    norm = case.norm
    few = replace(norm, x=norm.x[:2], grad_output=norm.grad_output[:2])
    found = []
    for one in (case, replace(case, norm=few, gate=case.gate[:2])):
        output, invvar = forward(one)
        gradients = backward(one, output if memory_efficient else one.norm.x, invvar, memory_efficient)
        found.append([array[:2].tobytes() for array in (output, invvar, *gradients[:2])])
    assert found[0] == found[1]


@pytest.mark.parametrize("before", [True, False])
def test_every_array_is_read_once_and_written_once(before):
    case = fixed_case(8, 1024, "bfloat16", before)
    case = replace(case, norm=replace(case.norm, weight=None))
    rows, results = 8 * 1024 * 2 // 32, []  # in sectors of 32 bytes
    (there,) = counted(lambda: results.extend(forward(case)))
    assert there[LOADED.format("sectors")] == 2 * rows
    assert there[STORED.format("sectors")] == rows + 8  # and invvar, a sector each
    (back,) = counted(lambda: backward(case, case.norm.x, results[1], False))
    assert back[COPIED.format("sectors")] == 3 * rows
    assert back[STORED.format("sectors")] == 2 * rows


GATES = [Gate(True), Gate(False), Gate(True, recompute=True)]
SHAPES = [(64, "bfloat16"), (1024, "float32"), (4096, "bfloat16"), (8192, "bfloat16")]


WAYS = [(direction, gating) for gating in GATES for direction in ("forward", "backward")]


@pytest.mark.parametrize(("way", "shape"), sampled(WAYS, SHAPES), ids=str)
def test_no_kernel_with_a_gate_spills(way, shape):
    (direction, gating), (n2, dtype) = way, shape
    plan, operands = planned(direction, n2, dtype, gating)
    assert not plan.step.endswith(EXTRA)
    taken = resources(plan.work[0].kernel, types_of(plan.work[0], plan, operands))
    assert (taken.local_bytes, taken.spill_stores, taken.spill_loads) == (0, 0, 0), taken


@pytest.mark.parametrize(("gating", "dtype"), sampled(GATES, ["bfloat16", "float64"]), ids=str)
def test_the_kernels_beside_the_norm_compile(gating, dtype):
    for direction in ("forward", "backward"):
        plan, operands = planned(direction, 66_001, dtype, gating, n1=4)
        beside = [work for work in plan.work if work.kernel.py_func.__name__ in ("combine_rows", "pass_gate")]
        assert beside
        for work in beside:
            assert resources(work.kernel, types_of(work, plan, operands)).spill_stores == 0


def test_silu_and_its_slope_are_within_their_bound_however_far_from_0():
    silu, silu_and_slope = silus(float32)

    @cuda.jit
    def all_gates(gate, found):
        like = cuda.local.array(1, float32)
        i = cuda.threadIdx.x
        z = load(gate, i)
        store(found, (0, i), silu(z, like))
        both = silu_and_slope(z, like)
        store(found, (1, i), both[0])
        store(found, (2, i), both[1])

    gates = np.float32([0, -0.0, 1e-30, -1.278, -20, 20, -86, 86, -95, 95, -1e4, 1e4, np.nan, -np.inf])
    found = np.full((3, len(gates)), np.nan, np.float32)
    sanitize(all_gates)[1, len(gates)](gates, found)
    with np.errstate(invalid="ignore"):  # -inf times 0
        held = held_silu(gates.astype(np.longdouble), oracle.Arithmetic.of((1, 0)))
    for got, want in zip(found, (held.value, held.value, held.slope), strict=True):
        oracle.assert_within(got, want.exact.astype(np.float64), want.error.astype(np.float64), "silu")
    assert held.value.error[4] < 1e-4 * abs(held.value.exact[4])  # at -20
    assert np.signbit(found[0][1])  # silu(-0) is -0


def test_the_stage_gates_all_elements_of_a_row_and_none_beside_it():
    thread_map = map_threads(72, 2, 32)
    load_row, (load_gates, gate_row) = row_loader(thread_map), row_gater(thread_map, float32)

    @cuda.jit
    def gated(x, gate, held):
        values = cuda.local.array(4, float32)
        gates = cuda.local.array(4, float32)
        first = cuda.threadIdx.x * 2
        load_row(values, x, 0, first)
        load_gates(gates, gate, 0, first)
        gate_row(values, gates, gate)
        for v in range(2):
            for k in range(2):
                if first + 64 * v + k < 72:
                    store(held, (0, first + 64 * v + k), values[2 * v + k])

    x, gate = np.random.default_rng(0).normal(size=(2, 1, 72)).astype(np.float32)
    held = np.full((1, 72), np.nan, np.float32)
    report = sanitize(gated)[1, 32](x, gate, held)
    assert report.ok, report
    np.testing.assert_allclose(held, x * gate / (1 + np.exp(-gate)), rtol=1e-6)
    report = sanitize(gated)[1, 32](x, None, held)
    assert report.ok, report
    assert (held == x).all()


def test_no_rows_give_no_rows_and_gradients_of_zeros():
    empty, weight = np.zeros((0, 8), np.float32), np.ones(8, np.float32)
    case = replace(fixed_case(1, 8, "float32", True), norm=Case(empty, weight, None, empty, 1e-5, True), gate=empty)
    output, invvar = forward(case)
    assert (output.shape, invvar.shape) == ((0, 8), (0,))
    grad_x, grad_gate, grad_weight = backward(case, empty, invvar, False)
    assert grad_x.shape == grad_gate.shape == (0, 8)
    assert (grad_weight == 0).all()
