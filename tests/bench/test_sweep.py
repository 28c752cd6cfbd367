"""Drawn shapes, how their speeds are distributed, and the worst of them."""

import json

import pytest
from bench.conftest import MACHINE, norm_row
from typer.testing import CliRunner

from normlab.bench import commands, tables
from normlab.bench.contenders import load_peers, ours
from normlab.bench.norm import compete
from normlab.bench.records import load
from normlab.bench.sweep import ELEMENTS, LONGEST, distribution, draw, sweep_grids, worst
from normlab.cli import app


def test_a_seed_draws_the_same_shapes_of_which_half_are_no_multiple_of_8():
    drawn = draw(7, 400)
    assert drawn == draw(7, 400) != draw(8, 400)
    assert all(1 <= one.n2 <= LONGEST and 1 <= one.n1 <= max(1, ELEMENTS // one.n2) for one in drawn)
    assert sum(one.n2 % 8 != 0 for one in drawn) == 200
    assert {one.norm for one in drawn} == {"layer", "rms"}
    assert len({(one.direction, one.dtype) for one in drawn}) == 6
    short, long = (sum(low <= one.n2 < high for one in drawn) for low, high in ((8, 512), (512, 2**15)))
    assert 0.8 < short / long < 1.25, "as many from 8 to 512 as from 512 to 32,768"


ROWS = [
    norm_row("layer", "forward", "bfloat16", 32768, 4096, normlab=100.0, torch=200.0, compile=125.0),
    norm_row("layer", "forward", "bfloat16", 65536, 333, normlab=200.0, torch=190.0),
    norm_row("rms", "backward", "float32", 32768, 4096, normlab=150.0, normlab_me=200.0, torch=300.0),
    norm_row("rms", "backward", "float32", 8, 4096, normlab=300.0, normlab_me=300.0, torch=300.0),
    norm_row("rms", "forward", "float32", 8, 64, normlab="wrong", torch=300.0),
]


def test_the_distribution_has_the_least_the_median_and_how_many_reach_the_bar():
    assert distribution(ROWS) == [
        ["forward / copy, 2^24 elements or more", "2", "0.50", "0.75", "0.93", "50 %"],
        ["backward / copy, 2^24 elements or more", "1", "1.00", "1.00", "0.88", "100 %"],
        ["normlab / best peer", "5", "0.00", "1.00", "0.97", "60 %"],
        ["backward, output saved / input saved", "2", "0.75", "0.88", "0.97", "50 %"],
    ]
    assert distribution([])[0][1:] == ["0", "-", "-", "0.93", "-"]


def test_the_worst_come_first_and_wrong_results_before_all():
    found = worst(ROWS * 3).rows
    assert len(found) == 10
    assert [line[-1] for line in found[:7]] == ["0.00"] * 3 + ["0.95"] * 3 + ["1.00"]
    assert {line[4] for line in found[:3]} == {"0.00"}, "a wrong result has no speed"
    assert found[3] == ["LayerNorm forward", "bfloat16", "65536", "333", "0.50", "torch", "0.95"]


def test_a_sweep_s_record_is_shown_and_read_again(stopwatch, monkeypatch, tmp_path, capsys):
    wanted = [one for one in draw(3, 40) if one.n1 * one.n2 < 2**12][:4]
    assert len(wanted) > 2
    found = load_peers(["torch"])
    monkeypatch.setattr(commands, "load_peers", lambda names: found)
    monkeypatch.setattr(commands, "_timer", lambda: stopwatch(1e-6))
    monkeypatch.setattr(commands, "provenance", lambda: MACHINE)
    monkeypatch.setattr(commands, "DEVICE", "cpu")
    record = commands.sweep(wanted, 3, ["torch"], lambda: None)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(record))
    assert load([str(path)]) == [record]
    assert record["rows"] == compete(wanted, [*ours("both"), *found[0]], stopwatch(1e-6), "cpu")
    tables.show(record)
    shown = capsys.readouterr().out
    assert f"{len(wanted)} shapes drawn with seed 3" in shown
    assert "The worst" in shown
    assert sweep_grids(record)[0].rows[2][:4] == ["normlab / best peer", str(len(wanted)), "1.00", "1.00"]


@pytest.mark.parametrize("given", ["0", "many"])
def test_a_count_that_is_none_is_refused(given):
    done = CliRunner().invoke(app, ["bench", "sweep", "--count", given])
    assert done.exit_code == 2
    assert "--count" in done.output
