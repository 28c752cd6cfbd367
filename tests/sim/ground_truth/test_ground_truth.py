"""What the sanitizer says of kernels whose races are known: all of them are found, and none where there is none."""

from itertools import groupby

import pytest

from normlab.sim import sanitize

from .gpuverify import PATTERNS
from .indigo import variants
from .scor import HANDOVERS, NOT_ASKED_FOR

GROUPS = {
    key: [*some] for key, some in groupby(sorted(variants(), key=lambda one: one.name), lambda one: one.name[:20])
}


def kinds(program):
    report = sanitize(program.kernel)[program.configuration](*program.arguments())
    return {finding.kind for finding in report.findings}


def test_there_are_as_many_as_in_the_published_artifact():
    every = [*variants()]
    assert len({one.name for one in every}) == len(every) == 590
    assert sum(one.racy for one in every) == 346
    assert len(PATTERNS) == len({one.name for one in PATTERNS}) == 67
    assert sum(one.wrong is not None for one in PATTERNS) == 37
    assert len(HANDOVERS) == len({one.name for one in HANDOVERS}) == 31


@pytest.mark.parametrize("group", GROUPS)
def test_indigo_s_races_are_found_and_no_others(group):
    for variant in GROUPS[group]:
        found = kinds(variant)
        assert ("race" in found) == variant.racy, variant.name
        assert bool(found & {"out-of-bounds", "negative-index"}) == ("bounds" in variant.bugs), variant.name
        assert found <= {"race", "out-of-bounds", "negative-index"}, variant.name


@pytest.mark.parametrize("program", HANDOVERS, ids=lambda one: one.name)
def test_scor_s_races_are_found_and_no_others(program):
    expected = {"race"} if program.racy and program.name not in NOT_ASKED_FOR else set()
    assert kinds(program) == expected


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.name)
def test_gpuverify_s_verdicts_are_ours(pattern):
    report = sanitize(pattern.kernel)[pattern.configuration](*pattern.arguments())
    assert {finding.kind for finding in report.findings if not finding.benign} == {pattern.wrong} - {None}
    assert any(finding.benign for finding in report.findings) == pattern.benign
    assert report.ok == (pattern.wrong is None)
