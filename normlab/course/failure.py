"""Explain what went wrong with a solution, in words that teach. `grading` calls this file, which runs no kernel."""

import ast
import linecache
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from normlab.course import given
from normlab.course.exercise import BUSIEST, BUSIEST_LOADS, BUSIEST_SHARED, WORDS, Answer, Budget, Case, Cost, Drawn
from normlab.course.process import StoppedError
from normlab.oracle.check import elementwise_ratios
from normlab.sim import METRICS

WARP = 32  # threads
SHOWN = 40  # elements of an input that a message prints at most
UNEVEN = 1.4  # in a right solution the busiest thread may store a row's statistics, too; twice a thread's work is 2
PRINTED = 10  # lines of a kernel's printed output that a message shows
# The kinds of the sanitizer's findings, each cause before its possible consequences.
FIRST = [
    "barrier-divergence",
    "deadlock",
    "lock-order",
    "shuffle-mask",
    "out-of-bounds",
    "negative-index",
    "uninitialized-read",
    "race",
]


@dataclass(frozen=True)
class Failure:
    """What went wrong: a kind, one clear line, the line of the student's file, and more lines that explain.

    `element`: the array and the index of a wrong value. `printed`: the kernel's printed output. `excess`: how many
    times as much as allowed, or in `uneven` as is fair, an exceeded budget takes.
    """

    kind: str
    headline: str
    line: int | None = None
    details: tuple[str, ...] = ()
    element: tuple[str, tuple[int, ...]] | None = None
    printed: str = ""
    excess: float = 0.0

    def explained(self, *more: str) -> "Failure":
        """Return the failure with more details."""
        return replace(self, details=(*self.details, *more))


class Spent(NamedTuple):
    """A cost of a right solution: its name, how much of it was counted, and the budget."""

    words: str
    counted: int
    allowed: int


class Source(NamedTuple):
    """A student's source: its text, the name of its file, and the exercise that it was made from."""

    text: str
    file: str
    skeleton: str


class FailureError(Exception):
    """Raised by a step of a check, with the failure that it found."""

    def __init__(self, failure: Failure):
        """Keep `failure`."""
        super().__init__(failure.headline)
        self.failure = failure


ENDLESS = "took too long: is there an endless loop, or a thread that waits for what no other writes?"


def stopped(error: StoppedError, late: str = ENDLESS) -> Failure:
    """Return a failure that says why a solution did not finish; `late`: what to say if its time was up."""
    headline = {
        "time": late,
        "memory": f"took too much memory: {error.text}",
        "exit": f"left by {error.text}; a kernel returns",
    }.get(error.kind, error.text)
    advice = []
    if "NoneType" in error.text:
        advice = ["a function that ends without a return gives None: does every way through yours return?"]
    elif "'array'" in error.text or "array element with a sequence" in error.text:
        advice = ["an array is no number: a thread takes an element of it, by its index"]
    elif "Dim3" in error.text:
        advice = ["threadIdx, blockIdx, blockDim and gridDim have three numbers: add .x, .y or .z"]
    notes = () if error.kind == "time" else error.notes  # the thread that ran at that moment
    return Failure(error.kind, headline, error.line, (*notes, *advice))


def found(findings: list[dict[str, Any]], case: Case, source: Source) -> Failure:
    """Return a failure that explains the sanitizer's most basic finding.

    On a small input only lanes of one warp may race, and the finding then advises a warp's barrier. If a launch has
    several warps, the advice becomes a block's barrier.
    """
    finding = min(findings, key=lambda one: FIRST.index(one["kind"]))
    advice = finding["advice"]
    if max(np.prod(launch.block) for launch in case.launches) > WARP:
        advice = advice.replace("cuda.syncwarp()", "cuda.syncthreads()")
    if finding["kind"] == "out-of-bounds":
        advice += ", if the index itself is right"
    where = f" on {finding['space']} {finding['array']}{finding['index']}" if finding["array"] else ""
    acts = [act for act in (finding["first"], finding["second"]) if act]
    line = next((act["line"] for act in acts if act["file"] == source.file), None)
    told = [f"{act['operation']} by {_thread(act)}{_place(act, source.file)}" for act in acts]
    if line is None and (calling := given.calling_lines(source.text, _function_at(acts[0]))):
        line = calling[0]
        told.append(f"called at line {' or '.join(map(str, calling))} of your file")
    return Failure(finding["kind"], f"{finding['kind']}{where}: {advice}", line, tuple(told))


