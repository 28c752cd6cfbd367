"""Draw one request: its sectors of global memory, or its banks of shared memory."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from normlab.sim.tracing.model import BANKS, SECTOR
from normlab.sim.tracing.pictures import ink
from normlab.sim.tracing.pictures.maps import BankMap, bank_map, sector_map
from normlab.sim.tracing.pictures.words import count, maker, subject
from normlab.sim.tracing.request import Request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANES = 32


def draw_sectors(request: Request, ax: "Axes | None" = None) -> "Axes":
    """Draw which lane accesses which bytes of which 32-byte sector, in `ax` or a figure of its own.

    A column is a sector, a row a lane; the dark bar is what the lane wants of the sector, at its place within.
    """
    from matplotlib.collections import PolyCollection

    seen = sector_map(request)
    columns = len(seen.sectors)
    ax = ink.axes(ax, min(11.0, 6.0 + 0.2 * columns), 6.4)
    inactive = sorted(set(range(LANES)) - set(request.lanes))
    touched = sorted({(piece.lane, piece.column) for piece in seen.pieces})
    pale, dark = {"facecolor": ink.PALE}, {"facecolor": ink.DARK}
    # One collection of polygons per look: thousands of single patches would take seconds to draw.
    # Later layers cover earlier ones: the bytes used lie on the sectors moved. The last two are a row below all lanes,
    # with the bytes that any lane wants: what is pale there moves for nothing. Matplotlib leaves a label that begins
    # with "_" out of the legend, which has the looks of these two rows already.
    layers: list[tuple[str, dict[str, Any], list]] = [
        ("lane not active", ink.ABSENT, [(0, lane, columns, 1) for lane in inactive]),
        ("sector moved", pale, [(column, lane, 1, 1) for lane, column in touched]),
        ("bytes used", dark, [(p.column + p.start / SECTOR, p.lane, p.size / SECTOR, 1) for p in seen.pieces]),
        ("_moved by any lane", pale, [(column, LANES + 0.5, 1, 1.5) for column in range(columns)]),
        ("_used by any lane", dark, [(c + byte / SECTOR, LANES + 0.5, n / SECTOR, 1.5) for c, byte, n in seen.used]),
    ]
    for label, look, boxes in layers:
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
        # An empty collection would still have an entry in the legend.
        if boxes:
            look = {"edgecolor": "white", "linewidth": 0.4, **look}
            ax.add_collection(PolyCollection(corners, label=label, gid=label, **look))
    gap = ""
    for border, (sector, following) in enumerate(pairwise(seen.sectors), start=1):
        # Sectors that were not touched are left out, and a dotted line says so.
        if following == sector + 1:
            ax.axvline(border, color=ink.GRID, linewidth=0.6)
        else:
            ax.axvline(border, color=ink.TEXT, linewidth=1.3, linestyle=":", gid="gap")
            gap = " (dotted: a gap)"
    # At most 16 labels along the axis: more would overlap.
    step = -(-columns // 16)
    ax.set_xticks([column + 0.5 for column in range(0, columns, step)], [str(n) for n in seen.sectors[::step]])
    ax.set_yticks([*(lane + 0.5 for lane in range(0, LANES, 4)), LANES + 1.25], [*map(str, range(0, LANES, 4)), "all"])
    ax.set_xlim(0, columns)
    ax.set_ylim(LANES + 2, 0)
    ink.labels(ax, f"32-byte sector of {request.array!r}, counted from the array's first{gap}", "lane")
    ink.title(ax, subject(request), f"{maker(request)}: {seen.numbers}")
    ink.legend(ax, 3)
    return ax


def draw_banks(request: Request, ax: "Axes | None" = None) -> "Axes":
    """Draw which lane accesses a word of which bank of shared memory, in `ax` or a figure of its own.

    A dot is a word that a lane wants. A ring is a word that several lanes want and get together (broadcast or
    multicast). A square stands where lanes want different words of one bank in one phase, a conflict: the number in
    it is the wavefront that serves the word. Lanes of 8 and 16 bytes go by phases, half or quarter warps.
    """
    seen = bank_map(request)
    ax = ink.axes(ax, 8.2, 7.4)
    kinds = {
        "a word of its own": [punch for punch in seen.punches if punch.lanes == 1 and not punch.contested],
        "a word for several lanes": [punch for punch in seen.punches if punch.lanes > 1 and not punch.contested],
        "conflict: number of the wavefront": [punch for punch in seen.punches if punch.contested],
    }
    looks: list[dict[str, Any]] = [
        {"marker": "o", "s": 62, "color": ink.DARK},
        {"marker": "o", "s": 62, "facecolor": "white", "edgecolor": ink.DARK, "linewidth": 2.2},
        {"marker": "s", "s": 105, "facecolor": "white", "edgecolor": ink.ALERT, "linewidth": 1.6},
    ]
    inactive = sorted(set(range(LANES)) - set(request.lanes))
    for lane in inactive:
        # One entry in the legend, whatever the number of lanes.
        label = "lane not active" if lane == inactive[0] else None
        ax.axhspan(lane - 0.5, lane + 0.5, linewidth=0, zorder=0, label=label, gid="lane not active", **ink.ABSENT)
    for (label, punches), look in zip(kinds.items(), looks, strict=True):
        if punches:
            places = [punch.bank for punch in punches], [punch.lane for punch in punches]
            ax.scatter(*places, label=label, gid=label, zorder=3, **look)
    # Counted from 1, as the number of wavefronts that is written beside the phase.
    for punch in kinds["conflict: number of the wavefront"]:
        ax.text(
            punch.bank,
            punch.lane,
            str(punch.turn + 1),
            ha="center",
            va="center",
            fontsize=7.5,
            color=ink.TEXT,
            zorder=4,
        )
    _draw_phases(ax, seen)
    ax.set_xticks(range(0, BANKS, 4))
    ax.set_yticks(range(0, LANES, 4))
    ax.set_xticks(range(BANKS), minor=True)
    ax.set_yticks(range(LANES), minor=True)
    ax.grid(which="both", color=ink.GRID, linewidth=0.4)
    ax.set_axisbelow(True)
    ax.set_xlim(-0.7, BANKS - 0.3)
    ax.set_ylim(LANES - 0.4, -0.6)  # lane 0 at the top, as in the picture of sectors
    ink.labels(ax, "bank (4 bytes wide)", "lane")
    ink.title(ax, subject(request), f"{maker(request)}: {seen.numbers}")
    ink.legend(ax, 4)
    return ax


def _draw_phases(ax: "Axes", seen: BankMap) -> None:
    """Delimit the phases, and write at each how many wavefronts it takes."""
    lanes_per_phase = seen.lanes_per_phase
    # Lanes of 4 bytes or fewer have one phase, which needs neither a border nor a name.
    for phase, wavefronts in seen.passes.items():
        top = phase * lanes_per_phase - 0.5
        if phase:
            ax.axhline(top, color=ink.TEXT, linewidth=1.2, linestyle="--")
        name = f"phase {phase + 1}: " if lanes_per_phase < LANES else ""
        ax.annotate(
            f"{name}{count(wavefronts, 'wavefront')}",
            (1.01, top + lanes_per_phase / 2),
            xycoords=("axes fraction", "data"),
            rotation=-90,
            va="center",
            fontsize=ink.SMALL,
            color=ink.TEXT,
        )
