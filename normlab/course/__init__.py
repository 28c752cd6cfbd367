"""The course: exercises that lead from one value to whole kernels, graded without a GPU.

`catalogue` lists the exercises. A student gets the files in `exercises/`; the modules in `checks/` describe how each is
checked, with the classes of `exercise` and `data`. `grading` grades one file: `rules` checks its source, `process` and
`worker` run it in a separate process, and `failure` says what is wrong. `hidden` adds an instructor's own checks.
`folder` manages a student's folder, and `classroom` grades a class. The command is `normlab course` (cli/course.py).
"""
