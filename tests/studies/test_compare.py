"""What `normlab compare` is made of: what is read and refused, the numbers, and that the verdict follows from them.

The kernels run on a few rows; `test_cli` runs the whole command once.
"""

from dataclasses import replace
from functools import partial
from math import inf, nan

import ml_dtypes
import numpy as np
import pytest

from normlab import engine, keep_columns, layer_norm_backward, oracle
from normlab.kernels import BEST, LADDERS, Chains
from normlab.kernels.exact.chains import with_repairs
from normlab.measure.numbers import scientific
from normlab.studies import compare
from normlab.studies.compare import passes
from normlab.studies.compare.activations import InputError, Source, bundled, read
from normlab.studies.compare.measure import Error, measure
from normlab.studies.compare.passes import Backward, run_backward, run_forward
from normlab.studies.compare.plan import ORACLE, SIMULATOR_STEPS, choose, prepare
from normlab.studies.compare.verdict import AS_GOOD, Verdict, judge, reason, short

ROWS = 6


@pytest.fixture(scope="module")
def layers():
    """The bundled layers' reports on a few rows, by name."""
    with engine.using("simulator"):
        plan = choose(world="simulator")
    return {layer.name: layer for layer in compare.run(prepare(bundled(), plan, ROWS)).layers}


def source(n1=3, n2=8, **arrays):
    rng = np.random.default_rng(1)
    return Source("drawn", {"input": rng.standard_normal((n1, n2)).astype(np.float32)} | arrays)


def compared(given, rows=None, **choices):
    """One source's report, in the simulator."""
    return compare.run(prepare([given], choose(world="simulator", **choices), rows)).layers[0]


def saved(tmp_path, **arrays):
    path = tmp_path / "layer.npz"
    np.savez(path, **arrays)
    return path


# ---- the numbers on the bundled data ---------------------------------------------------------------------------------


def test_recomputing_is_as_good_on_the_two_layers_without_small_weights(layers):
    for name in ("embeddings", "block0_output"):
        assert layers[name].verdict.kind == "as_good"
        assert layers[name].channels_at_risk == 0
        assert layers[name].recomputed.grad_input.relative < 5e-7


def test_recomputing_breaks_the_layer_with_weights_of_1e_minus_33(layers):
    layer = layers["block5_output"]
    assert layer.saved_input.grad_input.relative < 5e-7
    assert layer.recomputed.grad_input.relative > 1e-2
    assert layer.verdict.kind == "worse"
    assert "grad_input" in layer.verdict.sentence
    assert (
        "2 of 384 weights are too small to divide by (|gamma| up to 6.0e-33, 2 below eps; the next is 1.5e-9)"
        in layer.verdict.sentence
    )
    assert layer.channels_at_risk == 2
    assert layer.smallest_gamma == pytest.approx(4.795e-33, rel=1e-3)


def test_every_error_on_the_bundled_data_is_within_its_bound_and_not_absurdly_far(layers):
    for layer in layers.values():
        backwards = layer.saved_input, layer.recomputed, layer.exact
        errors = [layer.output, *(error for backward in backwards for error in backward.gradients.values())]
        assert len(errors) == 10
        assert all(1e-4 < error.bound_ratio <= 1 for error in errors)
        assert all(error.not_finite == error.unbounded == 0 for error in errors)


def test_exact_is_as_good_as_the_saved_input_on_every_layer_and_says_what_that_costs(layers):
    for layer in layers.values():
        for name, error in layer.saved_input.gradients.items():
            assert layer.exact.gradients[name].relative < AS_GOOD * max(error.relative, oracle.unit_roundoff("float32"))
    broken = layers["block5_output"]
    off = scientific(broken.exact.grad_input.relative)
    # the weights of 4.8e-33, 6.0e-33 and 1.5e-9: a column number, and a value a row, of four bytes each
    assert broken.verdict.sentence.endswith(f"; exact is off by {off} and keeps {3 * 4 * (1 + ROWS)} B more")


