"""Norms of x + residual: within the oracle's bounds, on every way that plans them; what holds between the modes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from add_norms import (
    add_cases,
    backward,
    examine_add_backward,
    examine_add_forward,
    fixed_case,
    forward,
    without_residual,
)
from draws import DTYPES, Case
from examine import as_truth, with_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab import add_rms_norm_forward, oracle, rms_norm_backward, rms_norm_forward
from normlab.engine import using
from normlab.sim import sanitize
from normlab.stages.residual import residual_adder

FEW = settings(max_examples=6)


@settings(max_examples=40)
@given(case=add_cases())
def test_forward_is_within_its_bound_and_new_residual_has_every_bit(case):
    examine_add_forward(case)


@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
@settings(max_examples=30)
@given(case=add_cases())
def test_backward_is_within_its_bound(memory_efficient, case):
    examine_add_backward(case, memory_efficient)


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
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
def test_the_fast_kernels_take_the_residual_and_are_within_the_bounds(n1, n2, dtype, parameters, rms):
    case = fixed_case(n1, n2, dtype, rms, offset=float(rms), parameters=parameters)
    (_, new_residual, mean, invvar), plan = with_plan(forward, case)
    assert (plan.step, len(plan.work)) == ("one_barrier", 1)
    _, plan = with_plan(backward, case, new_residual, mean, invvar, False)
    assert plan.step == "pipelined"
    assert "grad_residual" in plan.work[0].arguments
    for memory_efficient in (False, True):
        examine_add_backward(case, memory_efficient)


@pytest.mark.parametrize(("n1", "n2", "dtype"), [(3, 50, "float64"), (3, 61, "bfloat16"), (1, 66_000, "bfloat16")])
def test_what_the_fast_kernels_refuse_is_done_apart_within_the_same_bounds(n1, n2, dtype):
    case = fixed_case(n1, n2, dtype, rms=True, offset=1.0)
    (_, new_residual, mean, invvar), before = with_plan(forward, case)
    _, after = with_plan(backward, case, new_residual, mean, invvar, False)
    kernels = [work.kernel.py_func.__name__ for plan in (before, after) for work in plan.work]
    assert "combine_rows" in kernels
    examine_add_backward(case, False)


def test_the_sums_of_a_bias_alone_have_room_where_they_take_more_than_the_rows():
    case = fixed_case(1, 2, "float16", rms=False)
    examine_add_backward(replace(case, norm=replace(case.norm, weight=None)), False)


@FEW
@given(case=add_cases(widths=(32, 1024), rows=(5,), dtypes=[("float32", "float32"), ("bfloat16", "bfloat16")]))
def test_a_residual_of_zeros_gives_the_plain_norm_bit_for_bit(case):
    """Where both have the same layout.

    Rows of 65 to 768 columns in 16 bits, and those that do not fill their threads, have another one beside a residual.
    """
    case = replace(without_residual(case), x=case.x.astype(case.norm.x.dtype), offset=0.0)
    output, new_residual, _, invvar = forward(replace(case, norm=replace(case.norm, rms=True, bias=None)))
    want, want_invvar = rms_norm_forward(case.x, case.norm.n2, case.norm.weight, eps=case.norm.eps)
    assert (new_residual == case.x).all()
    assert output.tobytes() == want.tobytes()
    assert invvar.tobytes() == want_invvar.tobytes()


@FEW
@given(case=add_cases(widths=(32, 132), rows=(5,)), memory_efficient=st.booleans())
def test_without_a_gradient_at_the_sum_the_backward_is_the_plain_norm_s(case, memory_efficient):
    norm = replace(case.norm, rms=True, bias=None)
    if norm.weight is None:
        norm = replace(norm, grad_output=norm.grad_output.astype(norm.x.dtype))
    case = replace(case, norm=norm, grad_residual=None, offset=0.0)
    output, new_residual, _, invvar = forward(case)
    saved = output if memory_efficient else new_residual
    got = backward(case, saved, None, invvar, memory_efficient)[:2]
    want = rms_norm_backward(
        norm.grad_output, saved, invvar, norm.n2, norm.weight,
        eps=norm.eps, memory_efficient=memory_efficient, input_dtype=norm.x.dtype.name,
    )  # fmt: skip
    for mine, plain in zip(got, want, strict=True):
        assert (mine is None and plain is None) or mine.tobytes() == plain.tobytes()


@pytest.mark.parametrize("n2", [96, 384, 1024])
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
def test_an_offset_is_the_weight_with_the_offset_added_bit_for_bit(n2, memory_efficient):
    case = fixed_case(4, n2, "float32", rms=True, offset=1.0)
    added = replace(case, norm=replace(case.norm, weight=case.norm.weight + np.float32(1)), offset=0.0)
    results = []
    for one in (case, added):
        output, new_residual, _, invvar = forward(one)
        gradients = backward(one, output if memory_efficient else new_residual, None, invvar, memory_efficient)
        results.append([array.tobytes() for array in (output, new_residual, invvar, *gradients[:2])])
    assert results[0] == results[1]


@FEW
@given(case=add_cases(widths=(33, 64, 129), rows=(2, 5)))
def test_the_saved_output_gives_the_gradients_of_the_saved_sum_within_both_bounds(case):
    (saved, allowed), (recomputed, looser) = (examine_add_backward(case, path) for path in (False, True))
    with np.errstate(over="ignore", invalid="ignore"):
        bound = allowed.grad_input + looser.grad_input
    oracle.assert_within(recomputed[0], as_truth(saved[0]), bound, "grad of both modes")


@pytest.mark.parametrize("schedule", ["forward", "reverse", 1])
def test_no_schedule_of_threads_changes_a_bit(schedule):
    case, found = fixed_case(6, 520, "bfloat16", rms=False), []
    for order in ("forward", schedule):
        with using("simulator", order):
            output, new_residual, mean, invvar = forward(case)
            gradients = backward(case, new_residual, mean, invvar, False)
        found.append([array.tobytes() for array in (output, new_residual, mean, invvar, *gradients)])
    assert found[0] == found[1]


@pytest.mark.parametrize("residual_dtype", ["bfloat16", "float32"])
def test_the_stage_adds_rounds_and_stores_what_it_leaves_in_registers(residual_dtype):
    from normlab.engine import cuda, float32, store
    from normlab.stages.vector import map_threads, row_loader

    thread_map = map_threads(72, 2, 32)
    load_row, add_residual = row_loader(thread_map), residual_adder(thread_map, float32)

    @cuda.jit
    def add(x, residual, new_residual, held):
        values = cuda.local.array(4, float32)
        first = cuda.threadIdx.x * 2
        load_row(values, x, 0, first)
        add_residual(values, residual, new_residual, 0, first)
        for v in range(2):
            for k in range(2):
                if first + 64 * v + k < 72:
                    store(held, (0, first + 64 * v + k), values[2 * v + k])

    rng = np.random.default_rng(0)
    x, residual = rng.normal(size=(1, 72)).astype(np.float32), rng.normal(size=(1, 72)).astype(DTYPES[residual_dtype])
    new_residual, held = np.zeros_like(residual), np.full((1, 72), np.nan, np.float32)
    report = sanitize(add)[1, 32](x, residual, new_residual, held)
    assert report.ok, report
    want = oracle.add_rms_norm(x, residual, None, 1e-5).new_residual
    assert new_residual.tobytes() == want.tobytes()
    assert (held == want.astype(np.float32)).all()


def test_the_sum_is_rounded_to_float32_and_then_to_the_residual_s_dtype_as_pytorch_rounds_it():
    x, residual = np.full((1, 8), 2.0**-11 + 2.0**-30, np.float32), np.ones((1, 8), np.float16)
    new_residual = add_rms_norm_forward(x, residual)[1]
    assert (new_residual == 1).all()  # the exact sum lies above the tie between 1 and the next float16
    assert (torch.from_numpy(x) + torch.from_numpy(residual)).half().numpy().tobytes() == new_residual.tobytes()
    assert (oracle.add_rms_norm(x, residual, None, 1e-5).new_residual == 1).all()


def test_no_rows_give_no_rows_and_gradients_of_zeros():
    empty = np.zeros((0, 8), np.float32)
    weight = np.ones(8, np.float32)
    case = replace(fixed_case(1, 8, "float32", True), norm=Case(empty, weight, None, empty, 1e-5, True), x=empty)
    output, new_residual, _, invvar = forward(case)
    assert (output.shape, new_residual.shape, invvar.shape) == ((0, 8), (0, 8), (0,))
    grad, grad_weight, _ = backward(replace(case, grad_residual=empty), new_residual, None, invvar, False)
    assert grad.shape == (0, 8)
    assert (grad_weight == 0).all()
