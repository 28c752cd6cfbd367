"""A report as text, in a notebook and as JSON."""

import json

import numpy as np
from numba import cuda

from normlab.sim import sanitize
from normlab.sim.sanitizing.findings import PRINTED


@cuda.jit
def seven_lines_outside(x):
    x[9] = 1
    x[9] = 2
    x[9] = 3
    x[9] = 4
    x[9] = 5
    x[9] = 6
    x[9] = 7 if 1 < 2 else 8


@cuda.jit
def nothing_wrong(x):
    x[cuda.grid(1)] = 1


def report():
    return sanitize(seven_lines_outside)[40, 32](np.zeros(4))


def test_it_prints_the_first_findings_of_a_kind_and_says_how_many_more_there_are():
    text = str(report())
    assert len(report().findings) == 7
    assert text.count("out-of-bounds on global x[9], 1,280 times") == PRINTED
    assert text.endswith(f"\n\n{7 - PRINTED} more of kind out-of-bounds on x; all are in report.findings")


def test_its_repr_is_short():
    assert repr(report()) == "<Report of seven_lines_outside: 7 findings: out-of-bounds (7)>"
    assert repr(sanitize(nothing_wrong)[1, 4](np.zeros(4))) == "<Report of nothing_wrong: nothing found>"


def test_a_notebook_shows_the_same_escaped():
    (finding,) = sanitize(seven_lines_outside)[1, 1](np.zeros(4)).findings[-1:]
    page = type(report())("<kernel>", (finding,))._repr_html_()
    assert "&lt;kernel&gt;" in page
    assert "x[9] = 7 if 1 &lt; 2 else 8" in page
    assert "<kernel>" not in page
    assert finding.kind in page
    assert "out-of-bounds" in page


def test_it_is_a_dictionary_for_json():
    given = json.loads(json.dumps(report().as_dict()))
    assert (given["kernel"], given["ok"], len(given["findings"])) == ("seven_lines_outside", False, 7)
    finding = given["findings"][0]
    assert (finding["kind"], finding["array"], finding["index"]) == ("out-of-bounds", "x", [9])
    assert (finding["count"], finding["second"], finding["benign"]) == (1280, None, False)
    assert finding["first"]["text"] == "x[9] = 1"
    assert finding["first"]["file"] == __file__
    assert finding["lines"] == [finding["first"]["line"]]
    assert "guard the access" in finding["advice"]