def test_exact_keeps_columns_where_that_helps_and_is_recomputing_elsewhere(layers):
    broken = layers["block5_output"]
    assert broken.kept_columns == 3
    for kept, recomputed in (
        (broken.exact.bytes_kept, broken.recomputed.bytes_kept),
        (broken.exact.bytes_kept_with_output, broken.recomputed.bytes_kept_with_output),
    ):
        assert kept == recomputed + 3 * 4 * (1 + ROWS)
    for name in ("embeddings", "block0_output"):
        assert layers[name].kept_columns == 0
        assert layers[name].exact == layers[name].recomputed


def test_what_is_not_run_twice_would_give_the_same_again():
    (layer,) = prepare(bundled()[:1], choose(world="simulator"), 3).layers
    plan = choose(world="simulator")
    forward = run_forward(layer, plan)
    assert run_backward(layer, plan, forward, "exact") is None
    given = layer.grad_output, forward.output, None, forward.invvar, 384, layer.weight, layer.bias, layer.eps
    with engine.using("simulator"):
        recomputed, exact = (
            layer_norm_backward(*given, memory_efficient=memory_efficient, kept=forward.kept, step=plan.backward)
            for memory_efficient in (True, "exact")
        )
    for one, other in zip(recomputed, exact, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_backward_that_does_not_use_what_was_kept_exceeds_its_bound(monkeypatch):
    real = passes.norms.backward

    def without_kept(call):
        return real(call._replace(memory_efficient=bool(call.memory_efficient), kept=None))

    monkeypatch.setattr(passes.norms, "backward", without_kept)
    verdict = compared(bundled()[2], rows=3).verdict
    assert verdict.kind == "bound_exceeded"
    assert "BOUND EXCEEDED: grad_input (exact) is off by " in verdict.sentence
    assert "(recomputed)" not in verdict.sentence


def test_a_forward_that_keeps_nothing_makes_exact_no_better_than_recomputing(monkeypatch):
    monkeypatch.setattr(passes, "keep_columns", partial(keep_columns, columns=np.empty(0, np.int32)))
    layer = compared(bundled()[2], rows=3)
    assert layer.kept_columns == 0
    assert layer.exact == layer.recomputed
    assert layer.exact.grad_input.relative > 1e-2
    assert layer.verdict.sentence.endswith(" and keeps 0 B more")


def test_the_paths_keep_input_and_statistics_or_one_statistic_and_the_output(layers):
    layer = layers["embeddings"]
    array, statistic = ROWS * 384 * 4, ROWS * 4
    assert layer.saved_input.bytes_kept == layer.saved_input.bytes_kept_with_output == array + 2 * statistic
    assert layer.recomputed.bytes_kept == statistic
    assert layer.recomputed.bytes_kept_with_output == array + statistic


def test_the_verdict_follows_from_the_weights_and_not_from_the_name():
    embeddings, _, block5 = bundled()
    weight = embeddings.arrays["weight"].copy()
    weight[[3, 5, 8]] = 0
    broken = compared(replace(embeddings, arrays=embeddings.arrays | {"weight": weight}), rows=4)
    assert broken.verdict.kind == "worse"
    assert "3 of 384 weights are too small to divide by (gamma = 0; the next is 1.5e-1)" in broken.verdict.sentence
    weight = np.maximum(abs(block5.arrays["weight"]), 0.1)
    mended = compared(replace(block5, arrays=block5.arrays | {"weight": weight}), rows=4)
    assert mended.verdict.sentence == "recomputing is as good as saving"


def test_weights_that_are_all_zero_are_judged_by_the_largest_error_because_the_truth_is_0():
    layer = compared(source(weight=np.zeros(8)))
    assert layer.saved_input.grad_input.relative == 0
    assert layer.recomputed.grad_input.relative == inf
    assert layer.verdict.sentence.startswith("where 0 is right, recomputing gives ")
    assert layer.verdict.sentence.endswith(
        " in grad_input, saving 0: 8 of 8 weights are too small to divide by (gamma = 0); exact gives 0 and keeps "
        "128 B more"  # 8 column numbers, and 3 rows of 8
    )
    assert layer.exact.grad_input.relative == 0
    assert layer.exact.grad_weight.relative < 1e-6
    assert layer.kept_columns == 8


# ---- dtypes, norms, steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_data_is_rounded_to_the_dtype_and_the_error_is_of_its_size(dtype):
    layer = compared(source(4, 33, weight=np.linspace(0.5, 2, 33)), dtype=dtype)
    u = oracle.unit_roundoff(dtype)
    assert layer.exact == layer.recomputed
    for backward in (layer.saved_input, layer.recomputed):
        for error in backward.gradients.values():
            assert error.bound_ratio <= 1
            assert error.relative < 20 * u
    assert layer.output.relative > u / 50
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    statistic = max(4, itemsize)
    assert layer.saved_input.bytes_kept == 4 * 33 * itemsize + 2 * 4 * statistic
    done = "widened" if dtype == "float64" else "rounded"
    assert (f"input: float32, {done} to {dtype} (--dtype)" in layer.notes) == (dtype != "float32")


def test_rms_norm_has_no_bias_and_keeps_no_mean():
    layer = compared(source(4, 33, bias=np.ones(33)), norm="rms")
    assert layer.saved_input.grad_bias is None
    assert layer.recomputed.grad_bias is None
    assert layer.saved_input.bytes_kept == 4 * 33 * 4 + 4 * 4
    assert "bias: not used, RMSNorm has none" in layer.notes
    assert layer.verdict.kind == "as_good"
    assert layer.saved_input.grad_weight.bound_ratio <= 1


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_exact_gives_weights_of_0_their_gradient_in_every_norm_and_dtype(norm, dtype):
    layer = compared(source(4, 33, weight=np.repeat([0.0, 1.0], [3, 30]), eps=1e-5), norm=norm, dtype=dtype)
    assert layer.kept_columns == 3
    assert layer.recomputed.grad_weight.relative > 0.1
    assert layer.exact.grad_weight.relative < AS_GOOD * oracle.unit_roundoff(dtype)
    assert all(0 < error.bound_ratio <= 1 for error in layer.exact.gradients.values())
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    assert layer.exact.bytes_kept == layer.recomputed.bytes_kept + 3 * 4 + 4 * 3 * itemsize


def test_layer_norm_and_rms_norm_are_not_the_same_computation():
    shifted = source(4, 33, input=np.random.default_rng(0).standard_normal((4, 33)).astype(np.float32) + 5)
    assert compared(shifted).output.largest != compared(shifted, norm="rms").output.largest


@pytest.mark.parametrize("step", sorted({step.name for ladder in SIMULATOR_STEPS for step in LADDERS[ladder]}))
def test_a_step_is_taken_on_the_ladders_that_have_it(step):
    plan = choose(world="simulator", step=step)
    for ladder, chosen in (("forward", plan.forward), ("backward", plan.backward)):
        known = [each.name for each in LADDERS[ladder]]
        assert chosen == (step if step in known else SIMULATOR_STEPS[ladder])
    report = compare.run(prepare([source(2, 40)], plan))
    assert report.within_bounds


def test_the_default_steps_of_the_simulator_exist():
    for ladder, name in SIMULATOR_STEPS.items():
        assert name in [step.name for step in LADDERS[ladder]]


@pytest.mark.parametrize(("step", "statistics"), [("apex", "welford"), ("block_tree", "two_pass")])
def test_the_bounds_are_those_of_the_chosen_steps(step, statistics):
    plan = choose(world="simulator", dtype="float16", step=step)
    forward, backward = (
        next(each for each in LADDERS[ladder] if each.name == name)
        for ladder, name in (("forward", plan.forward), ("backward", plan.backward))
    )
    for ladder, chains in (("forward", forward.row_chains(999)), ("backward", backward.row_chains(999))):
        arithmetic = plan.arithmetic(ladder, 777, 999)
        assert (arithmetic.row_terms, arithmetic.row_merges) == chains
        assert (arithmetic.column_terms, arithmetic.column_merges) == backward.column_chains(777, 999)
        assert (arithmetic.statistics, arithmetic.input, arithmetic.accumulator) == (statistics, "float16", "float32")


def test_the_bounds_of_the_exact_path_know_its_own_sums():
    plan = choose(world="simulator")
    chains = Chains(*vars_of(plan, "row")), Chains(*vars_of(plan, "column"))
    row, column = with_repairs(*chains, 777, 50)
    assert (row, column) != chains
    assert Chains(*vars_of(plan, "row", 50)) == row
    assert Chains(*vars_of(plan, "column", 50)) == column


def vars_of(plan, sums, *kept):
    """(terms, merges) of the backward's sums of one kind."""
    arithmetic = plan.arithmetic("backward", 777, 999, *kept)
    return [getattr(arithmetic, f"{sums}_{name}") for name in Chains._fields]


def test_a_gpu_runs_the_best_step_of_each_ladder(monkeypatch):
    monkeypatch.setattr(engine, "use_gpu", lambda: True)
    plan = choose()
    assert (plan.engine, plan.forward, plan.backward) == ("gpu", BEST["forward"], BEST["backward"])


def test_an_unknown_step_is_refused_with_the_known_ones():
    with pytest.raises(
        InputError, match=r"unknown step 'fastest'; known are, forward: thread_per_row.*; backward: global"
    ):
        choose(step="fastest")


def test_each_pass_is_reported():
    calls = []
    compare.run(prepare(bundled()[:1], choose(world="simulator"), 2), lambda: calls.append(1))
    assert len(calls) == compare.PASSES


# ---- how many rows ---------------------------------------------------------------------------------------------------


def test_all_of_the_bundled_rows_fit_into_the_time():
    job = prepare(bundled(), choose(world="simulator"))
    assert [layer.input.shape for layer in job.layers] == [(270, 384)] * 3
    assert not any(layer.notes for layer in job.layers)
    assert job.seconds < 10


def test_too_many_rows_for_the_simulator_are_cut_and_that_is_said():
    many = source(input=np.ones((20_000, 512), np.float32))
    (layer,) = prepare([many], choose(world="simulator")).layers
    rows = layer.input.shape[0]
    assert 300 < rows < 4000
    assert layer.grad_output.shape == (rows, 512)
    assert layer.rows_total == 20_000
    assert f"only the first {rows:,} rows, to stay within 10 s; --rows N takes N" in layer.notes


def test_a_wide_row_is_taken_even_where_it_takes_too_long_and_asked_for_rows_always_are():
    wide = source(input=np.ones((3, 1_000_000), np.float32))
    plan = choose(world="simulator")
    assert prepare([wide], plan).layers[0].input.shape[0] == 1
    job = prepare([wide], plan, rows=3)
    assert job.layers[0].input.shape[0] == 3
    assert job.seconds > 30


@pytest.mark.parametrize(("step", "least", "most"), [("apex", 0.6, 1), ("global_atomics", 0.1, 0.5)])
def test_a_step_that_the_simulator_is_slow_at_is_given_fewer_rows(step, least, most):
    wide = source(input=np.ones((2000, 4096), np.float32))
    plan = replace(choose(world="simulator"), backward="pipelined")
    usual, slow = (prepare([wide], chosen).layers[0].input.shape[0] for chosen in (plan, replace(plan, backward=step)))
    assert least * usual < slow < most * usual


def test_a_gpu_costs_the_oracle_only():
    plan = choose(world="simulator")
    assert replace(plan, engine="gpu").seconds([(100, 384)]) == 4 * ORACLE * 100 * 384 < plan.seconds([(100, 384)])


# ---- what stands in for what is missing ------------------------------------------------------------------------------


def test_an_input_alone_gets_ones_zeros_a_drawn_gradient_and_the_usual_eps_and_that_is_said():
    (layer,) = prepare([source()], choose(world="simulator")).layers
    assert layer.weight.tolist() == [1] * 8
    assert layer.bias.tolist() == [0] * 8
    assert layer.eps == 1e-5
    assert layer.grad_output.std() > 0.5
    for words in (
        "weight: none given, 1",
        "bias: none given, 0",
        "grad_output: none given, drawn",
        "eps: none given, 1e-05",
    ):
        assert any(note.startswith(words) for note in layer.notes)


def test_the_drawn_gradient_of_a_row_does_not_depend_on_how_many_rows_are_taken():
    plan = choose(world="simulator")
    few, many = (prepare([source()], plan, rows).layers[0].grad_output for rows in (1, 3))
    assert np.array_equal(few, many[:1])


def test_the_drawn_gradient_is_not_the_input_of_someone_who_drew_it_with_a_plain_seed():
    for seed in (0, 1, 42):
        given = source(input=np.random.default_rng(seed).standard_normal((50, 40)))
        (layer,) = prepare([given], choose(world="simulator")).layers
        assert abs(np.corrcoef(layer.input.ravel(), layer.grad_output.ravel())[0, 1]) < 0.1


# ---- reading files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "rows"), [((7,), (1, 7)), ((2, 7), (2, 7)), ((2, 3, 7), (6, 7)), ((2, 1, 3, 4), (6, 4)), ((1, 1), (1, 1))]
)
def test_a_npy_is_an_input_whose_last_dimension_is_normalised(tmp_path, shape, rows):
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "x.npy", data)
    (layer,) = prepare([read(tmp_path / "x.npy")], choose(world="simulator")).layers
    assert np.array_equal(layer.input, data.reshape(rows))
    assert layer.name == "x"


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float16, np.float64, np.longdouble, ">f4"])
def test_any_real_numbers_are_read_and_rounded_to_float32(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.array([[1, 2, 4]], dtype))
    (layer,) = prepare([read(tmp_path / "x.npy")], choose(world="simulator")).layers
    assert layer.input.dtype == np.float32
    assert layer.input.tolist() == [[1, 2, 4]]
    assert any(note.startswith("input: ") and "float32" in note for note in layer.notes)


