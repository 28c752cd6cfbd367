"""The tutorials: .py and .ipynb agree, each says what it is for; the list, and what executing one notices.

That they run from top to bottom is for .ci/run (`normlab tutorials --check`): here it would take minutes.
"""

import json
import re
import signal
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from normlab.bench import records
from normlab.cli import app
from normlab.cli import tutorials as cli
from normlab.engine import cuda, launch
from normlab.kernels import LADDERS
from normlab.learn import lesson, tutorials

HERE = Path(__file__).parents[2]
ALL = tutorials.every()
HEADER = """# %% [markdown]
# # 7. A title
#
# **Aim.** To
# learn.
#
# **Before.** Nothing.
#
# **Time.** 15 minutes.

# %%
"""


def named(tutorial):
    return tutorial.source.stem


def test_they_are_numbered_without_a_gap_and_take_15_to_40_minutes():
    assert [tutorial.number for tutorial in ALL] == list(range(1, len(ALL) + 1))
    assert all(tutorial.source.name.startswith(f"{tutorial.number:02}_") for tutorial in ALL)
    assert all(15 <= tutorial.minutes <= 40 for tutorial in ALL)


@pytest.mark.parametrize("tutorial", ALL, ids=named)
def test_the_notebook_is_its_source_executed_from_top_to_bottom(tutorial):
    pytest.importorskip("jupytext", reason="jupytext reads py:percent; normlab[test] has it")
    assert tutorials.differences(tutorial) == []


@pytest.mark.parametrize("tutorial", ALL, ids=named)
def test_a_tutorial_says_where_it_runs_asks_and_ends_with_an_exercise(tutorial):
    text = tutorial.source.read_text()
    assert "lesson.begin()" in text
    assert text.count("<details><summary><b>Question.") >= 2
    assert text.count("<details>") == text.count("</details>")
    exercise = re.sub(r"(?m)^# ?", "", text.rpartition("## Exercise")[2])
    assert "normlab course check" in " ".join(exercise.split())


def test_links_between_tutorials_lead_somewhere():
    for one, following in pairwise(ALL):
        assert f"]({following.notebook.name})" in one.source.read_text()
    linked = {name for one in ALL for name in re.findall(r"\]\((\d\d_\w+\.ipynb)\)", one.source.read_text())}
    assert linked <= {one.notebook.name for one in ALL}


def test_all_notebooks_together_are_small():
    assert sum(one.notebook.stat().st_size for one in ALL) < 5e6


def test_the_command_lists_them_with_their_aims():
    listed = CliRunner().invoke(app, ["tutorials"]).output
    for tutorial in ALL:
        assert tutorial.title in listed
        assert tutorial.aim in listed
    both = CliRunner().invoke(app, ["tutorials", "1", "--build", "--check"])
    assert (both.exit_code, both.stderr) == (2, "normlab tutorials: takes --build or --check, which writes nothing\n")
    wrong = CliRunner().invoke(app, ["tutorials", "99"])
    assert wrong.exit_code == 2
    assert "no tutorial 99: there are 1, 2" in wrong.output


def written(folder, code):
    folder.joinpath("07_title.py").write_text(HEADER + code)
    return tutorials.every(folder)[0]


def test_a_header_is_read_and_one_without_an_aim_refused(tmp_path):
    found = written(tmp_path, "x = 1\n")
    assert (found.number, found.title, found.aim, found.minutes) == (7, "A title", "To learn.", 15)
    found.source.write_text("# %% [markdown]\n# # 7. A title\n")
    with pytest.raises(tutorials.TutorialError, match=r"07_title\.py: the first cell needs a title '# N\. …', Aim"):
        tutorials.every(tmp_path)
    with pytest.raises(tutorials.TutorialError, match=r"no tutorials in .*: they come with"):
        tutorials.every(tmp_path / "elsewhere")


@pytest.fixture
def tools():
    for module in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(module, reason="executes notebooks; normlab[test] has it")