def _function_at(act: dict[str, Any]) -> str:
    """Return the name of the function in which an act's line stands, or "" if its source cannot be read."""
    tree = ast.parse("".join(linecache.getlines(act["file"]))) if act["file"] else ast.Module([], [])
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if node.lineno <= act["line"] <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: node.lineno).name if around else ""


def at_loop(failure: Failure, source: Source) -> Failure:
    """Return the failure of a launch that took too long, at its loop: where in it the launch was stopped is chance."""
    if failure.kind != "time" or failure.line is None:
        return failure
    return replace(failure, line=given.loop_of(source.text, failure.line))


def in_own_lines(failure: Failure, source: Source) -> Failure:
    """Return the failure of a file that ran, with the student's last line if none is known and one function is new.

    So a number of blocks that makes a launch impossible or too large points to the function that computes it.
    """
    if failure.line is not None or failure.kind not in ("values", "exception", "budget", "time"):
        return failure
    owned = given.own_lines(source.text, source.skeleton)
    return replace(failure, line=owned[0].last) if len(owned) == 1 else failure


def changed_input(name: str, source: Source) -> Failure:
    """Return a failure that says that the kernel changed an input, and at which line."""
    line = next(iter(given.storing_lines(source.text, name)), None)
    return Failure("input", f"{name} is an input, and was changed: a kernel writes to its results only", line)


def wrong_value(name: str, got: np.ndarray, want: Answer) -> Failure | None:
    """Return a failure that names the first element that is off by more than its bound; None if there is none."""
    value, bound = (np.broadcast_to(part, got.shape) for part in want)
    held = got if got.dtype.kind == "f" else got.astype(np.float64)  # exact for an int32
    wrong = np.argwhere(~(elementwise_ratios(held, value, bound) <= 1))
    if not len(wrong):
        return None
    index = tuple(map(int, wrong[0]))
    headline = f"{name}[{', '.join(map(str, index))}]: expected {value[index]:.9g}, got {got[index]:.9g}"
    detail = f"{len(wrong)} of {got.size} elements of {name} are wrong"
    if not np.isnan(value[index]):
        detail += f"; this one may be off by {bound[index]:.2g}"
    return Failure("values", headline, None, (detail,), (name, index))


def written(failure: Failure, writer: dict[str, Any] | None, source: Source) -> Failure:
    """Return the failure of a wrong value, with the thread that wrote the value and the line.

    If a given line stores a value that the student's lines have made, the failure points to the student's lines.
    """
    if writer is None:
        return _unwritten(failure.explained("no thread wrote it"), source)
    line = writer["line"] if writer["file"] == source.file else None
    failure = replace(failure, line=line).explained(f"written by {_thread(writer)}{_place(writer, source.file)}")
    if line and given.is_apart(source.text, source.skeleton, line):
        return _unwritten(failure, source)
    own = given.made_by(source.text, source.skeleton, line) if line else None
    if line is None or own is None:
        return failure
    lines = f"line {own.first}" if own.first == own.last else f"lines {own.first} to {own.last}"
    made = given.made_at(source.text, own, line)
    return replace(failure, line=made).explained(f"made by your {lines}, in {own.function}")


def _unwritten(failure: Failure, source: Source) -> Failure:
    """Return the failure of a value that no line of the student has written, with a line that stores into its array."""
    assert failure.element is not None, "a wrong value is an array's element"
    name, index = failure.element
    element = f"{name}[{', '.join(map(str, index))}]"
    if stores := given.storing_lines(source.text, name):
        text = f"line {stores[-1]} of your file stores into {name}: no thread comes there for {element}"
        return replace(failure, line=stores[-1]).explained(text)
    owned = given.own_lines(source.text, source.skeleton)
    return replace(failure, line=owned[-1].last if owned else None).explained(f"no line of yours stores into {name}")


