from functools import partial

import pytest
from bench.conftest import nothing

from normlab import engine
from normlab.bench.ladder import Launch, climb, launches
from normlab.bench.occupancy import of_launch
from normlab.bench.problem import Problem
from normlab.kernels import LADDERS

KEYS = {
    "kernel", "grid", "block", "median_us", "lower_us", "upper_us",
    "registers", "local_bytes", "shared_bytes", "blocks_per_multiprocessor", "occupancy",
}  # fmt: skip


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_step_of_the_ladder_is_there_with_its_kernels_and_the_slowest_comes_first(norm, direction, stopwatch):
    problem = Problem(norm, direction, "float32", 4, 32)
    seconds = [1e-6 * count for count in range(1, 100)]
    advanced = []
    record = climb(problem, stopwatch(*seconds), nothing, "cpu", lambda: advanced.append(1))
    assert (record["n1"], record["n2"], record["bytes"]) == (4, 32, problem.bytes)
    assert {entry["step"] for entry in record["steps"]} == {step.name for step in LADDERS[direction]}
    assert len(advanced) == len(LADDERS[direction])
    times = [entry["median_us"] for entry in record["steps"]]
    assert times == sorted(times, reverse=True)
    for entry in record["steps"]:
        assert entry["status"] == "ok"
        assert entry["summary"]
        assert all(set(kernel) == KEYS for kernel in entry["kernels"])


def test_a_step_s_launches_are_what_it_asks_for():
    problem = Problem("layer", "backward", "float32", 4, 32)
    (apex,) = (step for step in LADDERS["backward"] if step.name == "apex")
    recorded = launches(apex, problem, problem.draw("cpu"))
    names = [one.kernel.py_func.__name__ for one in recorded]
    assert names.count("backward_apex_final_sums") == 2  # weight and bias
    assert {"backward_apex_partial_sums", "backward_apex_grad_input"} <= set(names)
    assert all(one.threads >= 32 for one in recorded)


def test_a_wrong_step_stands_in_the_table_without_a_time_and_first(stopwatch, monkeypatch):
    problem = Problem("rms", "forward", "float32", 4, 32)
    monkeypatch.setattr("normlab.bench.ladder.enter", lambda *rest: {"status": "wrong", "reason": "so"})
    record = climb(problem, stopwatch(1e-6), nothing, "cpu")
    assert all(entry["status"] == "wrong" and "kernels" not in entry for entry in record["steps"])


def test_occupancy_is_the_engine_s_with_dynamic_shared_memory_added():
    problem = Problem("layer", "forward", "float32", 4, 32)
    (apex,) = (step for step in LADDERS["forward"] if step.name == "apex")
    (launch,) = launches(apex, problem, problem.draw("cpu"))
    found = of_launch(launch, cc=(9, 0))
    assert set(found) == KEYS - {"kernel", "grid", "block", "median_us", "lower_us", "upper_us"}
    fits = engine.occupancy(found["registers"], found["shared_bytes"], 128, (9, 0))
    assert (found["blocks_per_multiprocessor"], found["occupancy"]) == (fits.blocks, round(fits.fraction, 4))
    assert found["shared_bytes"] == 3 * 4 * 4  # (3, WARPS) of float32
    more = of_launch(launch._replace(options={"shared_bytes": 100_000}), cc=(9, 0))
    assert more["shared_bytes"] == found["shared_bytes"] + 100_000
    assert more["blocks_per_multiprocessor"] == 2

    unknown = of_launch(launch, cc=(8, 9))  # the engine has the limits of 8.0 and 9.0
    assert unknown["registers"] > 0
    assert (unknown["blocks_per_multiprocessor"], unknown["occupancy"]) == (None, None)


def test_threads_of_a_block_of_several_dimensions():
    launch = partial(Launch, None, 1, arguments=(), options={})
    assert launch(block=(32, 4)).threads == launch(block=128).threads == 128
