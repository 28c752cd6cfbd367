"""Draw a trace in matplotlib; every function returns the Axes it drew in.

`maps` and `arrows` compute the layout of a picture. `requests` and `tree` draw it, and so does the HTML report, which
also draws the heat maps of `grid`. The methods `draw_...` of a `Trace` choose what to draw. matplotlib is imported when
the first picture is drawn.
"""

from normlab.sim.tracing.pictures.comparison import draw_comparison
from normlab.sim.tracing.pictures.requests import draw_banks, draw_sectors
from normlab.sim.tracing.pictures.tree import draw_tree

__all__ = ["draw_banks", "draw_comparison", "draw_sectors", "draw_tree"]
