"""Write one HTML page of a class: histograms, who is stuck where, common mistakes, and each student's feedback.

The page needs no network and no server. Names and messages come from students, so the template escapes them, and the
page's own policy lets a browser run its one script only.
"""

import hashlib
from base64 import b64encode
from pathlib import Path

from normlab.course import catalogue, overview
from normlab.course.failure import told
from normlab.course.overview import STATES, Student
from normlab.course.ranking import METRICS
from normlab.sim.tracing.report.template import page_template

FOLDER = Path(__file__).parent / "class_page"
SHOWN = 40  # mistakes that the page lists; each student's feedback has the others


def page(graded: list[Student], seed: int, ranked: bool) -> str:
    """Return the page's HTML."""
    from markupsafe import Markup  # imported here: a class that is only printed needs no template engine

    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    mistakes = overview.mistakes(graded)
    return page_template(FOLDER).render(
        style=Markup(style),
        script=Markup(script),
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        zip=zip,
        graded=graded,
        figures=overview.figures(graded),
        seed=seed,
        summaries=overview.summaries(graded),
        states=STATES,
        state=overview.state,
        failures=overview.failures,
        files={number: path.name for number, path in catalogue.FILES.items()},
        told=told,
        mistakes=mistakes[:SHOWN],
        more=len(mistakes[SHOWN:]),
        rankings=overview.rankings(graded) if ranked else {},
        columns=list(METRICS),
    )
