"""What a student is told, and what points are given for."""

from pathlib import Path

import numpy as np
import pytest
from course.solved import WRONG, thin_out

from normlab.course import catalogue, failure, given, grading, reference
from normlab.course.exercise import Answer
from normlab.course.hidden import read
from normlab.course.process import Limits

SOLVED = {number: reference.source(number) for number in catalogue.FILES}


def graded(number, source, **how):
    return grading.check(number, source, f"/nowhere/{catalogue.FILES[number].name}", **how)


def wrongly(exercise, name, tmp_path, **how):
    (given,) = (one for one in WRONG if str(one) == f"{exercise}/{name}")
    file = tmp_path / "solution.py"
    file.write_text(given.source)
    return grading.check(given.number, given.source, str(file), **how), given.source.splitlines()


BARRIERS = "normlab__barriers.sum"


def hidden(tmp_path, text):
    file = tmp_path / "hidden.toml"
    file.write_text(text)
    return read(file)


def test_a_wrong_value_names_element_numbers_lane_line_and_the_smallest_input(tmp_path):
    result, lines = wrongly("layer_norm", "one_turn", tmp_path)
    failure = result.failure
    assert failure.headline.startswith("output[0, 64]: expected ")
    assert failure.headline.endswith(", got nan")
    assert failure.details[:2] == (failure.details[0], "no thread wrote it")
    line = failure.line
    assert failure.details[2] == f"line {line} of your file stores into output: no thread comes there for output[0, 64]"
    assert lines[line - 1].strip().startswith("output[row, column] = ")
    assert "smallest failing input found: rows = 1, columns = 65, " in failure.details[3]
    assert failure.details[4].startswith("  eps = ")

    result, lines = wrongly("warp_sum_butterfly", "shift_down", tmp_path)
    failure = result.failure
    assert failure.headline == "sums[0, 1]: expected 528, got 544"
    written = lines.index("    sums[row, lane] = total") + 1
    assert failure.details[1] == f"written by block (0, 0, 0), warp 0, lane 1, at line {written}"
    assert failure.details[2].startswith("made by your lines ")
    assert failure.details[2].endswith(f" to {failure.line}, in warp_sum")
    assert lines[failure.line - 1].strip() == "return value"
    assert failure.details[3] == "smallest failing input found: rows = 1, counting values"


def test_a_missing_nan_is_told_without_a_bound():
    wrong = failure.wrong_value("y", np.zeros(1, np.float32), Answer(np.full(1, np.nan), np.nan))
    assert wrong.details == ("1 of 1 elements of y are wrong",)


def test_a_race_names_both_threads_both_lines_and_what_to_do(tmp_path):
    result, lines = wrongly("racy_kernel", "warp_barriers", tmp_path)
    failure = result.failure
    assert "put cuda.syncthreads() between them" in failure.headline
    assert all(" by block (0, 0, 0), warp " in line and ", at line " in line for line in failure.details[:2])
    assert {line.split(", warp ")[1][0] for line in failure.details[:2]} == {"0", "1"}
    assert "smallest failing input found: cells = 33, times = 1" in failure.details[2]
    assert "line[cell" in lines[failure.line - 1]


def test_a_budget_names_its_reason_and_the_line_that_costs_most(tmp_path):
    result, lines = wrongly("padded_tile", "not_padded", tmp_path)
    assert result.failure.headline.startswith(
        "992 bank conflicts of loads, at most 0 allowed: lanes that load different"
    )
    assert "tile[column, row]" in lines[result.failure.line - 1]
    assert result.parts == {"right": 6, "budgets": 0}


def test_a_kernel_is_compiled_for_each_dtype_that_a_flag_chooses():
    exercise = catalogue.exercise("35")
    cases = grading._of_other_types(map(exercise.make, exercise.branches))
    assert {case.arrays["gate"].dtype.name for case in cases} == {"float16", "float32"}


def test_costs_are_counted_for_both_values_of_a_flag():
    for number in catalogue.FILES:
        exercise = catalogue.exercise(number)
        for flag in (name for name, size in exercise.sizes.items() if size.is_flag):
            assert {drawn[flag] for drawn in exercise.counted(0, 1)} == {0, 1}


def test_an_exception_names_its_line(tmp_path):
    result, lines = wrongly("vector_copy", "misaligned", tmp_path)
    assert "store_vector(y, first + 1" in lines[result.failure.line - 1]


