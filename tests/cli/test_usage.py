"""What `normlab` says to arguments that it cannot use: what was given, what is needed, and the nearest name."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from normlab.cli import app

TOLD = {
    ("comprae",): "normlab: there is no command comprae; did you mean compare?",
    ("xyzzy",): "normlab: there is no command xyzzy; there are tutorials, compare, explain, trace, run, memory, train, "
    "doctor, completion, course, bench",
    ("course", "chekc"): "normlab course: there is no command chekc; did you mean check?",
    ("compare", "--nrom", "rms"): "normlab compare: there is no option --nrom; did you mean --norm?",
    ("course", "check", "--seeed", "1"): "normlab course check: there is no option --seeed; did you mean --seed?",
    ("compare", "--norm", "rmss"): "normlab compare: --norm must be one of layer, rms; got rmss; did you mean rms?",
    ("compare", "--norm", "batch"): "normlab compare: --norm must be one of layer, rms; got batch",
    ("course", "check", "--seed", "-1"): "normlab course check: --seed must be at least 0, got -1",
    ("course", "check", "--seed", "x"): "normlab course check: --seed must be a whole number, got x",
    ("memory", "--steps", "1"): "normlab memory: --steps must be at least 2, got 1",
    ("train", "--norm-weight", "x"): "normlab train: --norm-weight must be a number, got x",
    ("tutorials", "x"): "normlab tutorials: NN must be a whole number, got x",
    ("compare", "a", "b"): "normlab compare: one argument is too many: b",
    ("explain",): "normlab explain: LADDER is missing: forward, backward, sgemm or family.",
    ("compare", "--norm"): "normlab: --norm needs a value",
    ("completion", "tcsh"): "normlab completion: SHELL must be one of bash, zsh, fish; got tcsh",
}


@pytest.mark.parametrize("arguments", TOLD, ids=" ".join)
def test_a_wrong_argument_is_answered_in_normlab_s_words_and_ends_with_2(arguments):
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    line, help_line = done.stderr.splitlines()
    assert line == TOLD[arguments]
    assert help_line == f"{line.split(':')[0]} --help says more."


def test_a_group_without_a_command_shows_its_help():
    done = CliRunner().invoke(app, ["course"])
    assert done.exit_code == 2
    assert "Commands:" in done.output
    assert "progress" in done.output


def test_an_error_of_the_program_s_own_is_not_swallowed(monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr("normlab.learn.tutorials.every", broken)
    assert isinstance(CliRunner().invoke(app, ["tutorials"]).exception, ZeroDivisionError)


def test_the_module_calls_itself_normlab():
    done = subprocess.run([sys.executable, "-m", "normlab.cli", "comprae"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("normlab: there is no command comprae")
