"""Lead each term of docs/understand/glossary.md to the tutorial that introduces it, where the term first stands bold.

A term that no tutorial introduces, and a bold word of a tutorial that is neither in the glossary nor one of EMPHASIS,
stop the build.
"""

import re
import unicodedata
from pathlib import Path

from normlab.learn import tutorials

GLOSSARY = Path(__file__).parents[2] / "docs/understand/glossary.md"
TERM = re.compile(r"(?m)^(\S.*)\n:   (.*)$")
BOLD = re.compile(r"(?<!\*)\*\*(?![\s*])(.+?)\*\*", re.DOTALL)
EMPHASIS = {  # what tutorials print bold, to be read and not to be learned as a term
    *("(mean, m2, count)", "different words of the same bank", "division", "largest", "maximum", "mean"),
    *("more accurate", "negative", "once", "one", "one instruction", "one thread", "output", "parts", "rows", "set s"),
    *("below each other", "beside each other", "eight", "four", "grows", "l2 cache", "long rows", "near 1", "stored"),
    *("one warp and one k", "stretch", "the backward is harder", "transposed", "use lane 0's result", "x̂"),
}


def key(word: str) -> str:
    """Return what a term is compared by: without capitals and without the plural's s."""
    word = " ".join(word.lower().split())
    return word.removesuffix("s") if len(word) > 3 else word


def introduced() -> dict[str, tuple[tutorials.Tutorial, str]]:
    """Return the first tutorial and section in which each bold word stands, or which it is the heading of."""
    found: dict[str, tuple[tutorials.Tutorial, str]] = {}
    for tutorial in tutorials.every():
        section = ""
        for cell in re.split(r"(?m)^(?=# %%)", tutorial.source.read_text(encoding="utf-8")):
            if not cell.startswith("# %% [markdown]"):
                continue
            for part in re.split(r"(?m)^(?=#+ )", re.sub(r"(?m)^# ?", "", cell.split("\n", 1)[1])):
                if heading := re.match(r"#+ (.+)", part):
                    section = heading[1]
                for word in [section, *BOLD.findall(part)]:
                    found.setdefault(key(word), (tutorial, section))
    return found


def anchor(heading: str) -> str:
    """Return a heading's place in its page, as mkdocs names it."""
    letters = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", letters).strip().lower())


def terms(text: str) -> list[str]:
    """Return the glossary's terms."""
    return [term for term, _ in TERM.findall(text)]


def missing(text: str) -> list[str]:
    """Return the terms that no tutorial introduces, and the tutorials' bold words that the glossary lacks."""
    places, known = introduced(), set(map(key, terms(text)))
    bold = {
        key(word)
        for tutorial in tutorials.every()
        for word in BOLD.findall(tutorial.source.read_text(encoding="utf-8").replace("\n# ", "\n"))
    }
    emphasis = set(map(key, EMPHASIS))
    unknown = {word for word in bold - known - emphasis if not word.endswith(".") and not re.search(r"\d", word)}
    return sorted(known - set(places)) + sorted(unknown)


def page(text: str) -> str:
    """Return the glossary with a link for each term.

    Raises:
        ValueError: the glossary and the tutorials do not have the same terms; the text names them.
    """
    if lacks := missing(text):
        raise ValueError(f"in docs/understand/glossary.md or in the tutorials, but not in both: {', '.join(lacks)}")
    places = introduced()

    def link(found: re.Match[str]) -> str:
        tutorial, section = places[key(found[1])]
        address = f"../learn/tutorials/{tutorial.notebook.stem}.md#{anchor(section)}"
        term = f'<span id="{anchor(found[1])}">**{found[1]}**</span>'
        return f"{term}\n:   {found[2]} [Tutorial {tutorial.number}]({address})"

    return TERM.sub(link, text)
