"""The house's docstrings as Markdown has it; and what a package passes on is shown where it is written.

An extension of griffe, which mkdocstrings reads Python with (`mkdocs.yml` names it).
"""

import re

from griffe import Extension, Module, Object


class HouseDocstrings(Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Paragraph by paragraph."""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(markdown, obj.docstring.value.split("\n\n")))

    def on_module_members(self, *, mod: Module, **_: object) -> None:
        """Forget `__all__`: a stage has its place on the page once, under its file."""
        mod.exports = None


def markdown(paragraph: str) -> str:
    """Doctests in a fence; indented formulas, and the lines with a step's facts, parted from the words before them."""
    if ">>> " in paragraph:
        return re.sub(r"(?m)^>>> .*(\n.+)*", r"```pycon\n\g<0>\n```", paragraph)
    paragraph = re.sub(r"(?m)^(?!\s|[A-Z]\w+:$)(.+)\n(?=    )", r"\1\n\n", paragraph)
    return re.sub(r"(?m)^(Moves|Bound by|Measured|Next): ", r"\n**\1:** ", paragraph)
