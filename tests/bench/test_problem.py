import torch

from normlab.bench.problem import ELEMENTS, WIDTHS, Problem, problems


def test_bytes_count_each_array_once():
    for dtype, itemsize in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)):
        assert Problem("layer", "forward", dtype, 3, 5).bytes == 2 * 15 * itemsize
        assert Problem("rms", "backward", dtype, 3, 5).bytes == 3 * 15 * itemsize
        assert Problem("rms", "backward", dtype, 3, 5).array_bytes == 15 * itemsize


def test_rows_make_up_the_elements_unless_they_are_given():
    drawn = problems(["layer"], ["forward"], ["float32"], [], list(WIDTHS))
    assert [problem.n2 for problem in drawn] == list(WIDTHS)
    assert all(0 <= ELEMENTS - problem.n1 * problem.n2 < problem.n2 for problem in drawn)
    (small,) = problems(["layer"], ["forward"], ["float32"], [], [100], 30)
    assert small.n1 == 1
    shapes = [(one.n1, one.n2) for one in problems(["rms"], ["backward"], ["float16"], [1, 16], [64, 128])]
    assert shapes == [(1, 64), (16, 64), (1, 128), (16, 128)]


def test_a_table_s_rows_stand_together():
    every = problems(["layer", "rms"], ["forward", "backward"], ["float16", "float32"], [2], [8, 16])
    assert len(every) == len(set(every)) == 16
    assert [(one.direction, one.norm) for one in every[::4]] == [
        ("forward", "layer"), ("forward", "rms"), ("backward", "layer"), ("backward", "rms"),
    ]  # fmt: skip


def test_data_are_the_same_every_time_and_of_the_problem_s_dtype():
    for norm, bias in (("layer", True), ("rms", False)):
        problem = Problem(norm, "backward", "bfloat16", 3, 64)
        data, again = problem.draw("cpu"), problem.draw("cpu")
        assert (data.bias is not None) == bias
        assert len(data.parameters) == 1 + bias
        for array, other in zip(
            (data.x, data.grad_output, *data.parameters), (again.x, again.grad_output, *again.parameters), strict=True
        ):
            assert array.dtype == torch.bfloat16
            assert torch.equal(array, other)
        assert data.x.shape == data.grad_output.shape == (3, 64)
        assert not torch.equal(data.x, data.grad_output)
        assert 0.5 <= data.weight.min() <= data.weight.max() <= 1.5