def test_fortran_order_is_read_right(tmp_path):
    data = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.save(tmp_path / "x.npy", np.asfortranarray(data))
    (layer,) = prepare([read(tmp_path / "x.npy")], choose(world="simulator")).layers
    assert np.array_equal(layer.input, data.reshape(4, 3))


def test_a_npz_brings_everything_and_keys_that_are_not_read_are_named(tmp_path):
    arrays = {"input": np.ones((2, 3)), "weight": np.full(3, 2.0), "bias": np.full(3, 3.0), "grad_output": np.eye(2, 3)}
    path = saved(tmp_path, **arrays, eps=np.float32(0.5), loss=np.ones(1), attention=np.array(["a"]))
    (layer,) = prepare([read(path)], choose(world="simulator")).layers
    assert layer.weight.tolist() == [2] * 3
    assert layer.bias.tolist() == [3] * 3
    assert layer.grad_output.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert layer.eps == 0.5
    assert layer.notes == ("not read from the file: attention, loss", "input: float64, rounded to float32 (--dtype)")


def test_a_npz_may_have_the_shape_of_a_batch(tmp_path):
    path = saved(tmp_path, input=np.ones((2, 3, 5)), grad_output=np.arange(30.0).reshape(2, 3, 5))
    (layer,) = prepare([read(path)], choose(world="simulator"), rows=4).layers
    assert layer.grad_output.tolist() == np.arange(20.0).reshape(4, 5).tolist()
    assert layer.rows_total == 6


