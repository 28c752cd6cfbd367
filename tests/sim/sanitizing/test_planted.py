"""Every planted bug is found, with its kind and at its lines, whatever the schedule; in the mended twins nothing is."""

import pytest
from sim.planted import PLANTED

from normlab.sim import sanitize
from normlab.sim.sanitizing import KINDS

every_bug = pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
every_schedule = pytest.mark.parametrize("schedule", ["forward", "reverse", 7])


def report_of(bug, kernel, schedule):
    arguments = bug.arguments()
    uninitialized = [arguments[position] for position in bug.uninitialized]
    return sanitize(kernel, uninitialized, schedule, bug.cluster)[bug.configuration](*arguments)


@every_schedule
@every_bug
def test_a_planted_bug_is_found_with_its_kind_at_exactly_the_marked_lines(bug, schedule):
    report = report_of(bug, bug.kernel, schedule)
    assert report.ok == bug.benign
    assert {finding.kind for finding in report.findings} == {bug.kind}, str(report)
    assert {line for finding in report.findings for line in finding.lines} == set(bug.lines), str(report)
    assert all(finding.benign == bug.benign for finding in report.findings)


@every_schedule
@every_bug
def test_nothing_is_found_in_the_mended_twin(bug, schedule):
    report = report_of(bug, bug.fixed, schedule)
    assert not report.findings, str(report)


@every_bug
def test_the_schedule_does_not_change_which_findings_there_are(bug):
    found = [
        {
            (finding.kind, finding.array, finding.space, finding.lines)
            for finding in report_of(bug, bug.kernel, schedule).findings
        }
        for schedule in ("forward", "reverse", 7, 8)
    ]
    assert all(one == found[0] for one in found)


@every_bug
def test_a_finding_tells_who_did_what_where_and_what_to_do(bug):
    for finding in report_of(bug, bug.kernel, "forward").findings:
        assert finding.kind in KINDS
        assert finding.count >= 1
        assert finding.advice
        for act in (finding.first, finding.second):
            if act is not None and act.line is not None:
                assert bug.marks[act.line]
                assert "# BUG" in act.text
                assert act.file.endswith(".py")
                assert f"lane {act.lane}" in str(finding)
        if finding.kind in ("race", "uninitialized-read", "out-of-bounds", "negative-index"):
            assert finding.array in str(finding)
            assert finding.space in ("global", "shared", "local")
            assert finding.index