def test_a_line_of_the_house_is_named_as_such(tmp_path):
    result, lines = wrongly("row_moments", "merge_in_the_loop", tmp_path)
    failure = result.failure
    assert "block_moments(mean, m2, count, buffer)" in lines[failure.line - 1]  # the student's line that calls it
    assert f"called at line {failure.line} of your file" in failure.details
    assert "at line 26 of block.py, which you call: cuda.syncthreads()" in failure.details[0]


def test_a_second_walk_that_begins_at_the_end_costs_no_points(monkeypatch):
    seed = 1  # its costs are counted on 103 columns, of which thread 19 meets one again: 203 loads for 2 times 103
    thin_out(monkeypatch, {seed: 100})
    before, walk, after = SOLVED["27"].rpartition("range(cuda.threadIdx.x, columns, cuda.blockDim.x)")
    assert walk
    back = "range(columns - 1 - cuda.threadIdx.x, -1, -cuda.blockDim.x)"
    assert graded("27", before + back + after, seed=seed).failure is None


def test_lines_have_a_budget_where_they_teach(monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(catalogue, "exercise", lambda number: replace(EXERCISE, lines=3))
    result = graded("07", SOLVED["07"])
    assert (result.failure.kind, result.failure.headline) == ("lines", "4 lines of code added, at most 3 allowed")
    assert result.parts == {"right": 6, "budgets": 0}


def test_a_file_that_would_be_compiled_for_minutes_is_not_run():
    result = graded("01", SOLVED["01"] + "    y[i] = float32(2) * x[i]\n" * 600)
    assert (result.failure.kind, result.points) == ("lines", 0)
    assert result.failure.headline.startswith("602 lines of code added")


EXERCISE = catalogue.exercise("07")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ("    while lane < 32:\n        value += value\n    return value", "time"),
        (
            "    if lane == 0:\n        cuda.syncwarp()\n    else:\n        cuda.syncthreads()\n    return value",
            "deadlock",
        ),
        ("    return value / 0 // 0", "values"),
        ("    return value[3]", "exception"),
        ("    return value +", "syntax"),
        ("    import os; os._exit(0)", "python"),
    ],
)
def test_loops_deadlocks_and_the_like_are_failures_of_one_line(lines, kind):
    source = catalogue.skeleton("10").replace("    # Your lines.", lines)
    result = graded("10", source, limits=Limits(seconds=0.5))
    assert result.failure.kind == kind
    assert "\n" not in result.failure.headline
    assert result.failure.headline.count(" ") > 3
    assert result.points == 0


def test_locks_in_opposite_orders_are_a_failure_of_one_line():
    locks = """    locks = cuda.shared.array(2, int32)
    if thread < 2:
        locks[thread] = 0
    cuda.syncthreads()
    if thread % 32 == 0:
        own = thread // 32
        while cuda.atomic.cas(locks, own, 0, 1) != 0:
            pass
        while cuda.atomic.cas(locks, 1 - own, 0, 1) != 0:
            pass
        cuda.atomic.exch(locks, 1 - own, 0)
        cuda.atomic.exch(locks, own, 0)
"""
    begin = "    thread = cuda.threadIdx.x\n"
    source = SOLVED["28"].replace(begin, begin + locks)
    failure = graded("28", source).failure
    assert failure.kind == "lock-order"
    assert "locks, 1 - own" in source.splitlines()[failure.line - 1]


def test_os_exit_is_refused_by_its_line_and_survived_where_rules_do_not_look(monkeypatch):
    source = "import os\nos._exit(0)\n" + SOLVED["10"]
    failure = graded("10", source).failure
    assert (failure.kind, failure.line) == ("import", 1)
    assert failure.headline.startswith("imports os: ")
    monkeypatch.setattr(grading.rules, "broken", lambda source, skeleton: None)
    failure = graded("10", source).failure
    assert failure.headline == "the process ended by itself (exit code 0) while being loaded, without a result"


def test_the_same_seed_gives_the_same_draws_and_another_one_others():
    for number in catalogue.FILES:
        exercise = catalogue.exercise(number)
        assert exercise.draws(3, 5) == exercise.draws(3, 5)
        assert exercise.draws(3, 5) != exercise.draws(4, 5)
        sizes = [drawn.sizes for drawn in exercise.draws(3, 5)]
        for name, size in exercise.sizes.items():
            assert set(size.edges) <= {one[name] for one in sizes}
        for seed in range(3):
            for fixed, kind in exercise.also:
                assert any(fixed.items() <= one.sizes.items() and one.kind == kind for one in exercise.draws(seed, 0))


