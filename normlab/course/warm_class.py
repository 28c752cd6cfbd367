"""Run what solutions call, in the fork server: it imports this module if a whole class is graded.

Numba keeps a device function that it has compiled, and the simulator one that it has rewritten. So a solution that
calls `block_moments` does neither anew in each student's process. It takes 3 s, which one student who checks
one exercise need not wait for.
"""

import gc

from normlab.course import catalogue, process, reference, worker


def run_references() -> None:
    """Run the reference solution of each exercise as the grader does, and keep the stages that it calls."""
    for number in catalogue.FILES:
        names: dict = {}
        exec(compile(reference.source(number), f"<{number}>", "exec"), names)
        exercise = catalogue.exercise(number)
        for watch in ("compile", "sanitize", "costs"):
            header, arrays = process.request(exercise.make(exercise.example_case), watch)
            worker.launch_all(names, header, arrays, [])


run_references()
gc.collect()  # of the arrays of the launches nothing stays
gc.freeze()
