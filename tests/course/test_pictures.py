"""What `--show` draws: every exercise's idea, and what a wrong kernel did in place of it."""

import numpy as np
import pytest
from course.solved import WRONG

from normlab.course import catalogue, grading, pictures, reference
from normlab.course.accesses import accesses
from normlab.course.exercise import Case
from normlab.course.failure import Source
from normlab.course.pictures import Line, Seen
from normlab.engine import cuda, float32, load_vector, store_vector


@cuda.jit
def halves(x, y):
    tile = cuda.shared.array(4, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    y[i] = tile[3 - i]


@cuda.jit
def too_far(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@cuda.jit
def vectors(x, y):
    i = cuda.threadIdx.x
    store_vector(y, 4 * i, load_vector(x, 4 * i, 4))


def seen(kernel, grid, block, n):
    arrays = {"x": np.arange(n, dtype=np.float32), "y": np.zeros(n, np.float32)}
    held = accesses(kernel)[grid, block](arrays["x"], arrays["y"])
    return Seen(Case([], arrays, {}), arrays, [held])


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_accesses_have_element_thread_and_barriers_passed():
    (held,) = seen(halves, 1, 4, 4).launches
    names = [name for _, name, _ in held["arrays"]]
    told = [(did, names[array], element, thread, phase) for did, array, element, thread, phase in held["events"]]
    assert told[:2] == [("read", "x", 0, 0, 0), ("write", "tile", 0, 0, 0)]
    assert told[-2:] == [("read", "tile", 0, 3, 1), ("write", "y", 3, 3, 1)]


def test_each_cell_has_the_thread_that_wrote_it():
    assert texts(pictures.writers("y")(seen(too_far, 2, 3, 6))) == ["0", "1", "2", "0", "1", "2"]
    assert texts(pictures.writers("y")(seen(vectors, 1, 2, 8))) == ["0"] * 4 + ["1"] * 4


def test_what_was_done_before_an_error_is_drawn_and_the_error_told():
    drawn = seen(too_far, 2, 3, 5)
    assert "IndexError" in drawn.stopped
    figure = pictures.writers("y")(drawn)
    assert texts(figure)[:4] == ["0", "1", "2", "0"]
    assert "then it stopped: IndexError" in figure.axes[0].get_xlabel()


def test_phases_are_the_spaces_between_barriers():
    shown = texts(pictures.phases("tile")(seen(halves, 1, 4, 4)))
    assert shown == ["w0", "w1", "w2", "w3", "0 barriers passed", "r3", "r2", "r1", "r0", "1 barrier passed"]
    with pytest.raises(ValueError, match="no shared array 'line'"):
        pictures.phases("line")(seen(halves, 1, 4, 4))


@pytest.mark.parametrize(("name", "red"), [("barriers_everywhere", False), ("one_barrier_per_turn", True)])
def test_a_race_is_red(name, red, tmp_path):
    exercise = catalogue.exercise("20")
    given = next(one for one in WRONG if str(one) == f"racy_kernel/{name}")
    with grading._begin(given.source, str(tmp_path / "solution.py"), grading.NORMAL) as solution:
        case = exercise.picture.case()
        run = solution.run(case, "accesses")
    figure = exercise.picture.draw(Seen(case, run.arrays, run.observed["accesses"]))
    edges = {patch.get_edgecolor()[:3] for patch in figure.axes[0].patches}
    assert (len(edges) == 2) == red


def test_loads_are_counted_for_each_element():
    arrays = {"x": np.zeros((2, 2), np.float32), "y": np.zeros(2, np.float32)}

    @cuda.jit
    def twice(x, y):
        i = cuda.threadIdx.x
        y[i] = x[0, i] + x[0, 0]

    held = accesses(twice)[1, 2](arrays["x"], arrays["y"])
    assert texts(pictures.loads("x")(Seen(Case([], arrays, {}), arrays, [held]))) == ["3", "1", "0", "0"]


def test_results_that_are_no_numbers_are_marked():
    line = Line("mean", np.arange(3), np.ones(3), np.array([1, np.nan, 1]))
    figure = pictures.results("title", "n", lambda _: [line])(seen(halves, 1, 4, 4))
    assert any("1 values of mean are NaN" in text for text in texts(figure))


@pytest.mark.parametrize("factor", [0, -1, 5, np.inf, np.nan])
def test_group_norm_s_picture_names_no_channel_that_there_is_not(factor):
    picture = catalogue.exercise("23").picture
    case = picture.case()
    x, output = case.arrays["x"], case.arrays["output"]
    xhat = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + case.launches[0].arguments[-2])
    output[:] = xhat * np.repeat([1, 2, factor, factor], 8).reshape(2, 16)
    shown = texts(picture.draw(Seen(case, case.arrays, [{"stopped": None}])))
    assert shown == ["0"] * 8 + ["1"] * 8 + ["?"] * 16


@pytest.mark.parametrize("number", catalogue.FILES)
def test_every_exercise_s_idea_is_drawn(number):
    picture = catalogue.exercise(number).picture
    assert picture.look
    path, text = catalogue.file(number), reference.source(number)
    with grading._begin(text, str(path), grading.NORMAL) as solution:
        source = Source(text, str(path), catalogue.skeleton(number))
        grader = grading._Grader(catalogue.exercise(number), solution, source)
        assert grader.picture("svg").startswith(b"<?xml")
        if number == next(iter(catalogue.FILES)):
            assert grader.picture("png").startswith(b"\x89PNG")
