"""What compute-sanitizer says, read as it says it."""

import sys

import pytest
from sim.planted import PLANTED

from hardware import machine, sanitizers
from hardware.sanitizers import accused, table, verdict_of

TREE = next(bug for bug in PLANTED if bug.name == "tree_sum_without_barrier")
(LINE,) = TREE.lines
MANGLED = "_ZN3sim7planted16missing_barriers24tree_sum_without_barrierB2v1E5ArrayIfLi1E1C7mutable7alignedE"
RACE = f"""========= COMPUTE-SANITIZER
normlab launches tree_sum_without_barrier
========= Error: Race reported between Write access at {MANGLED}+0x1d0 in missing_barriers.py:{LINE}
=========     and Read access at {MANGLED}+0x1a0 in /somewhere/missing_barriers.py:{LINE}:tree [448 hazards]
=========
normlab finished tree_sum_without_barrier
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
OUTSIDE = """========= COMPUTE-SANITIZER
normlab launches missing_guard
========= Invalid __global__ write of size 4 bytes
=========     at missing_guard(Array<float, (int)1, C, mutable, aligned>)+0x290 in out_of_bounds.py:15
=========     by thread (36,0,0) in block (1,0,0)
=========     Access at 0x7f6b1c000390 is out of bounds
=========
Traceback (most recent call last):
  File "/work/out_of_bounds.py", line 99
========= ERROR SUMMARY: 28 errors
"""
CLEAN = """========= COMPUTE-SANITIZER
normlab launches missing_guard
normlab finished missing_guard
========= ERROR SUMMARY: 0 errors
"""
BARRIER = """========= COMPUTE-SANITIZER
normlab launches barrier_in_the_branch
========= Barrier error detected. Divergent thread(s) in block
=========     at barrier_in_the_branch+0x2b0 in barriers.py:22
=========     by thread (0,0,0) in block (0,0,0)
"""


def test_a_race_is_found_at_its_line():
    found = verdict_of(1, RACE, TREE)
    assert found["verdict"] == "found"
    assert found["lines"] == [LINE]
    assert found["marked"]
    assert found["finished"]
    assert found["reports"][0].startswith("Error: Race reported between Write access")


def test_an_access_outside_is_found_and_a_traceback_s_line_is_not_taken_for_it():
    found = verdict_of(1, OUTSIDE, next(bug for bug in PLANTED if bug.name == "missing_guard"))
    assert (found["verdict"], found["errors"], found["lines"]) == ("found", 28, [15])
    assert not found["finished"]


def test_a_report_counts_even_if_the_kernel_then_hangs():
    assert verdict_of(None, BARRIER)["verdict"] == "found"
    assert verdict_of(None, BARRIER)["status"] == "killed"


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, CLEAN, "silent"),
        (None, "========= COMPUTE-SANITIZER\nnormlab launches x\n", "hangs"),
        (0, "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "no verdict"),
        (1, "ImportError: no numba\n", "no verdict"),
        (1, "========= Error: Device not supported. Please refer to the documentation\n", "refused"),
    ],
)
def test_silence_has_its_reasons(status, said, verdict):
    assert verdict_of(status, said)["verdict"] == verdict


def test_the_twin_that_was_running_is_accused():
    said = CLEAN + RACE.replace("tree_sum_without_barrier", "tree_sum_without_barrier_fixed")
    assert accused(said) == ["tree_sum_without_barrier_fixed"]


def test_what_was_kept_of_a_run_is_read_again():
    raw = f"compute-sanitizer --help\n==== racecheck, {TREE.name}, status 1\n{RACE}"
    raw += f"\n==== memcheck, {TREE.name}, status None\n\n==== racecheck, all twins, status 0\n{CLEAN}"
    bugs, twins = sanitizers.read(raw)
    assert bugs[TREE.name]["racecheck"] == verdict_of(1, RACE, TREE)
    assert bugs[TREE.name]["memcheck"]["verdict"] == "hangs"
    assert "racecheck" not in bugs["missing_guard"]
    assert (twins["racecheck"]["launches finished"], twins["racecheck"]["accused"]) == (1, [])


def test_the_table_has_a_row_a_bug_and_stars_the_right_line():
    silent = {"verdict": "silent"}
    row = {"kind": "race", "racecheck": verdict_of(1, RACE, TREE), "memcheck": silent, "initcheck": silent,
           "synccheck": silent, "normlab": {"verdict": "found", "right": True}}  # fmt: skip
    text = table({TREE.name: row}).splitlines()
    assert text[1].split() == [TREE.name, "race", "found*", "-", "-", "-", "found*"]
    assert text[2].split()[-5:] == ["1", "0", "0", "0", "1"]


def test_an_option_that_the_tool_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(sanitizers, "help_text", lambda: "--show-backtrace arg\n--racecheck-report arg")
    command = sanitizers.command_of("racecheck", ["a"], fixed=True)
    assert command[:7] == ["compute-sanitizer", "--tool", "racecheck", "--racecheck-report", "all",
                           "--show-backtrace", "no"]  # fmt: skip
    assert command[-3:] == ["--launch", "fixed", "a"]
    assert "--print-limit" not in command


def test_a_process_that_hangs_is_killed_and_what_it_said_is_kept():
    code = "import time; print('before', flush=True); time.sleep(60)"
    assert machine.run([sys.executable, "-c", code], 1.5) == (None, "before\n")
    assert machine.run([sys.executable, "-c", "print(1); raise SystemExit(3)"], 20) == (3, "1\n")
