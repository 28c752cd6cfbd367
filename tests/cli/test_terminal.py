"""What fits into 60 and 80 columns, what is coloured, and where a bar goes."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from normlab.bench import tables as bench_tables
from normlab.cli import app
from normlab.learn import tutorials
from normlab.measure import files, tables
from normlab.studies.memory import tables as memory_tables

WIDTHS = (60, 80)
ESCAPE = "\x1b["


def lines(monkeypatch, width, *arguments):
    """What a command prints where there are so many columns."""
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code in (0, 1), done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "command",
    [
        ("compare", "--rows", 1, "--engine", "simulator"),
        ("compare", "--rows", 1, "--engine", "simulator", "--details"),
        ("explain", "backward"),
        ("trace", "forward", "--shape", "1x64"),
        ("trace", "forward/apex", "--shape", "1x64"),
        ("tutorials",),
        ("doctor",),
        (),
    ],
    ids=lambda command: " ".join(map(str, command)) or "normlab",
)
def test_no_line_is_wider_than_the_terminal(monkeypatch, width, command):
    shown = lines(monkeypatch, width, *command)
    assert shown
    assert [line for line in shown if len(line) > width] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_course_s_answers_fit(monkeypatch, tmp_path, width):
    lines(monkeypatch, width, "course", "start", tmp_path)
    file = tmp_path / "07_welford_step.py"
    file.write_text(file.read_text().replace("# Your lines.", "return mean, m2, count"))
    for command in ("check", "progress"):
        shown = lines(monkeypatch, width, "course", command, "--dir", tmp_path)
        assert [line for line in shown if len(line) > width and str(tmp_path) not in line] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_record_s_tables_are_split_and_lose_no_number(monkeypatch, width, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    for name in files.known():
        record = files.record(name)
        kind = record.get("what")
        if kind in ("memory", "train"):
            memory_tables.show(record)
            shown, grids = capsys.readouterr().out, []
        elif kind in ("norm", "family", "ladder", "sgemm", "host"):
            stream = io.StringIO()
            bench_tables.show(record, Console(file=stream))
            shown, grids = stream.getvalue(), bench_tables.grids(record)
        else:
            continue
        assert [line for line in shown.splitlines() if len(line) > width] == [], name
        numbers = {cell for grid in grids for row in grid.rows for cell in row if re.fullmatch(r"[\d.,]+", cell)}
        assert numbers <= set(shown.split()), name


def test_a_pipe_gets_whole_lines(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    wide = tables.Grid("speed", ["step", *map(str, range(40))], [["fused", *["1234.5"] * 40]])
    tables.show([wide], [], Console(file=stream))
    assert max(map(len, stream.getvalue().splitlines())) > 300
    aims = CliRunner().invoke(app, ["tutorials"]).stdout
    assert all(f"    {tutorial.aim}\n" in aims for tutorial in tutorials.every())


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize(
    ("command", "terminal", "without", "coloured"),
    [
        ("tutorials", True, False, True),
        ("tutorials", True, True, False),
        ("tutorials", False, False, False),
        ("doctor", True, False, True),
    ],
)
def test_colour_is_for_terminals_and_no_color_is_honoured(command, terminal, without, coloured):
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    environment |= {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if without else {})
    text = on_terminal(["-m", "normlab.cli", command], environment)[0] if terminal else piped(command, environment)
    assert (ESCAPE in text) == coloured


def piped(command, environment):
    arguments = [sys.executable, "-m", "normlab.cli", command]
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=60).stdout


def on_terminal(arguments, environment, pipe_out=False):
    """What a process writes to a terminal, and to a pipe if its stdout is one."""
    import pty

    here, there = pty.openpty()
    out = subprocess.PIPE if pipe_out else there
    process = subprocess.Popen([sys.executable, *arguments], stdin=there, stdout=out, stderr=there, env=environment)
    os.close(there)
    text = b""
    while True:
        try:
            read = os.read(here, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not read:
            break
        text += read
    printed = process.stdout.read().decode() if pipe_out else ""
    process.wait()
    os.close(here)
    return text.decode(), printed


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("passes", [None, 3])
def test_a_bar_is_drawn_on_stderr_and_what_is_printed_beside_it_goes_to_stdout(passes):
    code = (
        "from normlab.cli.waiting import progress\n"
        f"with progress({passes}, 'counting') as advance: print('result'); advance()"
    )
    drawn, printed = on_terminal(["-c", code], os.environ | {"TERM": "xterm"}, pipe_out=True)
    assert printed == "result\n"
    assert "counting" in drawn


def test_no_bar_is_drawn_into_a_pipe():
    code = "from normlab.cli.waiting import progress\nwith progress(3, 'counting') as advance: advance()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