@pytest.mark.parametrize(("number", "kind"), [("27", "masked"), ("30", "-inf"), ("31", "-inf")])
def test_every_seed_has_a_row_that_is_masked_in_part_and_one_that_is_masked_as_a_whole(number, kind):
    exercise = catalogue.exercise(number)
    for seed in range(20):
        cases = [exercise.make(drawn) for drawn in exercise.draws(seed, grading.DRAWS) if drawn.kind == kind]
        shares = [np.isinf(row).mean() for case in cases for row in case.arrays["x"]]
        assert any(0 < share < 1 for share in shares)
        assert 1 in shares


def test_every_seed_has_many_rows_and_many_parts_that_add_to_the_gradient_of_the_weight():
    exercise = catalogue.exercise("18")
    for seed in range(40):
        large = [drawn for drawn in exercise.draws(seed, grading.DRAWS) if drawn["rows"] > 128 or drawn["parts"] > 32]
        cases = [(drawn, exercise.make(drawn).want) for drawn in large]
        assert any(drawn["rows"] > 128 and np.any(want["grad_weight"].value) for drawn, want in cases)
        assert any(np.any(want["partial"].value[32:]) for _, want in cases)


def test_every_seed_has_a_number_for_a_bin_beyond_the_end_of_shared_memory():
    exercise = catalogue.exercise("28")
    for seed in range(40):
        full = [drawn for drawn in exercise.draws(seed, grading.DRAWS) if drawn["bins"] == 64]
        assert any(64 in exercise.make(drawn).arrays["x"] for drawn in full)


def test_what_a_kernel_prints_is_shown_with_its_failure():
    lines = "    if lane == 31:\n        print('I hold', value)\n    return value"
    failure = graded("10", catalogue.skeleton("10").replace("    # Your lines.", lines)).failure
    at = failure.details.index("your kernel printed:")
    assert failure.details[at + 1].startswith("  I hold ")


def test_a_picture_is_drawn_of_every_kind():
    for number in ("10", "17", "21", "05"):  # the last one is drawn by the exercise's own function
        result = graded(number, SOLVED[number], show="png")
        assert (result.failure, result.no_picture) == (None, None)
        assert result.picture.startswith(b"\x89PNG")


def test_why_there_is_no_picture():
    result = graded("10", SOLVED["10"].replace("return", "return (0, 0)[2] +"), show="png")
    assert result.picture is None
    assert result.no_picture.startswith("IndexError: ")


@pytest.mark.parametrize(
    ("line", "text", "advice"),
    [
        ("y[i] = x + x", "'array' and 'array'", "a thread takes an element"),
        ("y[i] = x", "with a sequence", "a thread takes an element"),
        ("y[cuda.threadIdx + 1] = x[i]", "'Dim3'", "add .x, .y or .z"),
    ],
)
def test_an_array_or_a_thread_s_index_that_is_used_as_a_number_is_named(line, text, advice):
    source = catalogue.skeleton("01") + f"    i = cuda.threadIdx.x\n    {line}\n"
    failure = graded("01", source).failure
    assert failure.kind == "exception"
    assert text in failure.headline
    assert any(advice in one for one in failure.details), failure.details


ENDLESS = {
    "a while, in the for of its rows": "    for row in range(2):\n        while True:  # here\n            i += row\n",
    "a while around a for": "    while True:  # here\n        for k in range(9):\n            i += k\n        i -= 1\n",
    "a function in a while": "    while True:  # here\n        i = later(i)\n        i -= 1\n",
}
LATER = "@cuda.jit(device=True)\ndef later(i):\n    j = i + 1\n    j += 1\n    return j\n\n\n"