GOOD = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GOOD}, "has no array named 'input'; it has x"),
        ({"weight": GOOD, "x": GOOD}, "has no array named 'input'; it has weight, x"),
        ({}, "has no array named 'input'; it has none at all"),
        ({"input": GOOD, "weight": np.ones(2)}, r"weight has shape \(2,\), but input of shape \(2, 3\) needs \(3,\)"),
        (
            {"input": GOOD, "bias": np.ones((1, 3))},
            r"bias has shape \(1, 3\), but input of shape \(2, 3\) needs \(3,\)",
        ),
        ({"input": GOOD, "grad_output": np.ones((3, 2))}, r"grad_output has shape \(3, 2\), but .* needs \(2, 3\)"),
        ({"input": np.ones(())}, "input is a single number"),
        ({"input": np.ones((0, 3))}, r"input of shape \(0, 3\) is empty"),
        ({"input": np.ones((3, 0))}, r"input of shape \(3, 0\) is empty"),
        ({"input": np.array([["a", "b"]])}, "input holds <U1 values; real numbers are needed"),
        ({"input": np.array([[True, False]])}, "input holds bool values; real numbers are needed"),
        ({"input": GOOD * 1j}, "input holds complex.* values; real numbers are needed"),
        ({"input": np.zeros(3, [("a", "f4")])}, "real numbers are needed"),
        (
            {"input": GOOD.astype(ml_dtypes.bfloat16)},
            "raw 2-byte values: save bfloat16 as float32, .* --dtype bfloat16",
        ),
        ({"input": GOOD, "weight": np.array(["a", "b", "c"])}, "weight holds <U1 values"),
        ({"input": np.array([[None, 1]], object)}, r"holds Python objects \(a pickle\), not numbers"),
        ({"input": GOOD, "eps": np.ones(2)}, "eps must be one finite number, not below 0"),
        ({"input": GOOD, "eps": -1.0}, "eps must be one finite number, not below 0"),
        ({"input": GOOD, "eps": nan}, "eps must be one finite number, not below 0"),
        ({"input": GOOD, "eps": inf}, "eps must be one finite number, not below 0"),
    ],
)
def test_a_npz_that_cannot_be_used_is_refused_with_the_reason(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        read(saved(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(()), "input is a single number"),
        (np.ones((4, 0)), r"input of shape \(4, 0\) is empty"),
        (np.array([["a"]]), "input holds <U1 values"),
        (np.array([1, None], object), r"holds Python objects \(a pickle\)"),
        (GOOD * 1j, "input holds complex"),
    ],
)
def test_a_npy_that_cannot_be_used_is_refused_with_the_reason(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is an empty file; give a .npy or .npz file"),
        (b"1,2,3\n4,5,6\n", "is not a NumPy file; give"),
        (b"\x80\x04K\x01.", "is a pickle, which may run code and is not loaded"),
        (b"\x93NUMPY\x01\x00", "cannot be read: "),
        (b"PK\x03\x04 and no more", "cannot be read: File is not a zip file"),
    ],
)
def test_a_file_that_is_not_numpys_is_refused_with_the_reason(tmp_path, content, message):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path / "x.npy")
    assert "\n" not in str(caught.value)


