"""The check that comes before every timing lets right results pass, and nothing else."""

import pytest
import torch

from normlab.bench.check import RESULTS, Check, Columns
from normlab.bench.contenders import Ours, load_peers
from normlab.bench.peers import PEERS
from normlab.bench.problem import DIRECTIONS, NORMS, Problem

(TORCH,), _ = load_peers(["torch"])


def checked(problem, contender, spoil=lambda results: results):
    data = problem.draw("cpu")
    return Check(problem, data).worst(contender, spoil(getattr(contender, problem.direction)(data)()))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_right_results_lie_within_their_bounds(norm, direction, dtype):
    problem = Problem(norm, direction, dtype, 20, 24)
    contenders = [Ours(), TORCH] + [Ours("me", memory_efficient=True)] * (direction == "backward")
    found = [checked(problem, contender) for contender in contenders]
    for contender, worst in zip(contenders, found, strict=True):
        assert 0 < max(worst.values()) <= 1, (contender.name, worst)
    absent = {"mean", "grad_bias"} if norm == "rms" else set()
    assert set(found[0]) == set(RESULTS[direction]) - absent


def changed(position, change):
    def spoil(results):
        results = list(results)
        results[position] = change(results[position].clone())
        return tuple(results)

    return spoil


def set_last(value):
    def change(tensor):
        tensor.view(-1)[-1] = value
        return tensor

    return change


@pytest.mark.parametrize("contender", [Ours(), TORCH], ids=["ours", "a peer"])
@pytest.mark.parametrize(
    ("direction", "position", "change"),
    [
        ("forward", 0, set_last(float("nan"))),
        ("forward", 0, set_last(7.0)),
        ("forward", 0, lambda output: output * 1.01),
        ("backward", 0, lambda gradient: gradient + 0.01),
        ("backward", 0, set_last(float("inf"))),
        ("backward", 1, lambda gradient: gradient * 1.01),
        ("backward", 2, set_last(float("nan"))),
    ],
)
def test_a_wrong_result_is_found_in_float32(contender, direction, position, change):
    problem = Problem("layer", direction, "float32", 12, 40)
    worst = checked(problem, contender, changed(position, change))
    name = RESULTS[direction][position]
    assert worst[name] > 1
    assert all(ratio <= 1 for other, ratio in worst.items() if other != name)


@pytest.mark.parametrize("name", ["mean", "invvar"])
def test_a_wrong_statistic_is_found(name):
    problem = Problem("layer", "forward", "float32", 12, 40)
    worst = checked(problem, Ours(), changed(RESULTS["forward"].index(name), lambda value: value + 1e-3))
    assert worst[name] > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_row_left_out_of_the_parameter_gradients_is_found(dtype):
    problem = Problem("layer", "backward", dtype, 20, 24)
    data = problem.draw("cpu")
    fewer = type(data)(data.x[:-1], data.weight, data.bias, data.grad_output[:-1])
    right, lacking = (Ours().backward(one)() for one in (data, fewer))
    worst = Check(problem, data).worst(Ours(), (right[0], *lacking[1:]))
    assert worst["grad_input"] <= 1 < min(worst["grad_weight"], worst["grad_bias"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_add_up_all_rows_in_float64_and_leave_the_data_as_it_is(monkeypatch, dtype):
    problem = Problem("layer", "backward", dtype, 100, 24)
    data = problem.draw("cpu")
    whole = Columns(problem, data).sums
    monkeypatch.setattr("normlab.bench.check.CHUNK_ELEMENTS", 7 * 24)  # 14 chunks of 7 rows and one of 2
    pieces = Columns(problem, data).sums
    leaves = [array.double().requires_grad_() for array in (data.x, data.weight, data.bias)]
    output = torch.nn.functional.layer_norm(leaves[0], (24,), *leaves[1:], 1e-5)
    _, weight, bias = torch.autograd.grad(output, leaves, data.grad_output.double())
    assert torch.equal(data.x, problem.draw("cpu").x)
    for sums in (whole, pieces):
        torch.testing.assert_close(torch.from_numpy(sums["weight"]), weight, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.from_numpy(sums["bias"]), bias, rtol=1e-12, atol=1e-12)


def test_the_rows_that_are_looked_at_are_spread_from_the_first_to_the_last_and_not_too_many():
    for n1, n2, count in ((1, 8, 1), (50, 8, 50), (1000, 8, 64), (1000, 4096, 16), (1000, 2**18, 2)):
        problem = Problem("rms", "forward", "float32", n1, 1)
        rows = Check(Problem("rms", "forward", "float32", n1, n2), problem.draw("cpu")).rows
        assert len(rows) == count
        assert (rows[0], rows[-1]) == (0, n1 - 1)


def test_a_peer_may_round_partial_sums_to_half_precision_but_normlab_may_not():
    problem = Problem("layer", "backward", "bfloat16", 512, 32)
    data = problem.draw("cpu")
    right = TORCH.backward(data)()
    xhat = torch.nn.functional.layer_norm(data.x.double(), (32,))
    parts = (data.grad_output.double() * xhat).view(8, 64, 32)
    rounded = parts.cumsum(1)[:, -1].bfloat16().cumsum(0, dtype=torch.bfloat16)[-1]
    results = right[0], rounded, right[2]
    check = Check(problem, data)
    assert check.worst(TORCH, results)["grad_weight"] <= 1 < check.worst(Ours(), results)["grad_weight"]


@pytest.mark.parametrize(
    ("error", "said"), [(AttributeError("no attribute 'x'\nat …"), "no attribute 'x'"), (ImportError(), "ImportError")]
)
def test_a_peer_that_fails_in_its_import_is_absent_with_the_reason(monkeypatch, error, said):
    def fails():
        raise error

    monkeypatch.setitem(PEERS, "quack", fails)
    found, absent = load_peers(["quack", "torch"])
    assert ([one.name for one in found], absent) == (["torch"], {"quack": said})
