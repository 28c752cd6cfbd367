"""The whole suite on a machine with GPUs, as a record: python -m hardware.suite OUT.json [PYTEST'S ARGUMENTS]

The record counts what passed and failed, and says why what was skipped was: where no reason is "needs two GPUs", the
tests for two ran. What compares times of the processor, and what needs most of the GPU's memory, goes first and alone:
dozens of processes beside it would be measured, too, and leave no room.
"""

import json
import sys
from collections import Counter

import pytest

from hardware import machine

HOST_TIME = "tests/engine/test_on_gpu.py::test_the_forward_s_host_time_is_at_most_one_and_a_half_of_torch_s"
ALONE = "tests/sim/test_cost.py", "tests/kernels/test_large.py", HOST_TIME


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


def main() -> int:
    """Run, and write the record; pytest's exit status."""
    path, *arguments = sys.argv[1:]
    outcomes, facts = Outcomes(), machine.provenance()
    first = pytest.main(["-q", "-rf", "-n", "0", *ALONE], plugins=[outcomes])
    others = [f"--deselect={path}" for path in ALONE]
    status = max(first, pytest.main(["-q", "-rf", *others, *arguments], plugins=[outcomes]))
    with open(path, "w") as file:
        json.dump({"what": "suite", **facts, **vars(outcomes)}, file, indent=1)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
