"""LayerNorms modulated per sample: within the oracle's bounds, on every way that plans them, sample by sample."""

import importlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from draws import sampled
from hypothesis import given, settings
from modulated_norms import backward, examine_modulated, fixed_case, forward, modulated_cases

from normlab import layer_norm_backward, layer_norm_forward
from normlab.engine import launch, resources, using
from normlab.kernels import Device, ForwardProblem, Problem
from normlab.kernels.apart import EXTRA
from normlab.kernels.modulated_norm import BACKWARD, FORWARD, sum_samples
from normlab.kernels.plan import GRID_LIMIT_Y
from normlab.learn.explain import types_of
from normlab.sim import sanitize


@settings(max_examples=25)
@given(case=modulated_cases())
def test_results_and_gradients_are_within_their_bounds(case):
    examine_modulated(case)


@pytest.mark.parametrize(
    ("samples", "rows", "n2", "dtype", "parameters"),
    [
        (2, 9, 520, "bfloat16", None),  # two blocks for each sample
        (2, 19, 64, "float16", None),  # several rows per warp, and blocks without a full set of rows
        (2, 1, 4096, "bfloat16", None),
        (3, 2, 512, "float32", "bfloat16"),
        (1, 7, 1024, "float32", None),
    ],
)
def test_the_fast_kernels_modulate_and_are_within_the_bounds(samples, rows, n2, dtype, parameters):
    before, after = examine_modulated(fixed_case(samples, rows, n2, dtype, parameters))
    assert (before.step, len(before.work)) == ("one_barrier", 1)
    assert after.step == "pipelined"
    assert after.work[0].options[2].sampled


@pytest.mark.parametrize(("n2", "dtype"), [(50, "float64"), (61, "bfloat16")])
def test_rows_that_the_fast_kernels_refuse_are_modulated_apart(n2, dtype):
    _, after = examine_modulated(fixed_case(3, 4, n2, dtype))
    assert after.step.endswith(EXTRA)
    assert [after.work[at].kernel.py_func.__name__ for at in (0, -1)] == ["modulate_rows", "sum_samples"]


def test_rows_that_no_block_holds_are_modulated_apart():
    plan = FORWARD.plan(described("forward", 66_000, "bfloat16"), Device.named("h100"))
    assert (plan.step, plan.work[-1].kernel.py_func.__name__) == ("clusters and extra kernels", "modulate_rows")


