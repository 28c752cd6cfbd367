"""The course: exercises that lead from one value to whole kernels, graded without a GPU.

`catalogue` lists the exercises. A student gets the files in `exercises/`; the modules in `checks/` describe how each is
checked, with the classes of `exercise` and `data`. `grading` grades one file: `rules` checks its source, `process` and
`worker` run it in a separate process, and `failure` says what is wrong. `hidden` adds an instructor's own checks.
`folder` manages a student's folder, and `classroom` grades a class. The command is `normlab course` (cli/course/).
`check` grades a kernel from a notebook's cell or a script (`notebook`).
"""

from typing import Any

__all__ = ["check"]


def check(kernel: Any, name: str, seed: int = 0) -> Any:
    """Check a kernel as an exercise; return a result that shows itself, in a notebook with a picture.

    kernel: what @cuda.jit makes, or a tuple if the exercise asks for several functions; the functions and numbers that
    it names come along. For a tutorial's question: the answer. name: the exercise's name or number, such as "map" or 1,
    or that of a tutorial's own exercise. seed: of the drawn inputs; the same seed draws the same.

    The result is true if all checks have passed. Otherwise it names what is wrong, the line, and the smallest failing
    input. Raises ValueError for an unknown exercise, or for a kernel with other parameters than the exercise's;
    TypeError for what is no kernel.

    >>> from normlab import course
    >>> from normlab.engine import cuda, float32
    >>> @cuda.jit
    ... def double(x, y):
    ...     i = cuda.threadIdx.x
    ...     y[i] = float32(2) * x[i]
    >>> course.check(double, "map").passed
    True
    """
    from normlab.course.notebook import checked

    return checked(kernel, str(name), seed)
