"""A file in a process of its own: whatever it does, the grader goes on, and takes nothing for a result that is none.

The files here break the rules of `rules` on purpose: this is what holds where they would not.
"""

import multiprocessing
import time
from dataclasses import replace

import numpy as np
import pytest

from normlab.course import process, worker
from normlab.course.exercise import Answer, Case, Launch
from normlab.course.process import Limits, Solution, StoppedError

FILE = "/nowhere/solution.py"
KERNEL = "from normlab.engine import cuda\n@cuda.jit\ndef copy(x, y):\n    i = cuda.grid(1)\n    {}\n    y[i] = x[i]\n"
CASE = Case(
    launches=[Launch("copy", 1, 32, ("x", "y"))],
    arrays={"x": np.arange(32, dtype=np.float32), "y": np.zeros(32, np.float32)},
    want={"y": Answer(np.arange(32), 0.0)},
)

STRICT = Limits(seconds=0.5, memory=1 << 28)


def stopped(source, limits=STRICT, case=CASE):
    with pytest.raises(StoppedError) as caught, Solution(source, FILE, limits) as solution:
        solution.run(case, "sanitize")
    return caught.value


def test_a_case_comes_back_and_stays_as_it_was():
    with Solution(KERNEL.format("pass"), FILE) as solution:
        run = solution.run(CASE, "sanitize")
    assert (run.arrays["y"] == CASE.arrays["x"]).all()
    assert (CASE.arrays["y"] == 0).all()


def test_results_reach_the_kernel_poisoned():
    with Solution(KERNEL.format("return"), FILE) as solution:
        assert np.isnan(solution.run(CASE, "sanitize").arrays["y"]).all()


def test_an_array_in_place_is_an_input_that_a_kernel_may_overwrite():
    source = KERNEL.format("x[i] = x[i] + 1")
    in_place = replace(CASE, want=CASE.want | {"x": Answer(np.arange(1, 33), 0.0)}, in_place=("x",))
    assert in_place.fresh == ["y"]
    with Solution(source, FILE) as solution:
        run = solution.run(in_place, "sanitize")
    assert run.observed["findings"] == []  # reading x is no read of an array without contents
    assert (run.arrays["x"] == np.arange(1, 33)).all()
    assert (CASE.arrays["x"] == np.arange(32)).all()


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        ("import os\nos._exit(0)", "ended", "ended by itself (exit code 0) while being loaded"),
        (KERNEL.format("import os; os._exit(0)"), "ended", "ended by itself (exit code 0) while running"),
        ("import os\nos.abort()", "ended", "killed by signal 6"),
        ("import sys\nsys.exit(0)", "exit", "SystemExit: 0"),
        (KERNEL.format("raise SystemExit"), "exit", "SystemExit"),
        ("raise KeyboardInterrupt", "exception", "KeyboardInterrupt"),
        ("x = 1 +", "syntax", "SyntaxError"),
        ("x = 1", "exception", "no kernel 'copy'"),
        (KERNEL.format("x.nothing"), "exception", "AttributeError"),
        (KERNEL.format("undefined"), "exception", "undefined"),
        ("x = bytearray(1 << 40)", "memory", "MemoryError"),
        (KERNEL.format("z = [0] * (1 << 28)"), "memory", "MemoryError"),
        ("while True:\n    pass", "time", "TimeUp"),
        (KERNEL.format("while True:\n        i += 1"), "time", "TimeUp"),
    ],
)
def test_what_a_file_does_to_its_process_is_a_failure_in_words(source, kind, says):
    error = stopped(source)
    assert error.kind == kind
    assert says in error.text


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(60)",
        "import signal\nsignal.signal(signal.SIGVTALRM, signal.SIG_IGN)\nwhile True:\n    pass",
    ],
)
def test_the_grader_waits_for_so_long_and_no_longer(source):
    error = stopped(source, replace(STRICT, patience=1.5))
    assert (error.kind, error.text) == ("time", "nothing came back within 1.5 s: is a loop endless?")


@pytest.mark.parametrize("threads", [1, 32])  # for the scheduler, and for the vectorised engine
def test_an_endless_loop_is_named_by_its_line(threads):
    case = replace(CASE, launches=[Launch("copy", 1, threads, ("x", "y"))])
    assert stopped(KERNEL.format("while True:\n        i += 1"), case=case).line in (5, 6)
    assert stopped(KERNEL.format("x.nothing")).line == 5


def test_launches_that_are_short_enough_each_may_be_too_long_together():
    with Solution(
        KERNEL.format("for _ in range(100000):\n        pass"), FILE, Limits(seconds=10.0, altogether=1.5)
    ) as solution:
        for _ in range(2):
            solution.run(CASE, "sanitize")
        with pytest.raises(StoppedError, match="TimeUp"):
            [solution.run(CASE, "sanitize") for _ in range(100)]


