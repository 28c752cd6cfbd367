"""Draw the forward ladder's speed beside PyTorch and a copy, from the records: python docs/ladder.py [OUT.svg]

Without OUT.svg: docs/ladder.svg, the picture of README.md. The paper is transparent and the ink grey, so that the
picture can be read on a light and on a dark page.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from normlab.bench.plots import COLORS, OWN
from normlab.measure.files import record
from normlab.measure.pictures import INK, save, style

OUT = Path(__file__).parent / "ladder.svg"
PEERS = {"torch": "PyTorch", "compile": "torch.compile"}


def bars() -> list[tuple[str, float, str]]:
    """Return a name, the fraction of the copy bandwidth and a color for each bar, from the slowest to the fastest."""
    ladder = record("ladder_forward_h200")
    shape = {name: ladder[name] for name in ("norm", "direction", "n1", "n2")}
    (row,) = (row for row in record(f"norm_{ladder['dtype']}_h200")["rows"] if shape.items() <= row.items())
    steps = [(step["step"], step["of_copy"], OWN) for step in ladder["steps"]]
    peers = [(said, row["contenders"][name]["of_copy"], COLORS[name]) for name, said in PEERS.items()]
    return sorted(steps + peers, key=lambda bar: bar[1])


def draw(out: Path = OUT) -> None:
    """Write the picture."""
    ladder = record("ladder_forward_h200")
    found = bars()
    with style():
        figure = Figure(figsize=(7.2, 3.5), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(found)), [bar[1] for bar in found], color=[bar[2] for bar in found], height=0.72)
        axes.set_yticks(range(len(found)), [bar[0] for bar in found])
        axes.invert_yaxis()
        for position, (_, fraction, _) in enumerate(found):
            axes.text(fraction + 0.012, position, f"{fraction:.2f}", va="center", fontsize=9)
        axes.axvline(1.0, color=INK, linestyle=":", linewidth=1)
        axes.set(xlim=(0, 1.12), xlabel="speed, as a fraction of a copy's: 1 is the speed of the memory")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        title = f"LayerNorm forward, {ladder['n1']:,} × {ladder['n2']:,} {ladder['dtype']}, on an {ladder['gpu']}"
        axes.set_title(f"{title}\nnormlab's steps (orange), one idea each, beside PyTorch", fontsize=9.5)
        save(figure, out)


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:]))
