"""Draw which thread gives values to which in a block, step by step: for a reduction, its tree."""

from typing import TYPE_CHECKING, Any

from normlab.sim.tracing.flows import Flows
from normlab.sim.tracing.pictures import ink
from normlab.sim.tracing.pictures.arrows import Tree, tree
from normlab.sim.tracing.pictures.words import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WARP = 32
MANY = 64  # threads: with more of them, arrows are finer
Segment = tuple[tuple[float, float], tuple[float, float]]  # (thread, step) where a line begins, and where it ends


def draw_tree(
    flows: Flows,
    kernel: str,
    steps: range | int | None = None,
    threads: range | int | None = None,
    ax: "Axes | None" = None,
    to: int | None = None,
) -> "Axes":
    """Draw which thread gives values to which in the first block, in `ax` or a figure of its own.

    Threads stand along x, time runs down: a step ends where threads meet, at a shuffle, a vote or a barrier. An arrow
    goes from the thread that gives a value to the one that gets it; dashed and blue by shuffle, solid and red through
    shared memory; short and dotted, from or to a thread that is not shown. A thick line across is a barrier, between
    the writes before it and the reads after it; dotted lines down delimit warps. `steps`, `threads`: which to show, an
    int for the first so many. `to`: a thread; only arrows that lead to it are drawn.
    """
    seen = tree(flows, steps, threads, to)
    ax = ink.axes(ax, 10.5, min(12.0, 2.6 + 0.6 * len(seen.steps)))
    # Of the heads, in points; the widths of lines and the dots follow from it.
    size = 6.5 if len(seen.threads) <= MANY else 3.6
    _draw_threads(ax, seen)
    for by_shuffle, colour, style in ((True, ink.DARK, (0, (5, 1.6))), (False, ink.ALERT, "solid")):
        arrows = [arrow for arrow in seen.arrows if (arrow.by == "shuffle") is by_shuffle]
        if arrows:
            names = sorted({arrow.by for arrow in arrows})
            label = "shuffle" if by_shuffle else f"through shared memory ({', '.join(names)})"
            lines: list[Segment] = [((arrow.source, arrow.start), (arrow.target, arrow.end)) for arrow in arrows]
            _draw_arrows(ax, lines, lines, lines, label, colour, style, size)
    _draw_crossing(ax, seen, size)
    # Half a step up: between the writes of the step before, and the reads of the step that the barrier begins.
    for number, step in enumerate(seen.barriers):
        label = "_another" if number else "barrier of the block"
        ax.axhline(step - 0.5, color=ink.TEXT, linewidth=2.2, gid="barrier", label=label)
    # The first border after the first thread that is shown, which may be in the middle of a warp.
    for border in range(seen.threads.start // WARP * WARP + WARP, seen.threads.stop, WARP):
        ax.axvline(border - 0.5, color=ink.TEXT, linewidth=0.8, linestyle=":", gid="warp")
    _label(ax, seen)
    block = count(flows.threads, "thread")
    told = "who gives values to whom" if to is None else f"which values come to thread {to}, and by which threads,"
    ink.title(ax, f"{kernel}: {told} in the first block, of {block}", seen.numbers, room=True)
    for handle in filter(None, ink.legend(ax, 3).legend_handles):
        handle.set(linewidth=2, alpha=1)  # lines of a crowd are too faint for a legend
    return ax


def _draw_threads(ax: "Axes", seen: Tree) -> None:
    """Draw a line down for every thread, from its first value given or received to its last."""
    # Not over the whole picture, so that it shows which threads have done their part, as in a reduction.
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    for arrow in seen.arrows:
        for thread, step in ((arrow.source, arrow.start), (arrow.target, arrow.end)):
            begin[thread] = min(begin.get(thread, step), step)
            end[thread] = max(end.get(thread, step), step)
    ax.vlines(list(begin), list(begin.values()), list(end.values()), color=ink.GRID, linewidth=0.8, zorder=0)


def _draw_arrows(
    ax: "Axes",
    lines: list[Segment],
    dots: list[Segment],
    heads: list[Segment],
    label: str,
    colour: str,
    style: Any,
    size: float,
) -> None:
    """Draw arrows of one kind: a line each, a dot where those among `dots` begin, a head where those of `heads` end."""
    from matplotlib.collections import LineCollection

    # One collection for all lines, because a block may have 20,000 arrows, and each artist of its own takes time.
    shafts = LineCollection(lines, colors=colour, linestyles=style, linewidths=size / 6, label=label, zorder=2)
    # Where many lines cross, half transparent ones show how many.
    shafts.set_alpha(1.0 if len(lines) < 400 else 0.5)
    shafts.set_gid(label)
    ax.add_collection(shafts)
    # Sets, because arrows that begin or end at one place share a dot or a head.
    for marker, places in (("o", {line[0] for line in dots}), ("v", {line[1] for line in heads})):
        # `scatter` takes areas in points squared. A dot gets half, so that heads stand out.
        area = size**2 / (2 if marker == "o" else 1)
        x, y = zip(*places, strict=True) if places else ((), ())
        ax.scatter(x, y, marker=marker, s=area, color=colour, linewidth=0, zorder=3)


def _draw_crossing(ax: "Axes", seen: Tree, size: float) -> None:
    """Draw half of each arrow from or to a thread that is not shown, leaning to that thread's side."""
    # A fixed share of the picture's width, whatever the number of threads.
    lean = len(seen.threads) / WARP
    coming: list[Segment] = []
    going: list[Segment] = []
    for source, target, start, end, *_ in seen.crossing:
        aside = lean if source > target else -lean
        # 0.4 of a step long, and not as far as the thread that is not shown, which may be any number of threads away.
        if target in seen.threads:
            coming.append(((target + aside, end - 0.4), (target, end)))
        else:
            going.append(((source, start), (source - aside, start + 0.4)))
    if seen.crossing:
        label = "from or to a thread not shown"
        _draw_arrows(ax, coming + going, going, coming, label, ink.TEXT, (0, (1, 1)), size)


def _label(ax: "Axes", seen: Tree) -> None:
    """Number threads, warps and steps, as densely as the picture has space for."""
    count_of, first = len(seen.threads), seen.threads.start
    # Powers of two, because threads and strides of reductions are.
    # At most 20 of them fit along the axis.
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128) if count_of <= 20 * step)
    # Multiples of `every`, whichever thread is the first.
    ax.set_xticks(range(-(-first // every) * every, seen.threads.stop, every))
    every = -(-len(seen.steps) // 20)
    ax.set_yticks(range(seen.steps.start, seen.steps.stop, every))
    ax.set_xlim(first - 0.8, seen.threads.stop - 0.2)
    ax.set_ylim(seen.steps.stop - 0.6, seen.steps.start - 0.4)
    warps = range(first // WARP, (seen.threads.stop - 1) // WARP + 1)
    ink.labels(ax, "thread of the block" + " (dotted: borders of warps)" * (len(warps) > 1), "step")
    every = -(-len(warps) // 16)
    for warp in warps[::every]:
        # The middle of the part that is shown, if the first or the last warp is cut.
        middle = (max(first, WARP * warp) + min(seen.threads.stop, WARP * (warp + 1)) - 1) / 2
        text = f"warp {warp}" if len(warps) <= 8 else str(warp) if warp else "warp 0"
        ax.text(middle, 1.01, text, transform=ax.get_xaxis_transform(), ha="center", fontsize=ink.SMALL, color=ink.TEXT)
