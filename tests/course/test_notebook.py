"""`course.check`: a kernel of a notebook's cell or a script, graded as a file would be."""

import linecache
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from course.solved import thin_out

from normlab import course
from normlab.course import answers, catalogue, grading, reference
from normlab.engine import cuda, float32
from normlab.learn import tutorials
from normlab.stages.moments import welford_step

TWO = 2


@cuda.jit(device=True)
def scaled(value):
    return float32(TWO) * value


@cuda.jit
def mine(x, y):
    i = cuda.threadIdx.x
    y[i] = scaled(x[i])


@cuda.jit
def misses_some(x, y):
    i = cuda.threadIdx.x
    if i < 5:
        y[i] = x[i] * np.float32(2)


@cuda.jit
def too_far(x, y):
    i = cuda.threadIdx.x + 1
    y[i] = x[i] * float32(2)


@cuda.jit
def empty(x, y):
    """Do nothing yet."""
    # Your lines.


@cuda.jit(device=True)
def clamp_by_magnitude(gamma, eps):
    if gamma >= 0:
        return max(gamma, eps)
    return min(gamma, -eps)


@cuda.jit(device=True)
def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / clamp_by_magnitude(gamma, eps)


def blocks(n):
    return -(-n // THREADS)


THREADS = 64


def test_a_kernel_under_a_name_of_its_own_brings_functions_and_numbers_along():
    result = course.check(mine, "map")
    assert result.passed
    assert repr(result).startswith("One thread, one element: solved (8 of 8 points)\n  at the budget: ")
    assert "next: 2 More threads than elements" in repr(result)
    assert "One way to write it" in repr(result)


def test_a_wrong_kernel_is_told_the_smallest_failing_input_and_shown_its_picture():
    result = course.check(misses_some, "map")
    assert not result
    assert "smallest failing input found: n = 6, counting values" in repr(result)
    shown = result._repr_html_()
    assert "<svg" in shown
    assert "What to look for: thread 0 wrote element 0" in shown
    assert "One way to write it" not in shown


def test_lines_are_those_of_the_student_s_own_file():
    told = repr(course.check(too_far, "1"))
    line = Path(__file__).read_text().splitlines().index("    y[i] = x[i] * float32(2)") + 1
    assert f"(line {line} of your kernel)" in told
    assert "    y[i] = x[i] * float32(2)" in told
    assert f"at line {line}" in told


def test_nothing_written_is_told_so():
    assert "nothing is written yet" in repr(course.check(empty, "map"))


def test_a_stage_of_the_library_a_function_for_the_host_and_two_functions_together_are_checked():
    assert course.check(welford_step, "welford_step").passed
    assert course.check(blocks, "launch_size").passed
    assert course.check((clamp_by_magnitude, normalised_from_output), "recompute").passed


@pytest.mark.parametrize(
    ("kernel", "name", "error", "says"),
    [
        (
            mine,
            "nothing",
            ValueError,
            "there is no exercise 'nothing'; there are 01 to .., and in the tutorials block_max",
        ),
        (clamp_by_magnitude, "welford_step", ValueError, r"asks for welford_step\(value, mean, m2, count\); clamp_by"),
        (clamp_by_magnitude, "recompute", ValueError, "as a tuple: normalised_from_output is missing"),
        (3, "map", TypeError, r"course.check\(kernel, 'map'\) needs a kernel, as @cuda.jit makes it, not 3"),
    ],
)
def test_what_cannot_be_checked_is_an_error_in_words(kernel, name, error, says):
    with pytest.raises(error, match=says):
        course.check(kernel, name)


def test_a_kernel_without_source_is_refused():
    names = {"cuda": cuda}
    exec("@cuda.jit\ndef double(x, y):\n    pass\n", names)
    with pytest.raises(ValueError, match=r"the source of double cannot be read: .* cell without %%time"):
        course.check(names["double"], "map")


def test_a_cell_s_lines_count_from_the_cell_s_first_line():
    cell = "\n@cuda.jit\ndef double(x, y):\n    i = cuda.threadIdx.x\n    y[i] = x[i + 1]\n"
    linecache.cache["<cell>"] = len(cell), None, cell.splitlines(keepends=True), "<cell>"
    names = {"cuda": cuda}
    exec(compile(cell, "<cell>", "exec"), names)
    assert "(line 5 of your kernel)" in repr(course.check(names["double"], "map"))


def test_a_script_needs_no_guard_and_runs_once(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from normlab import course\nfrom normlab.engine import cuda, float32\nprint('begins')\n\n\n"
        "@cuda.jit\ndef double(x, y):\n    i = cuda.threadIdx.x\n    y[i] = float32(2) * x[i]\n\n\n"
        "print(course.check(double, 'map').passed)\n"
    )
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "begins\nTrue\n"


def test_importing_the_course_is_light():
    code = "from normlab import course; import sys; print({'numba', 'numpy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def solution(tutorial):
    """The code of the solution that a tutorial's last section unfolds."""
    text = re.sub(r"(?m)^# ?", "", tutorial.source.read_text(encoding="utf-8").split("\n# ## Exercise\n")[1])
    return re.search(r"(?s)<details><summary><b>Solution\.</b></summary>.+?```python\n(.+?)```\n</details>", text)[1]


@pytest.mark.parametrize("tutorial", tutorials.every(), ids=lambda tutorial: tutorial.source.stem)
def test_each_tutorial_s_own_exercise_is_checked_and_its_solution_unfolds(tutorial, monkeypatch):
    thin_out(monkeypatch, {0: 3})  # the reference solutions are graded on all inputs
    asked = re.search(r'\ncourse\.check\(\w+, "(\w+)"\)', tutorial.source.read_text(encoding="utf-8"))[1]
    code = solution(tutorial)
    if asked in catalogue.PRACTICE:
        assert catalogue.exercise(asked).tutorial == tutorial.number
        assert grading.check(asked, reference.filled(asked, code), "your kernel").failure is None
    else:
        assert f'"{asked}")' in code
        assert asked in answers.QUESTIONS


def test_a_tutorial_s_layer_norm_subtracts_the_mean_before_it_multiplies():
    right = reference.source("layer_norm_rows")
    wrong = right.replace("(x[row, column] - mean) * invvar", "(x[row, column] * invvar - mean * invvar)")
    assert grading.check("layer_norm_rows", wrong, "your kernel").failure.kind == "values"


@pytest.mark.parametrize("name", catalogue.PRACTICE)
def test_a_tutorial_s_exercise_has_a_reference_solution_that_passes(name):
    assert grading.check(name, reference.source(name), f"/nowhere/{name}.py").points == 8


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([33, 35, 37, 39], "right"),
        (np.array([39, 37, 35, 33]), "right"),
        ([33, 34], "not yet: 1 of yours wrong, 3 missing; which banks"),
        ([], "no answer yet"),
        (None, "no answer yet"),
    ],
)
def test_answers_to_questions(answer, told):
    result = course.check(answer, "tile_strides")
    assert repr(result).startswith(f"tile_strides: {told}")
    assert result.passed == (told == "right")
    assert "tile_strides" in result._repr_html_()


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        *((12, True), (12.0, True), (np.array([12]), True), ((one for one in [12]), True), (12.7, False)),
        *((np.nan, False), (np.array(12), True), ({12}, True)),
    ],
)
def test_an_answer_is_a_number_not_one_that_is_near(answer, passed):
    assert course.check(answer, "tall_warp").passed == passed


@pytest.mark.parametrize("answer", [len, "twelve", "12", b"\x0c", [[1], [2, 3]], 1j, True, np.array(None)])
def test_an_answer_that_is_no_number_is_told(answer):
    with pytest.raises(TypeError, match=r"course\.check\(answer, 'tall_warp'\) needs a number, or several, not "):
        course.check(answer, "tall_warp")


@pytest.mark.parametrize("seed", [-3, 1.5])
def test_a_seed_is_a_number_from_0_on(seed):
    with pytest.raises(ValueError, match=rf"seed={seed}\): seed is a number from 0 on"):
        course.check(mine, "map", seed=seed)
