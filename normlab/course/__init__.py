"""The course: exercises along the path from one value to whole kernels, graded without a GPU.

`catalogue` lists them: `exercises/` is what a student gets, `checks/` how each is checked, in the words of `exercise`
and `data`. `grading` grades one file: `rules` by its source, then `process` and `worker` run it apart, and `failure`
says what is wrong; `hidden` adds an instructor's own checks. `folder` is a student's copy, `classroom` a class's.
`normlab course` (cli/course.py) is the door to all of it.
"""
