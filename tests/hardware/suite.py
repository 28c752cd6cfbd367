"""The whole suite on a machine with GPUs, as a record: python -m hardware.suite OUT.json [PYTEST'S OPTIONS]

The record counts what passed and failed, and says why what was skipped was: where no reason is "needs two GPUs", the
tests for two ran. What compares times of the processor, and what needs most of the GPU's memory, goes first and alone:
dozens of processes beside it would be measured, too, and leave no room. What takes minutes of a processor begins before
everything else, so that nobody waits for it in the end.
"""

import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from hardware import machine

HOST_TIME = "tests/engine/test_on_gpu.py::test_the_forward_s_host_time_is_at_most_one_and_a_half_of_torch_s"
LARGE = "tests/test_properties.py::test_indices_beyond_2_to_the_31_are_right"
ALONE = "tests/kernels/test_large.py", LARGE, HOST_TIME
LONG = "tests/kernels/test_split_rows.py", "tests/hardware/test_counters.py"


class Outcomes:
    """A plugin of pytest that counts."""

    def __init__(self) -> None:
        self.passed, self.failed, self.skipped = 0, [], Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called once for each of a test's three phases."""
        if report.failed:
            self.failed.append(f"{report.nodeid} ({report.when})")
        elif report.skipped:
            expected = getattr(report, "wasxfail", None)
            self.skipped[f"fails as expected: {expected}" if expected else report.longrepr[2]] += 1
        elif report.when == "call":
            self.passed += 1


def run(arguments: list[str]) -> tuple[int, Outcomes]:
    """Pytest's exit status and what it reported; called in a process of its own."""
    outcomes = Outcomes()
    return int(pytest.main(["-q", "-rf", *arguments], plugins=[outcomes])), outcomes


def main() -> int:
    """Run, and write the record; pytest's exit status."""
    path, *options = sys.argv[1:]
    facts = machine.provenance()
    at_once = [*options, "-n", "8", "--dist", "load", "--maxschedchunk", "1", *LONG]  # a test at a time for each worker
    others = [*options, *(f"--deselect={one}" for one in ALONE), *(f"--ignore={one}" for one in LONG)]
    with ProcessPoolExecutor(
        mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:  # each gives its memory back
        found = [pool.submit(run, ["-n", "0", *ALONE]).result(), *pool.map(run, [at_once, others])]
    all_of_them = {
        "passed": sum(outcomes.passed for _, outcomes in found),
        "failed": [name for _, outcomes in found for name in outcomes.failed],
        "skipped": sum((outcomes.skipped for _, outcomes in found), Counter()),
    }
    with open(path, "w") as file:
        json.dump({"what": "suite", **facts, **all_of_them}, file, indent=1)
    return max(status for status, _ in found)


if __name__ == "__main__":
    sys.exit(main())
