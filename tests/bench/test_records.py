"""Records are read again as they were written; other files, and records that were cut, are refused by name."""

import copy
import json

import pytest
from typer.testing import CliRunner

from normlab.bench import records
from normlab.cli import app
from normlab.measure import files


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


def test_however_a_record_is_cut_it_is_shown_or_refused_in_one_line(record, tmp_path):
    """Without any name, with any list empty, with anything replaced: never another error."""
    refused = 0
    for place, cut in cuts(record):
        if place[0] == "what":
            continue
        code, lines = report(json.dumps(cut), tmp_path)
        assert (code, len(lines)) in ((0, 0), (2, 1)), (place, lines)
        refused += code == 2
        if code == 2:
            assert f"{tmp_path / 'x.json'}: not a whole record of normlab bench" in lines[0]
    assert refused > 5


def test_a_record_comes_back_as_it_was_written_an_entry_a_line(norm_record, tmp_path):
    path = tmp_path / "norm.json"
    files.write(norm_record, path)
    assert records.load([str(path)]) == [norm_record] == [json.loads(path.read_text())]
    lines = path.read_text().splitlines()
    assert sum('"contenders"' in line for line in lines) == len(norm_record["rows"])


def test_what_is_no_record_is_refused_by_name(tmp_path):
    path = tmp_path / "x.json"
    for content, words in (
        (b"[1", "not JSON"),
        (b'{"what": "\xff"}', "not JSON"),
        (b"[]", "not a record of normlab bench norm"),
        (b'{"what": 1}', "not a record"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words) as error:
            records.load([str(path)])
        assert str(path) in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        records.load(["nowhere.json"])
    with pytest.raises(ValueError, match="counters_h200: not a record of normlab bench"):
        records.load(["counters_h200"])  # a name in the package, of another kind


def test_without_names_all_benchmarks_in_the_repository_are_taken_norms_first():
    kinds = [record["what"] for record in records.load([])]
    assert kinds == sorted(kinds, key=records.KINDS.index)
