import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from normlab.run.launcher import Launcher
from normlab.run.program import execute
from normlab.run.stand_in import stand_in

collect_ignore = ["programs"]  # they are run, not collected
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def cuda():
    """`numba.cuda` as a program under `normlab run` finds it."""
    import numba.cuda

    with stand_in(Launcher()):
        yield numba.cuda


def keep_ours(patch):
    """Give this process its own arguments, path and `__main__` back in the end, which `execute` makes the script's."""
    patch.setattr(sys, "argv", sys.argv)
    patch.setattr(sys, "path", sys.path[:])
    patch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def run(capsys, quick_collections):
    """Run one of the programs in this process: `.code`, `.out`, `.err`, and `.results`, the numbers it printed."""

    def start(name, *arguments, launcher=None):
        gc.collect()  # the last program's arrays
        with stand_in(launcher or Launcher()), pytest.MonkeyPatch.context() as patch:
            keep_ours(patch)
            code = execute(str(PROGRAMS / f"{name}.py"), list(map(str, arguments)))
        out, err = capsys.readouterr()
        lines = [line.removeprefix("result:").split() for line in out.splitlines() if line.startswith("result:")]
        words = [word for line in lines for word in line]
        numbers = [float({"True": 1, "False": 0}.get(word, word)) for word in words]
        return SimpleNamespace(code=code, out=out, err=err, results=numbers)

    return start
