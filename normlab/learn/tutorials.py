"""The notebooks in tutorials/: what there is, and how they are executed. Called by `normlab tutorials` and the tests.

Each is kept twice. `NN_name.py`, in jupytext's py:percent form, is what people write and review; `NN_name.ipynb` is
made from it, with its outputs, for people who read. A tutorial's first cell says what it is for, what comes before and
how long it takes; the list is made from these cells.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlab.learn.address import open_in_colab, repository

CHECKOUT, INSTALLED = Path(__file__).parents[2] / "tutorials", Path(__file__).parents[1] / "notebooks"
FOLDER = CHECKOUT if CHECKOUT.is_dir() and not INSTALLED.is_dir() else INSTALLED  # a wheel has them in the package
LONGEST = 90.0  # seconds that a notebook may take in the simulator, on two cores
HEADER = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+?)\n.*?"
    r"\*\*Aim\.\*\* (?P<aim>.+?)\n\n"
    r"\*\*Before\.\*\* (?P<before>.+?)\n\n"
    r"\*\*Time\.\*\* (?P<minutes>\d+) minutes\.",
    re.DOTALL,
)
EMPTY_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class TutorialError(Exception):
    """A tutorial is not there, is not what it should be, or fails; the message says which and why."""


@dataclass(frozen=True)
class Tutorial:
    """One of them. `source`: its .py file; `minutes`: for a reader."""

    number: int
    title: str
    aim: str
    before: str
    minutes: int
    source: Path

    @property
    def notebook(self) -> Path:
        """The .ipynb file."""
        return self.source.with_suffix(".ipynb")


def header(source: Path) -> Tutorial:
    """Read a tutorial's first cell. Raises TutorialError where it lacks something."""
    cells = re.split(r"(?m)^# %%.*\n", source.read_text(encoding="utf-8"))
    found = HEADER.search(re.sub(r"(?m)^# ?", "", cells[1] if len(cells) > 1 else ""))
    if found is None:
        raise TutorialError(f"{source.name}: the first cell needs a title '# N. …', Aim, Before and Time")
    told = {name: " ".join(value.split()) for name, value in found.groupdict().items()}
    return Tutorial(int(told["number"]), told["title"], told["aim"], told["before"], int(told["minutes"]), source)


def every(folder: Path = FOLDER) -> list[Tutorial]:
    """Return all tutorials, in order. Raises TutorialError where there are none."""
    found = sorted(folder.glob("[0-9][0-9]_*.py"))
    if not found:
        raise TutorialError(f"no tutorials in {folder}: they come with normlab's repository, and with its wheel")
    return [header(source) for source in found]


def chosen(numbers: list[int], folder: Path = FOLDER) -> list[Tutorial]:
    """Return the tutorials of these numbers, or all. Raises TutorialError for a number that there is not."""
    there = {tutorial.number: tutorial for tutorial in every(folder)}
    for number in numbers:
        if number not in there:
            raise TutorialError(f"no tutorial {number}: there are {', '.join(map(str, there))}")
    return [there[number] for number in numbers] if numbers else list(there.values())


def copy(tutorial: Tutorial, folder: Path) -> tuple[Path, bool]:
    """Copy a notebook into a reader's folder; return the copy, and whether it is as new. A changed one stays.

    A link to another tutorial, which need not be in the folder, is given the command that gets it.
    Raises TutorialError where `folder` is the tutorials' own, whose files are not the reader's.
    """
    path = folder / tutorial.notebook.name
    if path.exists() and path.samefile(tutorial.notebook):
        raise TutorialError(f"{folder} is where normlab keeps its tutorials: go to a folder of your own")
    text = re.sub(
        r"\]\((\d\d)_\w+\.ipynb\)",
        lambda link: f"{link[0]} (`normlab tutorials {int(link[1])}`)",
        tutorial.notebook.read_text(encoding="utf-8"),
    )
    if path.exists():
        return path, path.read_text(encoding="utf-8") == text
    path.write_text(text, encoding="utf-8")
    return path, True


def read(source: Path) -> Any:
    """Return the notebook of a .py file, without outputs; it opens in Colab if the repository has an address."""
    import jupytext

    notebook = jupytext.read(source)
    if home := repository():
        open_in_colab(notebook, source.with_suffix(".ipynb").name, home)
    notebook.metadata = EMPTY_METADATA
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return notebook


def execute(tutorial: Tutorial) -> tuple[Any, float]:
    """Run a tutorial from top to bottom in a new kernel. Returns the notebook with outputs, and seconds.

    Raises TutorialError with the traceback of the first cell that fails.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = read(tutorial.source)
    began = time.perf_counter()
    try:
        NotebookClient(notebook, timeout=int(2 * LONGEST), kernel_name="python3", coalesce_streams=True).execute(
            cwd=str(FOLDER)
        )
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise TutorialError(f"{tutorial.source.name} fails:\n{error}") from None
    seconds = time.perf_counter() - began
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each cell ran
        for output in cell.get("outputs", []):
            if output.output_type == "stream":  # a report's file names, without where this clone happens to lie
                output.text = output.text.replace(f"{FOLDER.parent}/", "")
    notebook.metadata = EMPTY_METADATA
    return notebook, seconds


def build(tutorial: Tutorial) -> float:
    """Execute a tutorial, write its .ipynb, and return the seconds that it took."""
    import nbformat

    notebook, seconds = execute(tutorial)
    nbformat.write(notebook, tutorial.notebook)
    return seconds


def checked(tutorial: Tutorial, write: bool) -> tuple[float, list[str]]:
    """Execute a tutorial, and write its notebook if told to; return the seconds, and what is wrong with it.

    Raises TutorialError as `execute`.
    """
    from normlab.engine import gpu_available  # here, because it imports a compiler

    seconds = build(tutorial) if write else execute(tutorial)[1]
    problems = differences(tutorial)
    if seconds > LONGEST and not gpu_available():
        problems.append(f"took {seconds:.0f} s, more than {LONGEST:.0f}")
    return seconds, problems


def differences(tutorial: Tutorial) -> list[str]:
    """Say where .py and .ipynb do not agree, or the latter was not run from top to bottom; empty if all is well."""
    import nbformat

    if not tutorial.notebook.exists():
        return [f"{tutorial.notebook.name} is missing"]
    made, kept = read(tutorial.source), nbformat.read(tutorial.notebook, as_version=4)
    if len(made.cells) != len(kept.cells):
        return [f"{tutorial.source.name} has {len(made.cells)} cells, {tutorial.notebook.name} {len(kept.cells)}"]
    found = []
    run = 0
    for number, (one, other) in enumerate(zip(made.cells, kept.cells, strict=True), start=1):
        if (one.cell_type, one.source) != (other.cell_type, other.source):
            found.append(f"cell {number} differs: {tutorial.source.name} and {tutorial.notebook.name}")
        if other.cell_type == "code":
            run += 1
            if other.execution_count != run:
                found.append(f"cell {number} of {tutorial.notebook.name} was not run in its turn")
            if any(output.output_type == "error" for output in other.outputs):
                found.append(f"cell {number} of {tutorial.notebook.name} ended with an error")
    return found