def test_drawing_takes_none_of_the_solution_s_time(monkeypatch):
    limits = Limits(seconds=1.0, altogether=1.5)

    def slowly(traces, kind, form):  # as matplotlib's first import in a fresh environment
        began = time.process_time()
        while time.process_time() - began < limits.altogether:
            pass
        return kind.encode()

    monkeypatch.setattr(worker, "_picture", slowly)
    monkeypatch.setattr(process, "_context", lambda: multiprocessing.get_context("fork"))
    with Solution(KERNEL.format("for _ in range(30000):\n        pass"), FILE, limits) as solution:
        assert solution.run(CASE, "trace", picture=("tree", "png")).picture == b"tree"
        assert solution.run(CASE, "sanitize").observed["findings"] == []


@pytest.mark.parametrize("nonce", ["0000000000000000", "", None])
def test_an_answer_without_the_nonce_is_none(nonce):
    """The file finds the pipe to the grader, sends what right results look like, and leaves with success."""
    source = (
        "import gc, os\nimport numpy as np\nfrom multiprocessing.connection import Connection\ngc.unfreeze()\n"
        "from normlab.course import wire\n"
        "(pipe,) = [one for one in gc.get_objects() if isinstance(one, Connection)]\n"
        f"header = {{'nonce': {nonce!r}}}\n"
        "x = np.arange(32, dtype=np.float32).tobytes()\n"
        "pipe.send_bytes(wire.pack(header, []))\npipe.send_bytes(wire.pack(header, [x, x]))\n"
        "pipe.recv_bytes()\nos._exit(0)\n"
    )
    error = stopped(source)
    assert (error.kind, error.text) == ("ended", "the solution's process sent something that is no result")


@pytest.mark.parametrize("message", [b"", b"[]", b"\2\0\0\0\0\0\0\0[]", b"\xff" * 99])
def test_bytes_that_are_no_message_are_no_answer(message):
    source = (
        "import gc\nfrom multiprocessing.connection import Connection\ngc.unfreeze()\n"
        "(pipe,) = [one for one in gc.get_objects() if isinstance(one, Connection)]\n"
        f"pipe.send_bytes({message!r})\n"
    )
    assert stopped(source).text == "the solution's process sent something that is no result"


def test_a_kernel_may_print_more_than_the_memory_holds():
    with Solution(KERNEL.format("print('a' * 10**7)"), FILE, Limits(memory=1 << 28)) as solution:
        solution.run(CASE, "sanitize")
        assert solution.printed == 2000 * "a"


def test_what_a_file_prints_is_kept_apart(capfd):
    with Solution(KERNEL.format("print('passed', i)"), FILE) as solution:
        solution.run(CASE, "sanitize")
        assert solution.printed.startswith("passed 0\npassed 1\n")
        assert len(solution.printed) <= 2000
    assert capfd.readouterr().out == ""


def test_a_deadlock_is_a_finding():
    with Solution(
        KERNEL.format("if i < 3:\n        cuda.syncwarp()\n    else:\n        cuda.syncthreads()"), FILE
    ) as solution:
        (finding,) = solution.run(CASE, "sanitize").observed["findings"]
    assert finding["kind"] in ("deadlock", "barrier-divergence")


def test_a_finding_is_the_cause_of_the_exception_that_follows():
    with Solution(KERNEL.format("v = x[99]\n    v[0] = 1"), FILE) as solution:
        (finding,) = solution.run(CASE, "sanitize").observed["findings"]
    assert finding["kind"] == "out-of-bounds"


@pytest.mark.parametrize("watch", ["sanitize", "costs", "trace"])
def test_what_is_printed_and_what_fails_tells_no_addresses_which_runs_differ_in(watch):
    with Solution(KERNEL.format("print(x, copy, cuda.shared)"), FILE) as solution:
        solution.run(CASE, watch)
    assert solution.printed.startswith("<array object> <function copy> <")
    assert "0x" not in solution.printed
    with (
        Solution(KERNEL.format("cuda.shared.array(32, float)"), FILE) as solution,
        pytest.raises(StoppedError) as caught,
    ):
        solution.run(CASE, watch)
    assert "0x" not in caught.value.text


def test_a_line_s_text_is_the_one_that_python_counts():
    source = KERNEL.format("z = '\u2028\x0c\x85'\n    z = x[i + 99]")
    with Solution(source, FILE) as solution:
        (finding, *_) = solution.run(CASE, "sanitize").observed["findings"]
    assert (finding["first"]["line"], finding["first"]["text"].strip()) == (6, "z = x[i + 99]")
