"""The whole suite on a machine with GPUs, as a record: python -m hardware.suite OUT.json [PYTEST'S ARGUMENTS]

The record counts what passed and failed, and says why what was skipped was: where no reason is "needs two GPUs", the
tests for two ran.
"""

import json
import sys
from collections import Counter

import pytest

from hardware import machine


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
    status = pytest.main(["-q", "-rf", *arguments], plugins=[outcomes])
    with open(path, "w") as file:
        json.dump({"what": "suite", **facts, **vars(outcomes)}, file, indent=1)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
