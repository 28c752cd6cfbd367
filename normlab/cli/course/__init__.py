"""`normlab course`: start, check, hint, progress, grade."""

import typer

from normlab.cli.course.check import check
from normlab.cli.course.grade import grade
from normlab.cli.course.hint import hint
from normlab.cli.course.progress import progress
from normlab.cli.course.start import start

course = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@course.callback()
def about() -> None:
    """Exercises from one value to whole kernels, checked on any laptop: what is wrong, where, and for which input."""


course.command(short_help="Lay the exercises out in a folder.")(start)
course.command(short_help="Grade one exercise, or all that are begun.")(check)
course.command(short_help="A hint, and each time another one.")(hint)
course.command(short_help="What is solved, what is left.")(progress)
course.command(short_help="For instructors: grade a folder of students.")(grade)
