"""Draw what a student's kernel did: which thread wrote or read which element, between which barriers, and the results.

An exercise has a `Picture`, which names one of these functions, and `file_of` makes a file of the figure. Nothing here
runs a kernel: the solution's process sends the arrays, and what `accesses` recorded. Matplotlib is imported where a
picture is drawn, and its `Figure` is used directly, so a notebook's own plots stay as they are.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from normlab.course.exercise import Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 32  # elements in a line of a picture, if the array has one axis
NOTHING, WRONG, INK = "#f2f2f2", "#d62728", "#222222"
BLOCKS = ("#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb", "#fcbba1", "#c7e9c0", "#d9d9d9", "#fee391")
PREFIX = {"write": "wrote", "read": "read"}


@dataclass(frozen=True)
class Seen:
    """The data of a picture: a case, its arrays after the launches, and each launch's accesses (`accesses`)."""

    case: Case
    arrays: dict[str, np.ndarray]
    launches: list[dict[str, Any]]

    @property
    def stopped(self) -> str | None:
        """Return the error that ended a launch, or None."""
        return next((one["stopped"] for one in self.launches if one["stopped"]), None)


Draw = Callable[[Seen], "Figure"]


@dataclass(frozen=True)
class Picture:
    """An exercise's picture: how it is drawn, what to look for in it, and the case if it is not the example's."""

    draw: Draw | str  # one of this file's functions, or "tree", "banks", "sectors": drawn of a trace
    look: str
    case: Callable[[], Case] | None = None


def file_of(figure: "Figure", form: str) -> bytes:
    """Return a figure as the bytes of a file of the form "png" or "svg"."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "normlab"}):
        figure.savefig(stream, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()


# --- who does what ---------------------------------------------------------------------------------------------------


def writers(array: str, **how: Any) -> Draw:
    """Return a function that draws an array's elements with the thread that wrote each; colours tell blocks apart."""
    return partial(_touched, array=array, operation="write", **how)


def readers(array: str, **how: Any) -> Draw:
    """Return a function that draws an array's elements with the thread that read each first."""
    return partial(_touched, array=array, operation="read", **how)


def _touched(seen: Seen, array: str, operation: str, launch: int = 0, label: str = "x") -> "Figure":
    """Draw an array as cells. `label`: how a thread is named, "x" by threadIdx.x, "xy" by both indices."""
    from matplotlib.figure import Figure

    held = seen.launches[launch]
    who = _threads_of(held, array, operation)
    shape = seen.arrays[array].shape
    cells = _cells(shape)
    lines, columns = cells[-1][0] + 1, max(column for _, column in cells) + 1
    figure = Figure(figsize=(min(13.0, 1.6 + 0.36 * columns), 1.3 + 0.32 * lines), layout="constrained")
    axes = figure.subplots()
    blocks = sorted({tuple(block) for block, _ in held["threads"]})
    for element, (line, column) in enumerate(cells):
        threads = who.get(element, [])
        text, colour = "", NOTHING
        if threads:
            block, thread = held["threads"][threads[0]]
            text = ",".join(map(str, thread[:2])) if label == "xy" else str(thread[0])
            colour = BLOCKS[blocks.index(tuple(block)) % len(BLOCKS)]
        several = operation == "write" and len(set(threads)) > 1
        _cell(axes, line, column, text, colour, several)
    word = PREFIX[operation]
    idle = len(held["threads"]) - len({thread for threads in who.values() for thread in threads})
    notes = [f"threadIdx.{' and .'.join(label)} of the thread that {word} each element"]
    notes += [
        f"{len(held['threads'])} threads, {len(blocks)} block{'s'[: len(blocks) > 1]}; {idle} threads {word} none"
    ]
    if len(blocks) > 1:
        notes[0] += ", a colour for each block"
    _finish(axes, f"Who {word} {array}", notes, lines, columns, seen.stopped)
    return figure


def _threads_of(held: dict[str, Any], array: str, operation: str) -> dict[int, list[int]]:
    """Return the threads that did an operation on each element of an array, in their order."""
    numbers = [number for number, (_, name, _) in enumerate(held["arrays"]) if name == array]
    found = defaultdict(list)
    for did, number, element, thread, _ in held["events"]:
        if did == operation and number in numbers:
            found[element].append(thread)
    return found


