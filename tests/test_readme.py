"""The README's programs run, and its tables are those that are made of the records."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest

from normlab import oracle

mpl.use("Agg")
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TABLES = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci/site/readme.py")))
NAMES = ["use it", "drop-in", "a kernel of your own", "trace and sanitize", "family"]
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_the_readme_s_programs_run(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(program)
    names = runpy.run_path(str(file))
    if "recomputed" in names:
        for one, other in zip(
            names["recomputed"], (names["grad_input"], names["grad_weight"], names["grad_bias"]), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-4)
        assert names["kept"].values.shape == (8, 8)
        truth = oracle.layer_norm_backward(*(names[name] for name in ("grad_output", "x")), 768, names["weight"])
        np.testing.assert_allclose(names["exact"][0], truth.grad_input, atol=1e-5)
    elif "family" in names:
        assert names["mean"].shape == (4, 4)
        assert (tmp_path / "index_sets.svg").stat().st_size > 10_000
    elif "norm" in names:
        assert [type(layer).__module__ for layer in names["model"]][1] == "normlab.nn.modules"
        assert names["norm"].weight.grad.isfinite().all()
    elif "report" in names:
        (race,) = names["report"].findings
        assert (race.kind, race.first.line, race.second.line) == ("race", 11, 12)
        assert "no barrier between the write at line 11 and the read at line 12" in race.advice
        assert names["counted"].request(12, "ld").wavefronts == 32
        assert names["counted"].metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 1024
        assert (tmp_path / "transpose.html").stat().st_size > 10_000
    else:
        np.testing.assert_allclose(names["variance"], names["x"].var(axis=1, dtype=np.float64), rtol=1e-3)


def test_every_table_of_the_readme_is_what_the_records_and_the_ladders_make():
    assert TABLES.stale(README) == []
    assert TABLES.unmade(README) == []


def test_a_wrong_table_is_named_and_so_is_one_that_nothing_makes():
    wrong = README.replace("| copy float16 | 128 | 256 |", "| copy float16 | 128 | 255 |")
    assert TABLES.stale(wrong) == ["counters"]
    assert TABLES.made(wrong) == README
    assert TABLES.unmade(f"{README}\n| a | 1 |\n") == ["| a | 1 |"]
    with pytest.raises(ValueError, match="one line <!-- counters: begin --> and below it one line"):
        TABLES.stale(README.replace("<!-- counters: end -->", ""))
