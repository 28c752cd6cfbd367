"""Compile what solutions call, in the fork server: it imports this module if a whole class is graded.

Numba keeps a device function that it has compiled. So a solution that calls `block_moments` does not compile it anew in
each student's process. It takes a second, which one student who checks one exercise need not wait for.
"""

import gc

from normlab.course import catalogue, reference
from normlab.course.worker import _type_of
from normlab.engine.compile.front_end import refusal


def compile_references() -> None:
    """Compile the reference solution of each exercise, and keep the stages that it calls."""
    for number in catalogue.FILES:
        names: dict = {}
        exec(compile(reference.source(number), f"<{number}>", "exec"), names)
        exercise = catalogue.exercise(number)
        case = exercise.make(exercise.example_case)
        for launch in case.launches:
            arguments = [case.arrays[one] if isinstance(one, str) else one for one in launch.arguments]
            refusal(names[launch.kernel], tuple(map(_type_of, arguments)))


compile_references()
gc.freeze()
