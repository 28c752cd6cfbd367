"""Load the HTML template of a page: `page.html.j2` in the folder of the page's own code."""

from pathlib import Path
from typing import Any


def page_template(folder: Path) -> Any:
    """Return the template of a folder. It escapes all that it is given, and refuses a name that it is not given."""
    # Imported here: results that are only printed, or read as data, need no template engine.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,  # sources and names of arrays come from the user
        undefined=StrictUndefined,  # a misspelt name raises; jinja2 would print nothing in its place
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html.j2")
