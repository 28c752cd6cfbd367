"""See the time of one block, statement by statement: `trace(kernel, play=0)[grid, block](…).play()`.

- `player`: the observer. It keeps a `track` of each thread of the block: its statements (language/steps.py marks
  them), their accesses and meetings, and the values of its variables.
- `replay` joins the tracks to the steps of warps; `data` holds them.
- `latency` models how many warps hide the waits of one.
- `page`, with page.html.j2, page.css and page.js: the slider through it all. `playback` is what a user has in hand.
"""

from normlab.sim.tracing.play.data import Meeting, Recording, Standing, Step
from normlab.sim.tracing.play.latency import Latencies, Latency
from normlab.sim.tracing.play.playback import Playback

__all__ = ["Latencies", "Latency", "Meeting", "Playback", "Recording", "Standing", "Step"]
