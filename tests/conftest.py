"""For all tests: hypothesis's profile, what is made once for all of them, and how close results come to bounds."""

import functools
import gc
import json
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import hypothesis
import pytest
import typer.testing
from browsing import browser as browser

from normlab.course import process
from normlab.engine.compile import offline

# Readline, which pytest imports, sets these in C. Workers would begin with them, and the command obey them.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Two workers on two cores: PyTorch's threads would wait for each other, many times longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A simulated kernel's time varies more than hypothesis's deadline allows, and a busy machine is slow to draw; the suite
# has a time limit of its own.
hypothesis.settings.register_profile(
    "normlab",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("normlab")


def pytest_configure(config):
    """Give all worker processes one folder for their err / bound records, and the garbage collector less to do."""
    gc.set_threshold(50_000, 20, 100)  # a compilation makes millions of objects, few of them garbage in cycles
    if not hasattr(config, "workerinput"):
        os.environ["NORMLAB_TIGHTNESS"] = tempfile.mkdtemp(prefix="tightness-")


def pass_over_what_there_is():
    """Let the garbage collector never look again at what there is now and is no garbage."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    """Of 7000 tests and all that they import: a full collection took 1.4 s."""
    pass_over_what_there_is()


def pytest_sessionfinish():
    """Pytest collects garbage five times when it ends, in 3 GB of kernels and graphs that end with the process."""
    gc.freeze()


@pytest.fixture(scope="module")
def quick_collections():
    """For modules whose tests collect garbage again and again: what earlier tests imported takes half a second."""
    pass_over_what_there_is()


def pytest_sessionstart():
    """Let solutions find the stages compiled: the fork server takes 3 s, and each of hundreds of processes 0.6 s less.

    It stands here and not in tests/course, because the first test that checks a solution may be another one. A process
    that draws finds Matplotlib imported, too.
    """
    process.PRELOADED.append("matplotlib.pyplot")
    process.prepare_for_a_class()


@pytest.fixture(autouse=True, scope="session")
def what_is_compiled_is_kept():
    """A kernel's PTX and its cubin are made of the same intermediate code, and several tests ask for the same PTX."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_intermediate_codes", "_link"):
            patch.setattr(offline, name, functools.cache(getattr(offline, name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def the_command_line_is_built_once():
    """Typer's runner builds it from all signatures again at every call: 11 of 15 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command), raising=False)
        yield


def pytest_terminal_summary(terminalreporter, config):
    """Print the tightest, median and loosest err / bound of every result; above 1 its test has failed."""
    if hasattr(config, "workerinput"):
        return
    ratios = defaultdict(list)
    for file in Path(os.environ["NORMLAB_TIGHTNESS"]).glob("*.jsonl"):
        for line in file.read_text().splitlines():
            what, ratio = json.loads(line)
            ratios[what].append(ratio)
    shutil.rmtree(os.environ["NORMLAB_TIGHTNESS"], ignore_errors=True)
    if ratios:
        terminalreporter.section("error / bound: tightest, median, loosest, cases")
        for what, values in sorted(ratios.items()):
            middle = sorted(values)[len(values) // 2]
            terminalreporter.write_line(
                f"{what:48} {max(values):8.3f} {middle:8.3f} {min(values):8.3f} {len(values):6}"
            )
