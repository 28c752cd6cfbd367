"""What is profiled, and which of ncu's rows is whose; without ncu or a GPU."""

import re

import numpy as np
import pytest

from hardware.profile import KERNELS, matched, problems
from hardware.sweep import Scratch, Task
from normlab.bench.problem import EPS
from normlab.host.arrays import FLOATS
from normlab.kernels import BackwardProblem, ForwardProblem
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.forward import step_7_clusters

# direction, norm, dtype, saved, n1 (None: as many as make up 2^27 elements), n2: cells that miss their bar
MISSED = {
    *(("backward", "layer", "float16", saved, None, n2) for saved in ("input", "output") for n2 in (8192, 65536)),
    *(("forward", "rms", "float32", "input", None, n2) for n2 in (2048, 4096, 16384, 65536)),
    ("backward", "rms", "float32", "input", None, 8192),
    ("forward", "rms", "float16", "input", None, 8192),
    ("forward", "layer", "float16", "input", None, 1024),
    *(("backward", norm, "float32", "input", 1, 262144) for norm in ("layer", "rms")),
    ("forward", "layer", "float32", "input", 1, 262144),
}


def launched(task):
    """The names of what a task's step launches, in order; nothing is run."""
    names, rms, dtype, problem = [], task.norm == "rms", FLOATS[task.dtype], task.problem
    x, weight = np.empty((problem.n1, problem.n2), dtype), np.empty(problem.n2, dtype)
    invvar = np.empty(problem.n1, np.float32)
    bias, mean = (None, None) if rms else (weight, invvar)

    def launch(kernel, *rest, **how):
        names.append(kernel.py_func.__name__)

    if task.direction == "forward":
        step_7_clusters.STEP.run(launch, Scratch, ForwardProblem(x, weight, bias, np.float32(EPS), x, mean, invvar))
    else:
        me = task.memory_efficient
        how = None if me else mean, invvar, weight, bias, np.float32(EPS), rms, me, x, weight, bias
        step_3_pipelined.STEP.run(launch, Scratch, BackwardProblem(x, x, *how))
    return names


def test_cells_that_miss_their_bar_are_profiled_in_their_own_dtype_and_rows():
    profiled = {(one.direction, one.norm, one.dtype, one.saved, one.n1, one.n2) for one in problems()}
    assert profiled >= MISSED
    assert len(profiled) == len(problems()) == 19 + len(MISSED)


def test_a_task_has_as_many_rows_as_it_says_or_those_of_a_large_array():
    task = Task("backward", "rms", "float32", "input", 2**18, None)
    assert (task.problem.n1, task.problem.n2, task.problem.dtype) == (512, 2**18, "float32")
    assert task._replace(n1=1).problem.n1 == 1
    assert task._replace(n2=2**28).problem.n1 == 1


@pytest.mark.parametrize("task", problems(), ids=lambda one: "-".join(map(str, one[:5])))
def test_a_task_launches_one_kernel_that_ncu_is_told_to_look_at(task):
    """Else the rows would be taken for those of another task."""
    seen = [name for name in launched(task) if re.search(KERNELS.removeprefix("regex:"), name)]
    assert len(seen) == 1
    assert task.direction in seen[0]


def test_of_a_backward_s_rows_the_forward_s_is_left_out():
    forward, backward, other = (
        Task(direction, "layer", "float16", "input", 8192, None) for direction in ("forward", "backward", "backward")
    )
    rows = [(f"step::{name}", {"number": place}) for place, name in enumerate(
        ("forward_clusters", "forward_one_barrier", "backward_pipelined", "forward_one_barrier", "backward_fused")
    )]  # fmt: skip
    found = matched([forward, backward, other], rows)
    assert [(task, row[1]["number"]) for task, row in found] == [(forward, 0), (backward, 2), (other, 4)]
    with pytest.raises(ValueError, match=r"ncu's rows end before Task\(direction='backward', norm='layer'"):
        matched([forward, backward, other], rows[:4])