def test_a_file_cut_short_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((100, 100)))
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:500])
    with pytest.raises(InputError, match="cannot be read: "):
        read(tmp_path / "x.npy")
    path = saved(tmp_path, input=np.random.default_rng(0).standard_normal((100, 100)))
    damaged = bytearray(path.read_bytes())
    damaged[400:500] = bytes(100)
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="cannot be read: Bad CRC-32"):
        read(path)


def test_a_header_that_python_cannot_read_is_refused(tmp_path):
    header = b"{'descr': '<f8', 'shape': (4".ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32))
    with pytest.raises(InputError, match="cannot be read: "):
        read(tmp_path / "x.npy")


def test_an_encrypted_archive_is_refused(tmp_path):
    path = saved(tmp_path, input=GOOD)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x03\x04") + 6] |= 1  # the flag for encrypted, in the member's header and the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read: .* is encrypted"):
        read(path)


def test_what_the_system_refuses_is_said_in_its_words(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        read(tmp_path / ("x" * 300 + ".npy"))
    path = saved(tmp_path, input=GOOD).rename(tmp_path / "objects.npz")

    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.npy: no such file"):
        read(tmp_path / "nowhere.npy")
    with pytest.raises(InputError, match=r"is a directory; give a \.npy or \.npz file"):
        read(tmp_path)


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("key", ["input", "grad_output", "weight", "bias"])
def test_nan_and_infinity_are_refused_with_their_number_and_place(key, value):
    arrays = {"grad_output": np.ones((3, 8)), "weight": np.ones(8), "bias": np.ones(8)}
    given = source(**arrays)
    given.arrays[key].reshape(-1)[5] = value
    with pytest.raises(InputError, match=rf"{key} has 1 NaN or infinite values, the first at \((0, )?5,?\)"):
        prepare([given], choose(world="simulator"))


def test_nan_in_rows_that_are_not_taken_does_not_matter():
    given = source()
    given.arrays["input"][2, 0] = nan
    assert prepare([given], choose(world="simulator"), rows=2).layers[0].input.shape == (2, 8)


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e5), ("float32", 1e39), ("bfloat16", 3.4e38)])
def test_values_too_large_for_the_dtype_are_refused(dtype, value):
    with pytest.raises(InputError, match=f"input has 1 values too large for {dtype}; choose a wider --dtype"):
        prepare([source(input=np.array([[value, 1.0]]))], choose(world="simulator", dtype=dtype))