def on_input(failure: Failure, drawn: Drawn, case: Case, source: Source) -> Failure:
    """Return a failure with its input and the kernel's printed output added."""
    inputs = [(name, array) for name, array in case.arrays.items() if name not in case.fresh and array.size <= SHOWN]
    lines = [f"  {line}" for line in failure.printed.splitlines()[:PRINTED]]
    return failure.explained(
        f"smallest failing input found: {drawn}",
        *(f"  {name} = {value:.6g}" for name, value in _numbers(case, source).items()),
        *(f"  {name} = {_text(array)}" for name, array in inputs),
        *(["your kernel printed:", *lines] if lines else []),
    )


def _numbers(case: Case, source: Source) -> dict[str, Any]:
    """Return the numbers that the launches pass, such as eps, under the names that the exercise's kernels give them."""
    functions = {node.name: node for node in ast.parse(source.skeleton).body if isinstance(node, ast.FunctionDef)}
    return {
        parameter.arg: value
        for launch in case.launches
        for parameter, value in zip(functions[launch.kernel].args.args, launch.arguments, strict=True)
        if isinstance(value, int | float | np.generic)
    }


def refused(told: dict[str, Any]) -> Failure:
    """Return a failure that says why Numba does not compile a kernel."""
    why = f"so {told['kernel']} does not compile for a GPU, though it ran here: Numba compiles a part of Python only"
    return Failure("compiler", told["text"], told["line"], (why,))


def costs_more(
    limits: Iterable[Cost], costs: list[dict[str, Any]], reference: list[dict[str, Any]], drawn: Drawn, source: Source
) -> Failure | None:
    """Return a failure that names the cost that is furthest above the reference solution's; None if no cost is.

    If no cost is above it, the failure names a cost that must be equal and is below. `uneven` looks at single threads.
    """
    found = []
    for cost in (one for one in limits if one.metric not in BUSIEST):
        counted, at_most = _summed(costs, cost.metric), cost.at_most(partial(_summed, reference))
        if counted > at_most or (counted < at_most and cost.exactly):
            found.append((counted / max(at_most, 0.5), cost, counted, at_most))
    if not found:
        return None
    excess, cost, counted, at_most = max(found, key=lambda one: one[0])
    limit = f"exactly {at_most:,} needed" if cost.exactly else f"at most {at_most:,} allowed"
    headline = f"{counted:,} {_words(cost.metric)}, {limit}: {cost.why}"
    return replace(_over(headline, cost.metric, costs, reference, drawn, source), excess=excess)


def spent(limits: Iterable[Cost], costs: list[dict[str, Any]], reference: list[dict[str, Any]]) -> tuple[Spent, ...]:
    """Return a solution's costs beside their limits, except costs that are 0 in both."""
    needed = partial(_summed, reference)
    found = [Spent(_words(cost.metric), _summed(costs, cost.metric), cost.at_most(needed)) for cost in limits]
    return tuple(one for one in found if one.counted or one.allowed)


def over_budget(budget: Budget, costs: list[dict[str, Any]], drawn: Drawn, source: Source) -> Failure | None:
    """Return a failure that names a teacher's budget that is exceeded; None if it is kept."""
    counted = _summed(costs, budget.metric)
    if counted <= budget.at_most:
        return None
    headline = f"{counted:,} {_words(budget.metric)}, at most {budget.at_most:,} allowed: {budget.why}"
    return _over(headline, budget.metric, costs, [], drawn, source)


