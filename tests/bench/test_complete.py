"""Records that were cut, or made by hand: refused with the file's name and what is missing, never a traceback."""

import copy
import json
from pathlib import Path

import pytest
from bench.conftest import MACHINE
from typer.testing import CliRunner

from normlab.bench import records
from normlab.bench.complete import COMMON, FORMS, first_lack
from normlab.cli import app


def report(text, tmp_path):
    """(exit code, stderr's lines) of a report on a file with this text."""
    file = tmp_path / "x.json"
    file.write_text(text)
    done = CliRunner().invoke(app, ["bench", "report", str(file)])
    return done.exit_code, done.stderr.splitlines()


def cuts(record, value=None, path=()):
    """A record without each of its names in turn, and with each of its lists and objects emptied."""
    value = record if value is None else value
    names = list(value) if isinstance(value, dict) else range(len(value))
    for name in names:
        for change in ("left out", "emptied", "another"):
            cut = copy.deepcopy(record)
            inner = cut
            for step in path:
                inner = inner[step]
            if change == "left out" and isinstance(value, dict):
                del inner[name]
            elif change == "emptied" and isinstance(value[name], (dict, list)):
                inner[name] = type(value[name])()
            elif change == "another":
                inner[name] = [] if isinstance(value[name], str) else "another"
            else:
                continue
            yield (*path, name, change), cut
        if isinstance(value[name], (dict, list)):
            yield from cuts(record, value[name], (*path, name))


@pytest.fixture(params=records.KINDS)
def record(request):
    made = request.getfixturevalue("product_records" if request.param == "sgemm" else f"{request.param}_record")
    return made[0] if request.param == "sgemm" else made


def test_every_kind_has_its_form_and_every_record_in_the_repository_is_whole():
    assert tuple(FORMS) == ("norm", "family", "ladder", "sgemm", "host")
    assert set(FORMS) == set(records.KINDS)
    assert [first_lack(one) for one in records.load([])] == [None] * len(records.load([]))


@pytest.mark.parametrize(
    ("text", "lack"),
    [
        ('{"what": "norm"}', "norm: date is missing"),
        (json.dumps({"what": "norm", **MACHINE, "method": "m"}), "norm: rows is missing"),
        (json.dumps({"what": "host", **MACHINE, "method": "m", "first_calls": {}, "rows": []}), "host: rows is empty"),
        (json.dumps({"what": "family", **MACHINE, "method": 7, "rows": [1]}), "family: method is not text"),
        (json.dumps({"what": "family", **MACHINE, "method": "m", "rows": 1}), "family: rows is not a list"),
        (json.dumps({"what": "family", **MACHINE, "method": "m", "rows": [1]}), "family: rows[0] is not an object"),
        (json.dumps({"what": "ladder", **MACHINE, "method": "m", "norm": "x"}), "norm is not one of layer, rms"),
        (json.dumps({"what": "sgemm", **MACHINE, "method": "m", "m": 0.5}), "sgemm: m is not a whole number"),
    ],
)
def test_what_is_missing_is_said_in_a_line_with_the_file_s_name(text, lack, tmp_path):
    code, (line,) = report(text, tmp_path)
    assert code == 2
    assert line.startswith(f"normlab bench report: {tmp_path / 'x.json'}: not a whole record of normlab bench ")
    assert line.endswith(lack)


def test_the_place_is_named(norm_record):
    del norm_record["rows"][1]["contenders"]["torch"]["of_copy"]
    assert first_lack(norm_record) == "rows[1].contenders.torch.of_copy is missing"
    norm_record["rows"][1]["contenders"]["torch"]["of_copy"] = True
    assert first_lack(norm_record) == "rows[1].contenders.torch.of_copy is not a number"
    norm_record["rows"][0]["contenders"]["compile"]["status"] = "fine"
    assert first_lack(norm_record) == "rows[0].contenders.compile.status is not one of ok, unable, wrong"
    norm_record["rows"][0] = {**norm_record["rows"][0], "status": "unable", "copy": None, "contenders": {}}
    assert first_lack(norm_record) == "rows[0].reason is missing"


def test_however_a_record_is_cut_it_is_shown_or_refused_in_one_line(record, tmp_path):
    """Without any name, with any list empty, with anything replaced: never another error."""
    refused = 0
    for place, cut in cuts(record):
        if place[0] == "what":
            continue
        code, lines = report(json.dumps(cut), tmp_path)
        assert (code, len(lines)) in ((0, 0), (2, 1)), (place, lines)
        refused += code == 2
    assert refused > len(COMMON)


def test_a_whole_record_comes_through(record, tmp_path):
    assert first_lack(record) is None
    records.write(record, path := Path(tmp_path / "x.json"))
    assert records.load([str(path)]) == [record]