@pytest.mark.parametrize("loop", ENDLESS.values(), ids=ENDLESS)
def test_a_launch_that_takes_too_long_is_told_by_its_loop_wherever_the_clock_stopped_it(loop):
    source = catalogue.skeleton("02").replace("@cuda.jit\n", f"{LATER}@cuda.jit\n")
    source += f"    i = cuda.threadIdx.x\n{loop}"
    found = graded("02", source, limits=Limits(seconds=0.5)).failure
    (line,) = (number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# here"))
    assert (found.kind, found.line) == ("time", line)
    assert not any("thread" in one for one in found.details), found.details
    for stopped_at in range(line, len(source.splitlines()) + 1):
        assert given.loop_of(source, stopped_at) == line
    assert given.loop_of(source, source.splitlines().index("    j += 1") + 1) == (
        line if "later" in loop else source.splitlines().index("    j += 1") + 1
    )


def test_a_message_has_no_control_characters_of_a_student_s():
    source = catalogue.skeleton("01") + '    assert False, "\\x1b[2Jsolved\\r"\n'
    found = graded("01", source).failure
    assert "\x1b[2Jsolved" in found.headline
    assert failure.told(found, "01_map.py").startswith("AssertionError: \ufffd[2Jsolved\ufffd (01_map.py:")


def test_hidden_checks_have_points_of_their_own(tmp_path):
    small = SOLVED["22"].replace("    if", "    n = min(n, 5030)  # beyond what the exercise draws\n    if", 1)
    assert graded("22", small).points == 8
    extra = hidden(tmp_path, 'seed = 5\n[vector_copy]\ncases = [{n = 5040, kind = "normal"}]\n')
    result = graded("22", small, hidden=extra)
    assert (result.parts, result.failure) == ({"right": 6, "budgets": 2, "hidden": 0}, None)
    assert result.hidden_failure.headline.startswith("y[5030]: expected ")
    assert graded("22", SOLVED["22"], hidden=extra).points == 10
    assert graded("21", SOLVED["21"], hidden=extra).parts["hidden"] == 2


def test_a_seed_alone_is_a_hidden_check(tmp_path):
    assert len(hidden(tmp_path, "seed = 99").of(EXERCISE).draws) == len(EXERCISE.draws(99, 12))
    assert hidden(tmp_path, "seed = 99").of(EXERCISE).draws != hidden(tmp_path, "seed = 98").of(EXERCISE).draws


def test_hidden_budgets_count(tmp_path):
    extra = hidden(tmp_path, '[warp_sum_rotation]\nbudgets = {"normlab__shuffles.sum" = 4}\n')
    failure = graded("10", SOLVED["10"], hidden=extra).hidden_failure
    assert failure.headline == "5 shuffles, at most 4 allowed: a hidden budget"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = ", "Invalid value"),
        ("seed = -1", "seed is a number from 0 on, not -1"),
        ("[warp_summ]\ndraws = 1", "there is no exercise 'warp_summ'"),
        ("[vector_copy]\ncase = []", "case = []: a table has draws"),
        ("[vector_copy]\ncases = [{m = 3}]", "a case has n, and may have a kind of counting, normal; not {'m': 3}"),
        ("[vector_copy]\ncases = [{n = 0}]", "n is a number from 1 on, not 0"),
        ("[vector_copy]\ncases = [3]", "a case has n, and may have a kind of counting, normal; not 3"),
        ("[vector_copy]\ndraws = -3", "draws = -3: a table has draws (a number from 0 on)"),
        ("[vector_copy]\nbudgets = {sectors = 3}", "there is no metric 'sectors'"),
        (f'[vector_copy]\nbudgets = {{"{BARRIERS}" = "a"}}', f"{BARRIERS} is a number from 0 on, not 'a'"),
        (f'[vector_copy]\nbudgets = {{"{BARRIERS}" = -1}}', f"{BARRIERS} is a number from 0 on, not -1"),
        ("vector_copy = 3", "a table is needed, not 3"),
    ],
)
def test_what_is_wrong_in_a_hidden_file_is_told(tmp_path, text, says):
    with pytest.raises(ValueError, match=r"hidden\.toml") as caught:
        hidden(tmp_path, text)
    assert says in str(caught.value)


def test_a_hidden_file_may_begin_with_a_byte_order_mark(tmp_path):
    assert hidden(tmp_path, "\ufeffseed = 5").seed == 5


def test_the_instructor_s_guide_lists_the_exercises():
    guide = (Path(__file__).parent.parent.parent / "tutorials" / "INSTRUCTORS.md").read_text()
    listed = [line.split(" | ")[:2] for line in guide.splitlines() if line[2:4].isdigit()]
    assert listed == [[f"| {number}", catalogue.exercise(number).title] for number in catalogue.FILES]


def test_the_instructor_s_guide_shows_a_hidden_file_that_works(tmp_path):
    guide = Path(__file__).parent.parent.parent / "tutorials" / "INSTRUCTORS.md"
    (text,) = [block.partition("```")[0] for block in guide.read_text().split("```toml\n")[1:]]
    assert hidden(tmp_path, text).of(catalogue.exercise("13")).draws
