import json
import sys
from contextlib import nullcontext

import pytest
import torch

from normlab.bench import first_call, host
from normlab.bench.contenders import Ours, load_peers, ours
from normlab.bench.problem import DIRECTIONS, Problem
from normlab.measure.timing import REPETITIONS, Spread

(TORCH,), _ = load_peers(["torch"])
SMALL = [Problem("rms", "forward", "float32", 2, 16), Problem("rms", "backward", "float32", 2, 16)]


def test_everybody_is_measured_eagerly_and_under_replay():
    rows = host.measure(
        SMALL,
        [*ours("both"), TORCH],
        lambda call: Spread(1e-5, 1e-5, 1e-5),
        lambda call: Spread(2e-6, 2e-6, 2e-6),
        "cpu",
    )
    assert [list(row["contenders"]) for row in rows] == [["normlab", "torch"], ["normlab", "normlab-me", "torch"]]
    entry = rows[0]["contenders"]["torch"]
    assert entry["status"] == "ok"
    assert (entry["eager"]["median_us"], entry["graph"]["median_us"]) == (10.0, 2.0)


def test_a_call_that_cannot_be_captured_has_no_time_under_replay_and_one_that_fails_says_why():
    def cannot(call):
        raise RuntimeError("operation not permitted when stream is capturing")

    class Broken:
        name, directions, memory_efficient = "broken", DIRECTIONS, False

        def forward(self, data):
            raise ValueError("what shape is that?\nreally")

    rows = host.measure(SMALL[:1], [Ours(), Broken()], lambda call: Spread(1e-5, 1e-5, 1e-5), cannot, "cpu")
    entries = rows[0]["contenders"]
    assert entries["normlab"]["graph"] is None
    assert entries["normlab"]["no_graph"] == "RuntimeError: operation not permitted when stream is capturing"
    (right,) = host.measure(SMALL[:1], [Ours()], *[lambda call: Spread(1e-5, 1e-5, 1e-5)] * 2, "cpu")
    assert set(right["contenders"]["normlab"]) == {"status", "eager", "graph"}
    assert entries["broken"] == {"status": "unable", "reason": "ValueError: what shape is that?"}


def test_under_replay_many_calls_are_captured_once_and_one_of_them_is_timed(monkeypatch):
    clock, calls, replays = [0.0], [], []

    class Graph:
        def replay(self):
            replays.append(1)
            clock[0] += 0.25

    monkeypatch.setattr("torch.cuda.CUDAGraph", Graph)
    monkeypatch.setattr("torch.cuda.graph", lambda graph: nullcontext())
    monkeypatch.setattr("torch.cuda.synchronize", lambda: clock.__setitem__(0, clock[0] + 0.75))
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    one = host.replay_time(lambda: calls.append(1))
    assert one == Spread(*[pytest.approx(1.0 / host.CALLS)] * 3)  # a replay and the wait for its end
    assert (len(calls), len(replays)) == (host.CALLS, 1 + REPETITIONS)


def test_eager_calls_are_timed_without_waiting(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("torch.cuda.synchronize", lambda: clock.__setitem__(0, clock[0] + 100.0))
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    one = host.eager_time(lambda: clock.__setitem__(0, clock[0] + 1.0))
    assert one == Spread(1.0, 1.0, 1.0)


def test_the_warm_call_finds_the_caches_of_the_cold_one_and_nobody_else_s():
    folders = []

    def call(name, folder):
        folders.append((name, folder, sorted(file.name for file in folder.iterdir())))
        (folder / "kernel").write_text(name)
        if name == "broken":
            raise RuntimeError("it said no")
        return {"import_s": 1.0, "call_s": float(len(folders))}

    times = host.first_calls(["normlab", "broken", "torch"], call)
    assert times["normlab"] == {
        "status": "ok",
        "cold": {"import_s": 1.0, "call_s": 1.0},
        "warm": {"import_s": 1.0, "call_s": 2.0},
    }
    assert times["broken"] == {"status": "unable", "reason": "it said no"}
    (_, cold, before), (_, warm, after), _, (_, other, fresh), _ = folders
    assert (cold, before, after) == (warm, [], ["kernel"])
    assert other != cold
    assert fresh == []
    assert not cold.exists()


@pytest.mark.parametrize("name", ["normlab", "torch"])
def test_a_first_call_is_timed(name):
    times = first_call.main(name, "cpu", (1, 32))
    assert set(times) == {"import_s", "call_s"}
    assert times["call_s"] > 0


def test_a_first_call_gets_empty_caches_and_its_answer_is_the_last_line(monkeypatch, tmp_path):
    asked = {}

    class Done:
        returncode, stderr = 0, ""
        stdout = "chatter\n" + json.dumps({"import_s": 0.1, "call_s": 0.2}) + "\n"

    def run(command, env, **rest):
        asked.update(command=command, env=env)
        return Done

    monkeypatch.setattr("subprocess.run", run)
    assert host.first_call("torch", tmp_path) == {"import_s": 0.1, "call_s": 0.2}
    assert asked["command"] == [sys.executable, "-m", "normlab.bench.first_call", "torch"]
    for variable in host.CACHES:
        assert asked["env"][variable].startswith(str(tmp_path))
    assert len({asked["env"][variable] for variable in host.CACHES}) == len(host.CACHES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_process_that_fails_is_quoted(tmp_path):
    with pytest.raises(RuntimeError, match="its process ended with 1, and said: "):
        host.first_call("torch", tmp_path)