# ---- measuring and judging -------------------------------------------------------------------------------------------


def test_relative_error_is_norm_over_norm_and_not_largest_over_largest():
    error = measure(np.float32([3, 4.5, 0, 0]), np.array([3.0, 4, 0, 0]), np.full(4, 0.25))
    assert error == Error(relative=0.1, largest=0.5, bound_ratio=2.0, not_finite=0, unbounded=0, size=4)


def test_relative_error_does_not_overflow():
    assert measure(np.array([1.5e300]), np.array([1e300]), np.array([1e300])).relative == pytest.approx(0.5)


def test_nan_where_the_truth_is_a_number_is_counted_even_where_nothing_is_bounded():
    error = measure(np.float32([nan, inf, 1]), np.array([1.0, 1, 1]), np.array([inf, inf, 1]))
    assert (error.not_finite, error.unbounded, error.size) == (2, 2, 3)
    assert measure(np.float32([nan, 1]), np.array([nan, 1.0]), np.array([nan, 1])).not_finite == 0


def test_an_error_of_a_truth_of_0_is_infinite_and_no_error_is_0():
    assert measure(np.float32([1]), np.zeros(1), np.ones(1)).relative == inf
    assert measure(np.float32([0]), np.zeros(1), np.ones(1)).relative == 0