def uneven(
    limits: Iterable[Cost], costs: list[dict[str, Any]], reference: list[dict[str, Any]], drawn: Drawn, source: Source
) -> Failure | None:
    """Return a failure that names a thread that does much more of a launch's work than it should; else None.

    Of global memory a thread may touch UNEVEN times as many elements as any thread of the reference solution does. It
    may load up to twice as many if all threads of the launch do: in a second walk, which begins at a row's other end, a
    thread meets elements that are new to it. Of shared memory a thread may make twice as many accesses as its block's
    threads make on average. The `times` of a cost in `limits` replaces UNEVEN.
    """
    times = {cost.metric: cost.times for cost in limits}
    for mine, needed in zip(costs, reference, strict=True):
        for metric, who in mine["busiest"].items():
            fair = int(times.get(metric, UNEVEN) * needed["metrics"][metric])
            if metric == BUSIEST_SHARED:
                fair = max(fair, int(2 * who["average"]) + 4)
            at_most = fair
            if metric == BUSIEST_LOADS and metric in needed["busiest"]:
                by_all = who["of_launch"] / needed["busiest"][metric]["of_launch"]
                # Rounded: by_all is 1.97 in such a walk, because some threads meet an element again.
                at_most = round(fair * min(max(by_all, 1), 2))
            if who["count"] > at_most:
                headline = f"{who['count']} {WORDS[metric]}, at most {at_most} allowed: let all threads share the work"
                place = next((one for one in who["lines"] if one["file"] == source.file), {"line": None})
                told = f"by {_thread(who)}{_place(who | place, source.file)}" if place["line"] else f"by {_thread(who)}"
                details = told, f"counted on {drawn}"
                # In times of `fair`, so that a thread that walks alone is named before the traffic that its walk makes.
                return Failure("budget", headline, place["line"], details, excess=who["count"] / max(fair, 0.5))
    return None


def told(failure: Failure, file: str) -> str:
    """Return a failure as plain text: its headline, with the line in `file`, then its details.

    What a student's code prints or says may have control characters, which a terminal would obey.
    """
    where = f" ({file}:{failure.line})" if failure.line else ""
    text = "\n".join([f"{failure.headline}{where}", *(f"  {line}" for line in failure.details)])
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def _summed(costs: list[dict[str, Any]], metric: str) -> int:
    return sum(one["metrics"][metric] for one in costs)


def _words(metric: str) -> str:
    return WORDS.get(metric) or METRICS[metric].short


def _over(
    headline: str,
    metric: str,
    costs: list[dict[str, Any]],
    reference: list[dict[str, Any]],
    drawn: Drawn,
    source: Source,
) -> Failure:
    """Return the failure of an exceeded limit, with the line that spends most beyond what the reference spends there.

    So the failure does not name a given line for costs that the reference solution has there, too. If functions that
    the student's lines call spend everything, the failure names the call of the function that spends most.
    """
    failure = Failure("budget", headline, None, (f"counted on {drawn}",))
    spent: Counter[str] = Counter()
    for line in (line for one in reference for line in one["lines"]):
        spent[line["text"].strip()] += line["metrics"].get(metric, 0)
    lines = [line for one in costs for line in one["lines"] if line["metrics"].get(metric)]
    own = [line for line in lines if line["file"] == source.file]
    worst = max(own or lines, key=lambda line: line["metrics"][metric] - spent[line["text"].strip()], default=None)
    if worst is None:
        return failure
    number, of = worst["line"], ""
    if not own:
        calling = given.calling_lines(source.text, _function_at(worst))
        of, number = f" of {worst['file'].rsplit('/', 1)[-1]}, which you call", calling[-1] if calling else None
    detail = f"{worst['metrics'][metric]:,} of them at line {worst['line']}{of}: {worst['text']}"
    return replace(failure, line=number).explained(detail)


def _thread(who: dict[str, Any]) -> str:
    return f"block {tuple(who['block'])}, warp {who['warp']}, lane {who['lane']}"


def _place(who: dict[str, Any], file: str) -> str:
    """Return the line of an access as text: a line of the student's file, or of a file that it calls."""
    if who["line"] is None:
        return ""
    of = "" if who["file"] == file else f" of {who['file'].rsplit('/', 1)[-1]}, which you call"
    return f", at line {who['line']}{of}" + (f": {who['text']}" if "text" in who else "")


def _text(array: np.ndarray) -> str:
    return np.array2string(array, max_line_width=100, precision=6, separator=", ").replace("\n", "\n      ")