def test_nothing_is_found_where_a_block_has_places_for_more_rows_than_its_sample():
    case, reports = fixed_case(2, 5, 520, "bfloat16"), []
    x = case.x.reshape(10, 520)
    statistics = [np.full(10, np.nan, np.float32) for _ in range(2)]
    output = np.full_like(x, np.nan)
    problem = ForwardProblem(
        x, case.scale, case.shift, np.float32(case.eps), output, *statistics, offset=1.0, sampled=True
    )

    def launch(kernel, grid, block, *args, shared_bytes):
        assert (grid, block) == (2, (16, 8))
        reports.append(sanitize(kernel)[grid, block, 0, shared_bytes](*args))

    with using("simulator"):
        FORWARD.run(launch, None, problem)
        expected = forward(case)
    assert [report.findings for report in reports] == [()]
    for got, want in zip((output, *statistics), expected, strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(("rows", "a_block"), [(1, 2), (2, 2), (3, 4), (5, 8), (256, 8)])
def test_a_block_has_few_places_for_rows_where_a_sample_has_few_rows(rows, a_block):
    plan = FORWARD.plan(described("forward", 1152, "bfloat16", 16, 16 * rows), Device.named("h100"))
    work = plan.work[0]
    assert (work.block, work.grid) == ((16, a_block), 16 * -(-rows // a_block))


@pytest.mark.parametrize("clusters", [2, 3, 7])
def test_a_sample_s_rows_may_be_shared_by_several_clusters(clusters, monkeypatch):
    step = importlib.import_module("normlab.kernels.backward.step_3_pipelined")  # a mutant's, while it is imported
    monkeypatch.setattr(step, "clusters_for", lambda layout, n1, resident, samples=1: clusters)
    _, after = examine_modulated(fixed_case(3, 70, 264, "bfloat16"))
    assert after.work[0].grid == 3 * clusters
    assert after.work[1].kernel.py_func.__name__ == "backward_few_final_sums"


@pytest.mark.parametrize(("samples", "resident", "each"), [(1, 132, 132), (4, 132, 33), (100, 132, 5), (1000, 132, 1)])
def test_so_many_clusters_take_a_sample_that_few_multiprocessors_wait(samples, resident, each):
    plan = BACKWARD.first_answer(described("backward", 4096, "bfloat16", samples), Device.named("h100")).plan(resident)
    assert plan.work[0].grid == samples * each


def test_each_sample_has_the_bits_of_a_layer_norm_with_its_own_parameters():
    case = fixed_case(3, 6, 128, "float32")
    output, mean, invvar = forward(case)
    grad_x, *_ = backward(case, mean, invvar)
    for sample in range(3):
        x, gamma, beta = case.x[sample], 1 + case.scale[sample], case.shift[sample]
        want, *statistics = layer_norm_forward(x, 128, gamma, beta, eps=case.eps)
        assert output[sample].tobytes() == want.tobytes()
        grads = layer_norm_backward(case.grad_output[sample], x, *statistics, 128, gamma, beta, eps=case.eps)
        assert grad_x[sample].tobytes() == grads[0].tobytes()


@pytest.mark.parametrize("schedule", ["reverse", 1])
def test_no_schedule_of_threads_changes_a_bit(schedule):
    case, found = fixed_case(2, 6, 264, "bfloat16"), []
    for order in ("forward", schedule):
        with using("simulator", order):
            results = forward(case)
            found.append([array.tobytes() for array in (*results, *backward(case, *results[1:]))])
    assert found[0] == found[1]


def test_other_samples_change_no_bit_of_a_sample():
    case = fixed_case(3, 6, 264, "bfloat16")
    alone = replace(case, **{name: getattr(case, name)[1:2] for name in ("x", "scale", "shift", "grad_output")})
    found = []
    for one, sample in ((case, 1), (alone, 0)):
        results = forward(one)
        found.append([array[sample].tobytes() for array in (*results, *backward(one, *results[1:])[:1])])
    assert found[0] == found[1]


def test_no_rows_give_no_rows_and_gradients_of_zeros():
    for shape in ((0, 3), (2, 0)):
        rows, parameters = np.zeros((*shape, 8), np.float32), np.ones((shape[0], 8), np.float32)
        case = replace(fixed_case(1, 1, 8, "float32"), x=rows, scale=parameters, shift=parameters, grad_output=rows)
        output, mean, invvar = forward(case)
        assert (output.shape, mean.shape) == ((*shape, 8), shape)
        grad_x, *sums = backward(case, mean, invvar)
        assert grad_x.shape == (*shape, 8)
        assert all((one == np.zeros((shape[0], 8))).all() for one in sums)


def described(direction: str, n2: int, dtype: str, samples: int = 16, n1: int = 8000):
    """The operands of a modulated norm, without memory."""
    operands = Problem(direction, "layer", n1, n2, dtype).described()
    parameters = operands.weight._replace(shape=(samples, n2))
    named = dict.fromkeys(("weight", "bias"), parameters)
    if direction == "backward":
        named |= dict.fromkeys(("grad_weight", "grad_bias"), parameters)
    return replace(operands, **named, offset=1.0, sampled=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_grid_has_room_for_any_number_of_samples(dtype):
    samples = GRID_LIMIT_Y + 2
    for n2, direction in itertools.product((2, 128), ("forward", "backward")):
        operands = described(direction, n2, dtype, samples, samples)
        plan = (FORWARD if direction == "forward" else BACKWARD).plan(operands, Device.named("h100"))
        assert all(isinstance(work.grid, int) or work.grid[1] <= GRID_LIMIT_Y for work in plan.work)


def test_blocks_for_fewer_samples_than_there_are_add_up_all():
    rng = np.random.default_rng()
    grad_output, saved = rng.normal(size=(2, 10, 3))
    mean, invvar = rng.normal(size=(2, 10))
    few, all_blocks = (np.full((2, 5, 3), np.nan) for _ in range(2))
    for sums, blocks in ((few, 2), (all_blocks, 5)):
        launch(sum_samples, (1, blocks), 32, grad_output, saved, mean, invvar, *sums)
    assert np.array_equal(few, all_blocks)


WIDTHS = [(64, "bfloat16"), (1152, "bfloat16"), (4096, "bfloat16"), (8192, "bfloat16"), (1024, "float32")]


@pytest.mark.parametrize(("direction", "width"), sampled(["backward", "forward"], WIDTHS))
def test_no_kernel_that_modulates_spills(direction, width):
    operands = described(direction, *width)
    plan = (FORWARD if direction == "forward" else BACKWARD).plan(operands, Device.named("h100"))
    assert not plan.step.endswith(EXTRA)
    for work in plan.work:
        taken = resources(work.kernel, types_of(work, plan, operands))
        assert (taken.local_bytes, taken.spill_stores, taken.spill_loads) == (0, 0, 0), taken


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_kernels_beside_the_norm_compile(dtype):
    for direction, rung in (("forward", FORWARD), ("backward", BACKWARD)):
        operands = described(direction, 66_001, dtype, 2, 4)
        plan = rung.plan(operands, Device.named("h100"))
        beside = [work for work in plan.work if work.kernel.py_func.__name__ in ("modulate_rows", "sum_samples")]
        assert beside
        for work in beside:
            assert resources(work.kernel, types_of(work, plan, operands)).spill_stores == 0
