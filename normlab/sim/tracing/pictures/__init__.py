"""Draw a trace in matplotlib; every function returns the Axes it drew in.

`maps`, `arrows` and `grid` compute the layout of a picture. `requests`, `tree` and `heat` draw it, and so does the HTML
report. The methods `draw_...` of a `Trace` choose what to draw. matplotlib is imported when the first picture is drawn.
"""

from normlab.sim.tracing.pictures.comparison import draw_comparison
from normlab.sim.tracing.pictures.heat import draw_heat
from normlab.sim.tracing.pictures.requests import draw_banks, draw_sectors
from normlab.sim.tracing.pictures.tree import draw_tree

__all__ = ["draw_banks", "draw_comparison", "draw_heat", "draw_sectors", "draw_tree"]
