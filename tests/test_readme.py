"""The README's programs run, and say what it says they say."""

import re
import runpy
from itertools import product
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from normlab import oracle
from normlab.bench import readme, record, records
from normlab.kernels import LADDERS

mpl.use("Agg")
README = (Path(__file__).parent.parent / "README.md").read_text()
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


def test_the_readme_shows_the_records():
    assert readme.counters() in README
    assert readme.paths() in README
    assert readme.modules() in README
    words = " ".join(README.split())
    assert readme.sanitizers() in words
    assert f"; {len(record('counters_h200')['launches'])} launches, `normlab/bench/records/counters_h200.json`" in words


def test_the_readme_s_benchmarks_are_what_the_report_makes_of_the_records():
    assert readme.between(README) == readme.benchmarks(records.load([]))


def test_the_readme_lists_every_step_of_the_ladders():
    for ladder, steps in LADDERS.items():
        rows = [f"| `{ladder}/{step.name}` | {step.summary} |" for step in steps]
        assert "\n".join(rows) in README


def test_hardware_and_trace_agree_in_the_record():
    launches = record("counters_h200")["launches"]
    assert len(launches) >= 100
    assert [launch["name"] for launch in launches if not launch["agrees"]] == []


def test_modules_hold_their_bars_in_the_record():
    """Host time over torch.nn's at most 1.6, "exact" 1.8; and "exact" at most 5 % slower than True on the GPU."""
    rows = {(row["norm"], row["dtype"], row["module"]): row for row in record("modules_h100")["rows"]}
    kinds = {key[:2] for key in rows}
    assert len(kinds) == 4
    for kind, where in product(kinds, ("device", "host", "host, alone")):
        us = {key[2]: row[where]["median_us"] for key, row in rows.items() if key[:2] == kind and where in row}
        for name, bar in {"False": 1.6, "True": 1.6, "exact": 1.8}.items():
            assert us[name] <= (1.05 * us["True"] if where == "device" else bar * us["torch.nn"])


def test_sanitize_found_every_planted_bug_in_the_record():
    bugs = record("sanitizers_h200")["bugs"]
    assert len(bugs) >= 25
    assert [name for name, bug in bugs.items() if not bug["normlab"]["right"]] == []


def test_an_unknown_record_is_named():
    with pytest.raises(FileNotFoundError, match=r"no record 'x'; there are apex_recompute_h200, .*sanitizers_h200"):
        record("x")
