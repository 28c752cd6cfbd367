"""Collect the source of a launch for a page: every function with an active line, with coloured syntax."""

import io
import keyword
import linecache
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from normlab.sim.language.source import NO_SOURCE, Line, definitions_in, file_name, source_of, tree_of


@dataclass(frozen=True)
class Section:
    """The lines of one function: (line, HTML of its text)."""

    file: str
    lines: list[tuple[Line, Markup]]

    @property
    def heading(self) -> str:
        """The path, or the name of the notebook cell, with a note if there is no source."""
        name = file_name(self.file)
        # `file_name` gives a notebook cell's name, which IPython's own path of the cell does not end with.
        path = self.file if self.file.endswith(name) else name
        return path if linecache.getlines(self.file) else f"{path} {NO_SOURCE}"


def sections(kernel_file: str, first_line: int, lines: Iterable[Line]) -> list[Section]:
    """Return the kernel that begins at `first_line`, then the other functions around `lines`, by file and line."""
    # The kernel's first line is among them, so that its source is shown even if nothing happened in it.
    active: dict[str, set[int]] = {kernel_file: {first_line}}
    for line in lines:
        active.setdefault(line.file, set()).add(line.number)
    extents = [(file, first, last) for file, numbers in active.items() for first, last in _functions(file, numbers)]
    # False sorts before True, so the kernel comes first.
    extents.sort(key=lambda extent: (extent[:2] != (kernel_file, first_line), extent))
    return [Section(file, _lines(file, first, last)) for file, first, last in extents]


def _functions(file: str, numbers: set[int]) -> list[tuple[int, int]]:
    """Return the first and last line of the innermost function around each of `numbers`."""
    defined = definitions_in(tree_of(source_of(file))).items()
    extents = [(first, node.end_lineno or node.lineno) for (_, first), node in defined]
    # Of nested functions around a line the innermost begins last, which `max` finds.
    around = {max((one for one in extents if one[0] <= number <= one[1]), default=None) for number in numbers}
    if None in around:  # a lambda, or no source: what lies between the first and the last line that did something
        return [(min(numbers), max(numbers))]
    return sorted(extent for extent in around if extent)


def _lines(file: str, first: int, last: int) -> list[tuple[Line, Markup]]:
    """Return lines of a file without their common indentation."""
    # Tabs become blanks here and in `_coloured`, so that columns mean the same in both.
    texts = [linecache.getline(file, number).rstrip("\n").expandtabs() for number in range(first, last + 1)]
    shared = min((len(text) - len(text.lstrip()) for text in texts if text.strip()), default=0)
    coloured = _coloured(file)
    return [
        (Line(file, number), _html(text, shared, coloured.get(number, [])))
        for number, text in enumerate(texts, start=first)
    ]


def _html(text: str, begin: int, spans: list[tuple[int, int, str]]) -> Markup:
    """Return a line from column `begin` on, as HTML with its spans (first column, last column, class) marked."""
    pieces: list[Markup] = []
    # `begin` moves on: a span may begin in the indentation that is cut off, as in a docstring of several lines.
    for first, last, kind in spans:
        pieces += [
            escape(text[begin:first]),
            Markup('<i class="{}">{}</i>').format(kind, text[max(begin, first) : last]),
        ]
        begin = max(begin, last)
    return Markup("").join([*pieces, escape(text[begin:])])


def _coloured(file: str) -> dict[int, list[tuple[int, int, str]]]:
    """Return (first column, last column, class) of the comments, strings, numbers and keywords in each line."""
    found: dict[int, list[tuple[int, int, str]]] = {}
    source = source_of(file).expandtabs()
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = _kind(token)
            if not kind:
                continue
            (first, begin), (last, end) = token.start, token.end
            # Only a string may have several lines. Its span goes from column 0, except in the first line, to the line's
            # end, except in the last; `len(source)` is beyond any line's end.
            for number in range(first, last + 1):
                span = begin if number == first else 0, end if number == last else len(source), kind
                found.setdefault(number, []).append(span)
    except (tokenize.TokenError, SyntaxError):  # no Python: what was found before the error keeps its colours
        pass
    return found


def _kind(token: tokenize.TokenInfo) -> str:
    """Return the CSS class that colours a token, or "" for a token that keeps the text's colour."""
    name = tokenize.tok_name[token.type]
    if name == "NAME":
        return "keyword" if keyword.iskeyword(token.string) else ""
    # From Python 3.12 on an f-string is several tokens, FSTRING_START and others; before, it is one STRING.
    return {"COMMENT": "comment", "STRING": "string", "NUMBER": "number"}.get(
        name, "string" if "FSTRING" in name else ""
    )
