"""Define what `Trace.play` returns: a recording with its page, for a notebook or a file."""

from html import escape
from pathlib import Path

from normlab.sim.tracing.pictures.words import count
from normlab.sim.tracing.play import latency
from normlab.sim.tracing.play.data import Recording
from normlab.sim.tracing.play.latency import Latencies, Latency

HEIGHT = 760  # pixels of a notebook's frame


class Playback:
    """A recording of one block, which a notebook shows as a page with a slider. `recording` has the plain data."""

    def __init__(self, recording: Recording, latencies: Latencies):
        """Show `recording`, and in its latency view `latencies`."""
        self.recording, self._latencies = recording, latencies

    def latency(self, warp: int | None = None) -> Latency:
        """Return what the model says of a warp, by default that with the most steps: how many warps hide its waits.

        Raises ValueError for a warp that the block does not have.
        """
        return latency.latency(self.recording, self._latencies, warp)

    def save(self, path: str | Path) -> Path:
        """Write one standalone HTML page, and return its path.

        Raises FileNotFoundError where the folder does not exist, IsADirectoryError where `path` is a folder.
        """
        # Here and in `_repr_html_`: the plain data and the model need no template engine.
        from normlab.sim.tracing.play.page import page

        path = Path(path)
        path.write_text(page(self.recording, self.latency()), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, so that its style and keys stay inside of it."""
        from normlab.sim.tracing.play.page import page

        # On one line: in Markdown an empty line would end the HTML.
        source = escape(page(self.recording, self.latency())).replace("\n", "&#10;")
        # `sandbox` lets the page's script run, and keeps it from reaching the notebook.
        return (
            f'<div><iframe title="{escape(repr(self)[1:-1])}" sandbox="allow-scripts" loading="lazy" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0" srcdoc="{source}"></iframe></div>'
        )

    def __repr__(self) -> str:
        """Return the kernel's name, the block, and how much is recorded."""
        one = self.recording
        return f"<Playback of {one.kernel}, block {one.block}: {count(len(one.steps), 'step')}>"