def error(relative, **others):
    return Error(**({"relative": relative, "largest": relative, "bound_ratio": 0.5, "not_finite": 0, "unbounded": 0,
                     "size": 100} | others))  # fmt: skip


def path(grad_input, grad_weight=1e-7):
    either = [each if isinstance(each, Error) else error(each) for each in (grad_input, grad_weight)]
    return Backward(*either, error(1e-7), 8, 16)


@pytest.mark.parametrize(
    ("saving", "recomputing", "kind"),
    [
        (path(1e-6), path(1.9e-6), "as_good"),
        (path(1e-6), path(2.1e-6), "worse"),
        (path(0.0), path(1e-7), "as_good"),  # below the dtype's roundoff
        (path(1e-6, 1e-6), path(1e-6, 1e-5), "worse"),
        (path(1e-6), path(1e-9), "as_good"),
        (path(error(inf, largest=1.0)), path(error(inf, largest=1.0)), "as_good"),
        (path(error(inf, largest=1.0)), path(error(inf, largest=9.0)), "worse"),
        (path(1e-6), path(error(nan, not_finite=3)), "not_finite"),
        (path(1e-6), path(error(1e-6, bound_ratio=1.5)), "bound_exceeded"),
        (path(1e-6), path(error(1e-6, bound_ratio=nan)), "bound_exceeded"),
        (path(error(1e-6, bound_ratio=1.5)), path(1e-6), "bound_exceeded"),
    ],
)
def test_the_verdict_weighs_the_paths(saving, recomputing, kind):
    assert judge(error(1e-7), saving, recomputing, path(1e-6), 6e-8, "because").kind == kind


@pytest.mark.parametrize(
    ("saving", "recomputing", "words"),
    [
        (path(1e-6), path(1.1e-6), "recomputing is as accurate as saving, and keeps 0 B less"),
        (path(1.7e-7), path(2.5e-2), "recomputing is 150,000 times less accurate; exact keeps 1.0 kB more"),
        (path(1e-6), path(2.34e-6), "recomputing is 2.3 times less accurate; exact keeps 1.0 kB more"),
        (path(0.0), path(error(inf, largest=9.0)), "recomputing is infinitely less accurate; exact"),
        (path(1e-6), path(error(nan, not_finite=3)), "recomputing gives NaN or infinity; exact keeps 1.0 kB more"),
        (path(1e-6), path(error(1e-6, bound_ratio=7.0)), "BOUND EXCEEDED: grad_input (recomputed) is off by 7 times"),
    ],
)
def test_the_short_verdict_is_a_factor_and_a_price(saving, recomputing, words):
    exact = replace(path(1e-6), bytes_kept=1008)
    verdict = judge(error(1e-7), saving, recomputing, exact, 6e-8, "because")
    assert short(verdict, saving, recomputing, exact, 6e-8).startswith(words)


