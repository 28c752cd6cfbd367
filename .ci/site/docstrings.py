"""The house's docstrings as Markdown has it: doctests are code, a step's facts stand on lines of their own; and what a
package passes on is shown where it is written.

An extension of griffe, which mkdocstrings reads Python with (`mkdocs.yml` names it).
"""

import re

from griffe import Extension, Module, Object


class HouseDocstrings(Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Fence doctests; part the lines that say what a kernel moves, what binds it, and what comes next."""
        if obj.docstring:
            text = re.sub(r"(?m)^>>> .*(\n.+)*", r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^(Moves|Bound by|Measured|Next): ", r"\n**\1:** ", text)

    def on_module_members(self, *, mod: Module, **_: object) -> None:
        """Forget `__all__`: a stage has its place on the page once, under its file."""
        mod.exports = None
