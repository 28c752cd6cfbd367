"""The kernels that the tutorials' own exercises ask for, by name; `normlab.course.check` grades them."""

from functools import partial

import numpy as np

from normlab import oracle
from normlab.course.checks import vector_copy
from normlab.course.data import EPS, EXACT, arithmetic, backward_case, moments_case, norm_case, nothing, values
from normlab.course.exercise import (
    BARRIERS,
    SHARED_LOADS,
    SHUFFLES,
    Answer,
    Case,
    Cost,
    Drawn,
    Exercise,
    Launch,
    Size,
)
from normlab.course.pictures import Picture, readers, writers
from normlab.oracle import unit_roundoff

U = unit_roundoff("float32")


def _backwards(drawn: Drawn) -> Case:
    x = values(drawn.kind, drawn.rng, drawn["n"])
    return Case(
        launches=[Launch("copy_backwards", 1, drawn["n"], ("x", "y"))],
        arrays={"x": x, "y": nothing(drawn["n"])},
        want={"y": Answer(x[::-1].astype(np.float64), 0.0)},
    )


def _two_pass(drawn: Drawn) -> Case:
    return moments_case(drawn, "two_pass", -(-drawn["rows"] // 32), 32)


def _groups(drawn: Drawn) -> Case:
    """Make sets of 8 groups, some of them empty, and bound their merge.

    mean: one merge adds an error of at most 4 u (|a| + |b|) <= 8 u M, with M the largest |mean|; seven add e = 56 u M.
    m2: one merge has 8 roundings and only positive terms, seven have 56 roundings: 64 u m2 is enough. The difference of
    two means, at most D, may be off by 2 e, which adds at most 4 (D + e) e per value.
    """
    rng, sets = drawn.rng, drawn["sets"]
    counts = rng.integers(1, 6, (sets, 8)) * (rng.random((sets, 8)) < 0.6)
    members = [[values(drawn.kind, rng, int(count)).astype(np.float64) for count in row] for row in counts]
    moments = [[(v.mean(), v.var() * v.size, v.size) if v.size else (0, 0, 0) for v in row] for row in members]
    groups = np.array(moments, np.float32).reshape(sets, 8, 3)
    mean, m2, count = np.moveaxis(groups.astype(np.float64), 2, 0)
    total = count.sum(1)
    center = (mean * count).sum(1) / np.maximum(total, 1)
    spread = (m2 + count * (mean - center[:, None]) ** 2).sum(1)
    error = 56 * U * abs(mean).max(1)
    bound = 64 * U * spread + 4 * total * (np.ptp(mean, axis=1) + error) * error
    want = np.where(total > 0, [center, spread, total], 0).T
    return Case(
        launches=[Launch("merge_groups", -(-sets // 32), 32, ("groups", "merged"))],
        arrays={"groups": groups, "merged": nothing(sets, 3)},
        want={"merged": Answer(want, np.array([error, bound, np.zeros(sets)]).T)},
    )


def _maxima(drawn: Drawn, kernel: str, threads: int) -> Case:
    rows = drawn["rows"]
    x = values(drawn.kind, drawn.rng, rows, threads)
    x = -x if drawn.kind == "offset" else x  # a maximum that begins at 0 is wrong here
    want = np.repeat(x.max(1, keepdims=True), threads, axis=1).astype(np.float64)
    return Case(
        launches=[Launch(kernel, rows, threads, ("x", "maxima"))],
        arrays={"x": x, "maxima": nothing(rows, threads)},
        want={"maxima": Answer(want, 0.0)},
    )


def _layer_norm_rows(drawn: Drawn) -> Case:
    case = norm_case(drawn)
    names = ("x", "weight", "bias", case.eps, "output")
    arrays = {name: case.arrays[name] for name in ("x", "weight", "bias", "output")}
    return Case([Launch("layer_norm_rows", 3, 64, names)], arrays, {"output": case.want["output"]})


def _rms_grad_input(drawn: Drawn) -> Case:
    rows, columns = drawn["rows"], drawn["columns"]
    arrays, _ = backward_case(drawn, "grad_input", arithmetic(columns))
    x, g, weight = arrays["x"], arrays["grad_output"], arrays["weight"]
    invvars = np.asarray(oracle.rms_norm(x, columns, eps=EPS).invvar, np.float32)
    given = g, x, columns, weight, EPS
    truth = oracle.rms_norm_backward(*given).grad_input
    bound = oracle.rms_norm_backward_bound(*given, arithmetic(columns)).grad_input
    return Case(
        launches=[Launch("rms_grad_input", rows, 64, ("grad_output", "x", "invvars", "weight", "result"))],
        arrays={"grad_output": g, "x": x, "invvars": invvars, "weight": weight, "result": nothing(rows, columns)},
        want={"result": Answer(truth, bound)},
    )


def _channel_rms(drawn: Drawn) -> Case:
    samples, channels, pixels = drawn["samples"], drawn["channels"], drawn["pixels"]
    x = values(drawn.kind, drawn.rng, samples, channels, pixels)
    rows = np.moveaxis(x, 1, 2).copy()  # a row for each pixel
    ones = np.ones(channels, np.float32)
    truth = oracle.rms_norm(rows, channels, ones, EPS).output
    bound = oracle.rms_norm_bound(rows, channels, ones, EPS, arithmetic(channels)).output
    answer = Answer(np.moveaxis(np.asarray(truth), 2, 1), np.moveaxis(np.asarray(bound), 2, 1))
    return Case(
        launches=[Launch("channel_rms", (-(-pixels // 32), samples), 32, ("x", np.float32(EPS), "y"))],
        arrays={"x": x, "y": nothing(*x.shape)},
        want={"y": answer},
    )


def _copy_vectors(drawn: Drawn) -> Case:
    case = vector_copy.EXERCISE.make(drawn)
    return Case([case.launches[0]._replace(kernel="copy_vectors")], case.arrays, case.want)


_SEVENTY = Drawn({"n": 70}, "counting", 0)  # 17 vectors of four, and two elements left over
_FEW = {"rows": Size(1, 5, (1, 2))}
EXERCISES = {
    one.name: one
    for one in (
        Exercise(
            name="copy_backwards",
            title="Copy backwards",
            make=_backwards,
            sizes={"n": Size(1, 64, (1, 32))},
            kinds=("counting", "normal"),
            example={"n": 32},
            hints=("Thread 0 writes the last element, y[n - 1]. Which one does thread i write?",),
            tutorial=1,
            picture=Picture(writers("y"), "the threads count down, and neighbours are still neighbours"),
        ),
        Exercise(
            name="two_pass",
            title="Mean first, then deviations",
            make=_two_pass,
            sizes={"rows": Size(1, 40, (33,)), "columns": Size(1, 60, (1, 2, 200))},
            example={"rows": 32, "columns": 4},
            hints=("Two loops over the columns: the first one for the mean, the second for (value - mean)².",),
            tutorial=2,
            picture=Picture(readers("x"), "a thread for each row: its number stands in all columns of the row"),
        ),
        Exercise(
            name="merge_groups",
            title="Eight groups become one",
            make=_groups,
            sizes={"sets": Size(1, 40, (1, 33))},
            example={"sets": 32},
            hints=("Begin with the first group, and merge the seven others into it, one after another.",),
            tutorial=3,
            picture=Picture(readers("groups"), "a thread reads its eight groups: 24 numbers side by side"),
        ),
        Exercise(
            name="row_max",
            title="A warp's maximum, by butterfly",
            make=partial(_maxima, kernel="row_max", threads=32),
            sizes=_FEW,
            example={"rows": 1},
            hints=("Take warp_sum_butterfly, and max(a, b) in place of a + b.",),
            costs=(Cost(SHUFFLES, "five for each row", exactly=True), Cost(SHARED_LOADS, "shuffles need no memory")),
            tutorial=4,
            picture=Picture("tree", "five levels; at each of them two lanes keep the larger of their two values"),
        ),
        Exercise(
            name="block_max",
            title="A block's maximum",
            make=partial(_maxima, kernel="block_max", threads=128),
            sizes=_FEW,
            example={"rows": 1},
            hints=("Each warp finds its maximum and leaves it in shared memory; then each thread looks at all four.",),
            costs=(Cost(BARRIERS, "one for each row is enough"),),
            tutorial=5,
            picture=Picture(writers("maxima"), "every thread writes the maximum into its own place"),
        ),
        Exercise(
            name="layer_norm_rows",
            title="LayerNorm with fewer blocks than rows",
            make=_layer_norm_rows,
            sizes={"rows": Size(1, 7, (1, 3, 4)), "columns": Size(1, 130, (1, 2, 65))},
            also=(({"columns": EXACT}, "offset"),),
            example={"rows": 6, "columns": 64},
            hints=(
                "for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x): and the kernel's lines in the loop.",
            ),
            costs=(Cost(BARRIERS, "row_moments brings its own"),),
            tutorial=6,
            picture=Picture(writers("output"), "a colour is a block: each of the three takes every third row"),
        ),
        Exercise(
            name="rms_grad_input",
            title="RMSNorm, backward: the gradient of the input",
            make=_rms_grad_input,
            sizes={"rows": Size(1, 2), "columns": Size(1, 130, (1, 2, 63, 64, 65))},
            example={"rows": 1, "columns": 256},
            hints=("No mean is subtracted in the forward, so there is one sum: that of g x̂, with x̂ = x invvar.",),
            tutorial=7,
            picture=Picture(writers("result"), "neighbouring threads write neighbouring columns"),
        ),
        Exercise(
            name="channel_rms",
            title="RMSNorm over the channels of a pixel",
            make=_channel_rms,
            sizes={"samples": Size(1, 2), "channels": Size(1, 6, (1, 8)), "pixels": Size(1, 70, (1, 33))},
            example={"samples": 1, "channels": 4, "pixels": 64},
            hints=("A thread for each pixel: it walks down the channels, and its neighbour stands on the next pixel.",),
            tutorial=11,
            picture=Picture(writers("y"), "a row is a channel, and neighbouring threads stand on neighbouring pixels"),
        ),
        Exercise(
            name="copy_vectors",
            title="Four at a time, and what is left over",
            make=_copy_vectors,
            sizes=vector_copy.EXERCISE.sizes,
            kinds=vector_copy.EXERCISE.kinds,
            example={"n": 1024},
            hints=("A whole vector is there if i + 4 <= x.shape[0]; else copy element by element.",),
            costs=vector_copy.EXERCISE.costs,
            tutorial=12,
            picture=Picture(readers("x"), "four neighbours for each thread", lambda: _copy_vectors(_SEVENTY)),
        ),
    )
}