def test_the_exact_path_is_judged_too():
    fine = path(1e-6)
    for exact, kind, sentence in (
        (path(error(nan, not_finite=2)), "not_finite", "exact gives NaN or infinity in 2 of 100 values of grad_input"),
        (
            path(error(1e-6, bound_ratio=1.5)),
            "bound_exceeded",
            "BOUND EXCEEDED: grad_input (exact) is off by 1.5 times its bound. A kernel or a bound is wrong. Besides, "
            "recomputing is as good as saving",
        ),
    ):
        assert judge(error(1e-7), fine, fine, exact, 6e-8, "because") == Verdict(kind, sentence)


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (
            "float32",
            "2 of 384 weights are too small to divide by (|gamma| up to 6.0e-33, 2 below eps; the next is 1.5e-9)",
        ),
        (
            "bfloat16",
            "3 of 384 weights are too small to divide by (|gamma| up to 1.5e-9, 2 below eps, 1 below the bias; "
            "the next is 2.5e-1)",
        ),
        ("float16", "3 of 384 weights are too small to divide by (gamma = 0; the next is 2.5e-1)"),
    ],
)
def test_the_verdict_names_the_three_near_zero_weights_as_the_dtype_sees_them(dtype, words):
    assert words in compared(bundled()[2], rows=4, dtype=dtype).verdict.sentence


def test_the_reason_tells_small_weights_from_coarse_outputs():
    (layer,) = prepare([source(weight=np.array([1e-9, 0.5, 1, 1, 1, 1, 1, 2]), bias=np.full(8, 0.7), eps=1e-5)],
                       choose(world="simulator")).layers  # fmt: skip
    none, one, three = np.zeros(8, bool), np.arange(8) == 3, np.arange(8) < 3
    assert reason(layer, none, "float16") == "no single weight is to blame, but the output's rounding to float16"
    assert reason(layer, one, "float16") == "float16 rounds the output of 1 of 8 channels too coarsely"
    assert reason(layer, three, "float16") == (
        "2 of 8 weights are too small to divide by (|gamma| up to 5.0e-1, 1 below eps, 1 below the bias; "
        "the next is 1.0), and float16 rounds the output of 1 of 8 channels too coarsely"
    )


def test_the_verdict_names_the_gradient_that_suffers_most():
    exact = replace(path(2e-6, 3e-6), bytes_kept=3260)
    verdict = judge(error(1e-7), path(1e-6, 1e-6), path(1e-5, 3e-4), exact, 6e-8, "because")
    assert verdict.sentence == (
        "recomputing is off by 3.0e-4 in grad_weight, saving by 1.0e-6: because; exact is off by 3.0e-6 and keeps "
        "3.3 kB more"
    )


def test_an_exceeded_bound_is_said_first_and_by_name():
    verdict = judge(error(1e-7, bound_ratio=3.0), path(1e-6), path(1e-6), path(1e-6), 6e-8, "because")
    assert verdict.sentence == (
        "BOUND EXCEEDED: output (forward) is off by 3 times its bound. A kernel or a bound is wrong. "
        "Besides, recomputing is as good as saving"
    )


def test_nan_is_said_with_its_number_and_place():
    lost = path(error(nan, not_finite=3))
    verdict = judge(error(1e-7), path(1e-6), lost, lost, 6e-8, "because")
    assert verdict.sentence == (
        "recomputing gives NaN or infinity in 3 of 100 values of grad_input; "
        "exact gives NaN or infinity in 3 of 100 values of grad_input"
    )
    verdict = judge(error(1e-7), path(1e-6), lost, replace(path(2e-6), bytes_kept=20), 6e-8, "because")
    assert verdict.sentence == (
        "recomputing gives NaN or infinity in 3 of 100 values of grad_input; "
        "exact is off by 2.0e-6 in grad_input and keeps 12 B more"
    )