@pytest.mark.usefixtures("tools")
def test_a_cell_that_fails_fails_the_tutorial(tmp_path):
    with pytest.raises(tutorials.TutorialError, match=r"(?s)07_title\.py fails:.*ZeroDivisionError"):
        tutorials.execute(written(tmp_path, "x = 1\n\n# %%\nx / 0\n"))


@pytest.mark.usefixtures("tools")
def test_a_changed_source_or_an_error_kept_in_a_notebook_is_seen(tmp_path):
    tutorial = written(tmp_path, "x = 1\n\n# %%\nprint(x)\n")
    assert tutorials.differences(tutorial) == ["07_title.ipynb is missing"]
    tutorials.build(tutorial)
    assert tutorials.differences(tutorial) == []
    assert json.loads(tutorial.notebook.read_text())["cells"][2]["outputs"][0]["text"] == ["1\n"]
    tutorial.source.write_text(HEADER + "x = 2\n\n# %%\nprint(x)\n")
    assert tutorials.differences(tutorial) == ["cell 2 differs: 07_title.py and 07_title.ipynb"]
    kept = json.loads(tutorial.notebook.read_text())
    kept["cells"][1]["execution_count"] = 5
    kept["cells"][2]["outputs"] = [{"output_type": "error", "ename": "E", "evalue": "", "traceback": []}]
    tutorial.notebook.write_text(json.dumps(kept))
    assert tutorials.differences(tutorial)[1:] == [
        "cell 2 of 07_title.ipynb was not run in its turn",
        "cell 3 of 07_title.ipynb ended with an error",
    ]


def test_jupyter_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("normlab.cli.tutorials.find_spec", lambda name: None)
    asked = CliRunner().invoke(app, ["tutorials", "1"])
    assert asked.exit_code == 2
    assert 'needs jupyterlab; pip install "normlab[tutorials]" gets them' in asked.output


def test_jupyter_is_started_on_a_copy_in_the_reader_s_folder(monkeypatch, tmp_path):
    started = []

    def run(command):
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("normlab.cli.tutorials.find_spec", lambda name: name)
    monkeypatch.setattr("normlab.cli.tutorials.subprocess.run", run)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["tutorials", "1"]).exit_code == 0
    notebook = tmp_path / ALL[0].notebook.name
    assert started == [[sys.executable, "-m", "jupyterlab", "--log-level=WARN", str(notebook)]]


def test_ctrl_c_is_for_jupyter_which_asks_whether_to_stop(monkeypatch, tmp_path):
    def run(command):
        signal.raise_signal(signal.SIGINT)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("normlab.cli.tutorials.find_spec", lambda name: name)
    monkeypatch.setattr("normlab.cli.tutorials.subprocess.run", run)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    assert CliRunner().invoke(app, ["tutorials", "1"]).exit_code == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_root_whom_jupyter_refuses_is_told_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr("normlab.cli.tutorials.find_spec", lambda name: name)
    monkeypatch.setattr("normlab.cli.tutorials.subprocess.run", lambda how: subprocess.CompletedProcess(how, 1))
    monkeypatch.chdir(tmp_path)
    for user, told in ((0, True), (1000, False)):
        monkeypatch.setattr("os.geteuid", lambda user=user: user, raising=False)
        done = CliRunner().invoke(app, ["tutorials", "1"])
        assert done.exit_code == 1
        assert ("jupyter lab --allow-root 01_threads.ipynb" in done.output) == told


