"""What pytest needs to run a foreign test suite of `numba.cuda` in normlab's simulator; `suite` starts pytest with it.

Of numba-cuda's own conftest it has the option and the fixture that its tests ask for. Every outcome is one line of JSON
in the file that NORMLAB_OUTCOMES names, written as soon as the test ends.
"""

import json
import os
import signal

import pytest

SECONDS = int(os.environ.get("NORMLAB_TEST_SECONDS", "300"))  # per test


def pytest_addoption(parser):
    parser.addoption("--dump-failed-filechecks", action="store_true")


def pytest_configure(config):
    """Replace the host side of numba.cuda before any test module is imported, unless Numba's simulator shall run."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "0":
        from normlab.run.launcher import Launcher
        from normlab.run.stand_in import replace_for_good

        replace_for_good(Launcher)


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """End a test that takes too long with an error."""

    def late(*_):
        raise TimeoutError(f"longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 5)  # and again: an engine that gives up may have caught the first
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_collectreport(report):
    if report.failed:
        note(report.nodeid, "error", str(report.longrepr))


def pytest_runtest_logreport(report):
    """Note a test's outcome: that of its call, or of what failed or skipped before or after."""
    if report.when == "call" or report.outcome != "passed":
        note(report.nodeid, report.outcome, str(report.longrepr or ""))


def note(test, outcome, text):
    """Write one outcome: "passed", "failed", "skipped" or "error", with the last line of what was raised."""
    raised = (
        [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")] or text.splitlines()[-1:] or [""]
    )
    name = test.partition("::")[2]  # what stands before it depends on where pytest was started
    line = {"module": os.environ["NORMLAB_MODULE"], "test": name, "outcome": outcome, "raised": raised[0][:300]}
    with open(os.environ["NORMLAB_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
