"""`trace` against counts by hand, everywhere, and against ncu's, wherever there is one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hardware import counters
from hardware.counters import LAUNCHES, METRICS, UNVERIFIED, agree, parse, table, without_unknown
from hardware.launches import CONFLICTS, REQUESTS, WAVEFRONTS
from hardware.shared_kernels import patterns
from normlab.engine import gpu_available

ONE_BLOCK = {launch.name: launch for launch in patterns(blocks=1)}  # the hardware's counts need more of them
BY_HAND = [
    ONE_BLOCK.get(launch.name, launch) for launch in LAUNCHES if launch.expected(counters.arguments_of(launch, 0))
]
WIDE = f'''==PROF== Connected to process 12
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"{REQUESTS["ld"]}","{WAVEFRONTS["ld"]}"
"","","","","","","","","","","","",""
"0","12","python3","127.0.0.1","_ZN8hardware7kernels4copyB2v1E","1","7","(256, 1, 1)","(16, 1, 1)","0","9.0",\
"1,024","0"
"1","12","python3","127.0.0.1","hardware::kernels::square(Array<float>)","1","7","(256, 1, 1)","(16, 1, 1)","0","9.0",\
"256","n/a"
==PROF== Disconnected
'''
LONG = f'''"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","copy","Command line profiler metrics","{REQUESTS["ld"]}","request","1,024"
"0","12","copy","Command line profiler metrics","{WAVEFRONTS["ld"]}","","0"
'''


@pytest.mark.parametrize("launch", BY_HAND, ids=lambda launch: launch.name)
def test_trace_counts_what_a_person_counts(launch):
    by_hand = launch.expected(counters.arguments_of(launch, 0))
    simulated = counters.traced(launch, 0)
    assert {metric: simulated[metric] for metric in by_hand} == by_hand


def test_launches_are_many_and_have_names_of_their_own():
    assert len({launch.name for launch in LAUNCHES}) == len(LAUNCHES) >= 16
    assert len(BY_HAND) >= 16


def test_arguments_come_back_for_the_same_seed_and_change_with_it():
    gather = next(launch for launch in LAUNCHES if launch.name == "gather")
    (_, index, _), (_, same, _), (_, other, _) = (counters.arguments_of(gather, seed) for seed in (1, 1, 2))
    assert (index == same).all()
    assert (index != other).any()


def test_a_row_a_launch_is_read():
    (first, copied), (second, squared) = parse(WIDE)
    assert "copy" in first
    assert copied == {REQUESTS["ld"]: 1024, WAVEFRONTS["ld"]: 0}
    assert "square" in second
    assert squared[REQUESTS["ld"]] == 256
    assert np.isnan(squared[WAVEFRONTS["ld"]])


def test_a_row_a_metric_is_read():
    assert parse(LONG) == [("copy", {REQUESTS["ld"]: 1024, WAVEFRONTS["ld"]: 0})]


def test_what_is_no_csv_has_no_launches():
    assert parse("==ERROR== Failed to find metric regex:nonsense\n") == []


def test_metrics_that_ncu_names_as_unknown_are_not_asked_for_again_and_the_old_ones_always():
    asked = METRICS + UNVERIFIED
    once = without_unknown(asked, f"==ERROR== Failed to find metric {UNVERIFIED[0]}")
    assert once == METRICS + UNVERIFIED[1:]
    assert without_unknown(once, "==ERROR== Something else") == METRICS
    assert without_unknown(METRICS, "==ERROR== Something else") == METRICS


@pytest.mark.parametrize(("unverified", "status"), [(True, 0), (False, 1)])
def test_a_launch_that_differs_breaks_the_rule_unless_no_record_has_had_it(unverified, status, tmp_path):
    metrics = {metric: {"ncu": 8.0, "trace": 9.0} for metric in METRICS}
    one = {"name": "copy", "metrics": metrics, "agrees": False, "compiler": "", "unverified": unverified}
    assert counters.write(tmp_path / "counters.json", {"date": "today"}, [one]) == status
    assert "DIFFERS" in (tmp_path / "counters.txt").read_text()


def test_global_counts_agree_exactly_and_wavefronts_within_three_percent():
    def agrees(metric, counted, simulated):
        return agree(metric, {metric: counted}, {metric: simulated})

    assert agrees(REQUESTS["ld"], 100, 100)
    assert not agrees(REQUESTS["ld"], 100, 101)
    assert agrees(WAVEFRONTS["ld"], 103, 100)
    assert not agrees(WAVEFRONTS["ld"], 104, 100)
    assert not agrees(WAVEFRONTS["ld"], float("nan"), 0)
    assert not agree(WAVEFRONTS["ld"], {}, {WAVEFRONTS["ld"]: 0})


@pytest.mark.parametrize(("conflicts", "agrees"), [(0, True), (3, True), (4, False), (float("nan"), False)])
def test_a_conflict_too_many_is_a_wavefront_too_many(conflicts, agrees):
    hardware = {WAVEFRONTS["ld"]: 100, CONFLICTS["ld"]: conflicts}
    assert agree(CONFLICTS["ld"], hardware, {WAVEFRONTS["ld"]: 100, CONFLICTS["ld"]: 0}) == agrees


def test_the_table_shows_both_counts_where_they_differ():
    metrics = {metric: {"ncu": 8.0, "trace": 8.0} for metric in METRICS}
    metrics[REQUESTS["st"]] = {"ncu": 8.0, "trace": 9.0}
    text = table([{"name": "copy", "metrics": metrics, "agrees": False, "compiler": ""}])
    assert "8 / 9" in text
    assert text.endswith("DIFFERS")


@pytest.mark.skipif(not (gpu_available() and shutil.which("ncu")), reason="needs a GPU and Nsight Compute's ncu")
def test_trace_counts_what_the_hardware_counts(tmp_path):
    out = tmp_path / "counters.json"
    script = Path(counters.__file__)
    done = subprocess.run([sys.executable, str(script), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(out.read_text())["launches"]) == len(LAUNCHES)