def _cells(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the line and the column of each element of an array; a long line is folded."""
    columns = shape[-1] if len(shape) > 1 and shape[-1] <= 2 * WIDE else WIDE
    if len(shape) > 1 and shape[-1] > columns:
        folds = -(-shape[-1] // columns)
        return [
            (row * folds + place // columns, place % columns)
            for row in range(int(np.prod(shape[:-1])))
            for place in range(shape[-1])
        ]
    return [divmod(element, columns) for element in range(int(np.prod(shape)))]


def _cell(axes: "Axes", line: float, column: float, text: str, colour: str, wrong: bool = False) -> None:
    from matplotlib.patches import Rectangle

    edge, width = (WRONG, 1.8) if wrong else ("white", 1.0)
    # Not `add_patch`, which moves the axes' limits for each of thousands of cells: `_finish` sets them.
    axes.add_artist(Rectangle((column, line), 1, 1, fc=colour, ec=edge, linewidth=width, zorder=1 + wrong))
    size = 8 if len(text) < 4 else 6
    axes.text(column + 0.5, line + 0.5, text, ha="center", va="center", fontsize=size, color=INK, zorder=3)


def _finish(axes: "Axes", title: str, notes: list[str], lines: float, columns: float, stopped: str | None) -> None:
    axes.set(xlim=(-0.1, columns + 0.1), ylim=(lines + 0.1, -0.1))
    axes.set_title(title, loc="left")
    if stopped:
        notes = [*notes, f"then it stopped: {stopped.splitlines()[0][:90]}"]
    axes.set_xlabel("\n".join(notes), loc="left", fontsize=9)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)


# --- between barriers ------------------------------------------------------------------------------------------------


def phases(array: str, launch: int = 0) -> Draw:
    """Return a function that draws a shared array of block 0: its writers and readers between barriers."""
    return partial(_phases, array=array, launch=launch)


def _phases(seen: Seen, array: str, launch: int) -> "Figure":
    """Draw a line of cells for each phase; an element is red if two threads use it in a phase and one writes it."""
    from matplotlib.figure import Figure

    held = seen.launches[launch]
    numbers = [number for number, (space, name, _) in enumerate(held["arrays"]) if (space, name) == ("shared", array)]
    if not numbers:
        raise ValueError(f"the kernel has no shared array {array!r} that could be drawn")
    elements = int(np.prod(held["arrays"][numbers[0]][2]))
    first = [block == [0, 0, 0] for block, _ in held["threads"]]
    acts: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for did, number, element, thread, phase in held["events"]:
        if number == numbers[0] and first[thread]:
            acts[phase, element].append((did, thread))
    used = sorted({element for _, element in acts})
    shown = used[: 2 * WIDE]
    last = max((phase for phase, _ in acts), default=0)
    figure = Figure(figsize=(min(13.0, 2.6 + 0.36 * max(14, len(shown))), 1.5 + 0.5 * (last + 1)), layout="constrained")
    axes = figure.subplots()
    for phase in range(last + 1):
        for column, element in enumerate(shown):
            _act(axes, phase, column, acts.get((phase, element), []), held)
        axes.text(
            -0.3, phase * 1.3 + 0.5, f"{phase} barrier{'s'[: phase != 1]} passed", ha="right", va="center", fontsize=8
        )
        if phase:
            axes.axhline(phase * 1.3 - 0.15, color=INK, linewidth=2)
    notes = ["w3: thread 3 wrote it; r3: thread 3 read it; r×4: 4 threads read it; a black line is a barrier"]
    notes += ["red: a thread reads or writes what another thread writes, and no barrier lies between"]
    columns = f"{array}, elements {shown[0]} to {shown[-1]} of {elements}" if shown else array
    _finish(axes, f"{columns}, in block 0", notes, 1.3 * last + 1, len(shown), seen.stopped)
    axes.set_xlim(-4.2, max(14, len(shown)) + 0.1)
    return figure


def _act(axes: "Axes", phase: int, column: int, acts: list[tuple[str, int]], held: dict[str, Any]) -> None:
    """Draw what threads did with an element in a phase."""
    wrote = {thread for did, thread in acts if did == "write"}
    read = {thread for did, thread in acts if did == "read"}
    parts = []
    for letter, threads in (("w", wrote), ("r", read)):
        if threads:
            one = held["threads"][min(threads)][1][0]
            parts.append(f"{letter}{one}" if len(threads) == 1 else f"{letter}×{len(threads)}")
    wrong = bool(wrote) and len(wrote | read) > 1
    colour = NOTHING if not parts else "#f7b6b2" if wrong else BLOCKS[1] if wrote else BLOCKS[0]
    _cell(axes, phase * 1.3, column, "\n".join(parts), colour, wrong)


# --- how often, and with what result ---------------------------------------------------------------------------------


def loads(array: str) -> Draw:
    """Return a function that draws how often the first launch loads each element of a matrix in global memory."""
    return partial(_loads, array=array)


def _loads(seen: Seen, array: str) -> "Figure":
    from matplotlib.figure import Figure

    shape = seen.arrays[array].shape
    times = {element: len(who) for element, who in _threads_of(seen.launches[0], array, "read").items()}
    figure = Figure(figsize=(1.6 + 0.36 * shape[1], 1.5 + 0.36 * shape[0]), layout="constrained")
    axes = figure.subplots()
    most = max(times.values(), default=1)
    for element, (line, column) in enumerate(_cells(shape)):
        count = times.get(element, 0)
        shade = 0.95 - 0.6 * count / max(most, 8)
        _cell(axes, line, column, str(count), str(round(shade, 3)) if count else NOTHING)
    total = sum(times.values())
    notes = [
        f"loads of each element from global memory, by all threads; {total} in all, for {int(np.prod(shape))} elements"
    ]
    _finish(axes, f"How often {array} is loaded", notes, shape[0], shape[1], seen.stopped)
    return figure


def labels(title: str, note: str, texts: Callable[[Seen], np.ndarray]) -> Draw:
    """Return a function that draws a matrix of texts in cells; equal texts have one colour."""
    return partial(_labels, title=title, note=note, texts=texts)


def _labels(seen: Seen, title: str, note: str, texts: Callable[[Seen], np.ndarray]) -> "Figure":
    from matplotlib.figure import Figure

    shown = texts(seen)
    kinds = sorted({*shown.flat} - {""})
    figure = Figure(figsize=(1.6 + 0.36 * shown.shape[1], 1.3 + 0.36 * shown.shape[0]), layout="constrained")
    axes = figure.subplots()
    for (line, column), text in np.ndenumerate(shown):
        _cell(axes, line, column, text, BLOCKS[kinds.index(text) % len(BLOCKS)] if text else NOTHING)
    _finish(axes, title, [note], shown.shape[0], shown.shape[1], seen.stopped)
    return figure


def results(title: str, xlabel: str, lines: Callable[[Seen], list["Line"]]) -> Draw:
    """Return a function that draws, for each of `lines`, the right values as a line and the kernel's as points."""
    return partial(_results, title=title, xlabel=xlabel, lines=lines)


@dataclass(frozen=True)
class Line:
    """A line of `results`: its name, places, the right values there, and the kernel's; None: the line is an input."""

    name: str
    x: np.ndarray
    want: np.ndarray
    got: np.ndarray | None = None


def _results(seen: Seen, title: str, xlabel: str, lines: Callable[[Seen], list[Line]]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    missing: Counter[str] = Counter()
    for number, line in enumerate(lines(seen)):
        colour = f"C{number}"
        if line.got is None:
            axes.plot(line.x, line.want, color="grey", linestyle=":", label=line.name)
            continue
        axes.plot(line.x, line.want, color=colour, linewidth=1, label=f"{line.name}: right")
        there = np.isfinite(line.got)
        axes.plot(line.x[there], line.got[there], "o", color=colour, markersize=4, label=f"{line.name}: your kernel's")
        axes.plot(line.x[~there], line.want[~there], "x", color=WRONG, markersize=8)
        missing[line.name] = int((~there).sum())
    axes.set(title=title, xlabel=xlabel)
    notes = [f"{count} values of {name} are NaN or infinite: red crosses" for name, count in missing.items() if count]
    if seen.stopped:
        notes.append(f"it stopped: {seen.stopped.splitlines()[0][:90]}")
    if notes:
        axes.text(0, -0.22, "\n".join(notes), transform=axes.transAxes, fontsize=9, color=WRONG)
    axes.legend(fontsize=8)
    return figure