def test_a_copy_is_the_notebook_with_commands_for_its_links_and_a_changed_one_stays(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kept = ALL[0].notebook.read_bytes()
    path = tmp_path / ALL[0].notebook.name
    assert CliRunner().invoke(app, ["tutorials", "1", "--no-open"]).output == f"{path}: a copy for you to change\n"
    text = path.read_text()
    assert "](02_moments.ipynb) (`normlab tutorials 2`)" in text
    assert re.sub(r"(\.ipynb\)) \(`normlab tutorials \d+`\)", r"\1", text) == kept.decode()
    assert [cell["cell_type"] for cell in json.loads(text)["cells"]]
    path.write_text("mine")
    again = CliRunner().invoke(app, ["tutorials", "1", "--no-open"]).output
    assert again == f"{path}: your copy, as you left it\n"
    assert path.read_text() == "mine"


def test_the_package_s_own_notebook_is_never_opened(monkeypatch):
    monkeypatch.chdir(tutorials.FOLDER)
    refused = CliRunner().invoke(app, ["tutorials", "1", "--no-open"])
    assert refused.exit_code == 2
    assert "go to a folder of your own" in refused.output


def test_the_extra_that_opens_tutorials_brings_neither_pytorch_nor_a_compiler():
    extras = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {re.split(r"[><=\[]", line)[0] for line in extras["tutorials"]} == {"ipykernel", "jupyterlab"}


def test_readme_and_command_name_the_same_installation():
    readme = (HERE / "README.md").read_text() + (HERE / "docs" / "use" / "install.md").read_text()
    line = 'pip install -e ".[tutorials]"'  # from a checkout, as all lines of the README
    assert line in readme
    assert line in cli.TOOLS.format("tutorials")


@cuda.jit
def one_more(x):
    x[cuda.grid(1)] += 1


def test_a_lesson_times_a_call_and_says_on_what(monkeypatch):
    monkeypatch.setattr("normlab.learn.lesson.engine.use_gpu", lambda: False)
    assert "no measure of a GPU" in str(lesson.timed(lambda: launch(one_more, 1, 32, np.zeros(32))))
    assert "simulator" in lesson.where()
    assert str(lesson.Timing(2.5e-5, "on it")) == "25 µs on it"
    assert str(lesson.Timing(3.0, "on it")) == "3 s on it"


def test_a_lesson_finds_a_line():
    with pytest.raises(ValueError, match=r"no line of 'one_more' contains 'y\['"):
        lesson.line(one_more, "y[")
    assert Path(__file__).read_text().splitlines()[lesson.line(one_more, "+= 1") - 1] == "    x[cuda.grid(1)] += 1"


def test_a_lesson_knows_what_a_step_reached_from_the_records_and_in_float32_from_its_file():
    forward = {step.name: lesson.measured(step) for step in LADDERS["forward"]}
    ladder = {entry["step"]: entry["of_copy"] for entry in records.load(["ladder_forward_h200"])[0]["steps"]}
    assert forward["thread_per_row"] == (ladder["thread_per_row"], 0.08)
    assert forward["vectors"] is None
    rows = records.load(["norm_float32_h200"])[0]["rows"]
    (best,) = (row for row in rows if (row["norm"], row["direction"], row["n2"]) == ("layer", "forward", 4096))
    assert forward["clusters"][1] == best["contenders"]["normlab"]["of_copy"]


def test_a_ladder_s_numbers_are_the_record_s_in_the_ladder_s_order():
    (record,) = records.load(["ladder_forward_h200"])
    wanted = {entry["step"]: entry["of_copy"] for entry in record["steps"]}
    assert lesson.ladder("forward") == wanted
    assert list(lesson.ladder("forward")) == [step.name for step in LADDERS["forward"]]  # the record's is by speed


def test_counts_are_drawn_as_bars_of_their_length_with_their_numbers(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(plt, "show", lambda: None)
    traces = {"one": SimpleNamespace(metrics={"a": 1200, "b": 0}), "other": SimpleNamespace(metrics={"a": 3, "b": 0})}
    lesson.draw_counts(traces, {"a": "loads", "b": "barriers"})
    loads, barriers = plt.gcf().axes
    assert (loads.get_title(), barriers.get_title()) == ("loads", "barriers")
    assert [bar.get_width() for bar in loads.patches] == [1200, 3]
    assert [text.get_text() for text in loads.texts] == ["1,200", "3"]
    assert [text.get_text() for text in barriers.texts] == ["0", "0"]
    plt.close()
