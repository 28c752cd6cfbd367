"""Add the pages that nobody writes by hand: tutorials, exercises, records, docstrings; and let links lead to them.

A hook of mkdocs (`mkdocs.yml` names it). The pages exist while the site is built, and nowhere else.
"""

import ast
import html
import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import cost_model
import glossary
import learn
import speed
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from normlab.learn.address import repository

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOMES = {**learn.HOMES, "reference/index.md": "normlab"}  # pages, and what in the repository they are made of
BOOST = {  # how much a page counts in a search: a page that says how comes before one that mentions a word
    **{"use/*": 3, "see/*": 3, "speed/*": 2, "learn/exercises/index.md": 4, "reference/*": 0.5, "index.md": 0.5},
    **{"learn/exercises/??_*": 0.7, "speed/cpu.md": 0.7},
}
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!#|[a-z]+:)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages and pictures to docs/, and fill in the menu."""
    made: dict[str, str | bytes] = {**learn.pages(), **speed.pages(), **cost_model.pages(), **reference_pages()}
    for name in ("style.css", "iframe-worker.js"):
        made[name] = (HERE / name).read_text(encoding="utf-8")
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    found = sorted(file.src_uri for file in files.documentation_pages())
    config.nav = menu(config.nav, found)
    return files


def menu(entries: Any, pages: list[str]) -> Any:
    """Return a menu in which every pattern is replaced by the pages of that name that the menu does not have yet."""
    taken = set(re.findall(r"[\w/.-]+\.md", str(entries)))

    def filled(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((title, parts),) = entry.items()
            return [{title: parts if isinstance(parts, str) else [one for part in parts for one in filled(part)]}]
        return [page for page in pages if fnmatch(page, entry) and page not in taken] if "*" in entry else [entry]

    return [one for entry in entries for one in filled(entry)]


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Let links between files of the repository lead to pages; the glossary's terms get theirs."""
    uri = page.file.src_uri
    page.meta["search"] = {"boost": next((much for name, much in reversed(BOOST.items()) if fnmatch(uri, name)), 1)}
    if uri == "understand/glossary.md":
        return glossary.page(markdown)
    if uri == "speed/index.md":
        markdown += speed.links()
    markdown = cost_model.with_picture(markdown)
    home = HOMES.get(uri) or (f"docs/{uri}" if (ROOT / "docs" / uri).exists() else None)
    if home is None:  # a made page, whose links lead to pages anyway
        return markdown
    pages, address = {file.src_uri for file in files}, repository()

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), link[1]))
        inside = destination(target, pages)
        if inside is None and (ROOT / target).exists():
            return f"{address}/blob/main/{target}{link[2] or ''}" if address else "unpublished:"
        if inside is None:
            return link[0]
        path, _, anchor = inside.partition("#")
        relative = posixpath.relpath(path, posixpath.dirname(uri) or ".")
        return relative + (link[2] or (f"#{anchor}" if anchor else ""))

    return re.sub(r"\[([^\[\]]*)\]\(unpublished:\)", r"\1", LINK.sub(lead, markdown))


def destination(target: str, files: set[str]) -> str | None:
    """Return the site's page, with an anchor, for a path in the repository; None if it has no page."""
    if target.startswith("docs/") and target.removeprefix("docs/") in files:
        return target.removeprefix("docs/")
    for page, home in HOMES.items():
        if target.rstrip("/") in (home, home.replace(".ipynb", ".py")):
            return page
    module = target.removesuffix("/__init__.py").removesuffix(".py").rstrip("/").replace("/", ".")
    if f"reference/{module}.md" in files:
        return f"reference/{module}.md"
    package, _, name = module.rpartition(".")
    if target.endswith(".py") and f"reference/{package}.md" in files and not name.startswith("_"):
        return f"reference/{package}.md#{module}"
    return None


def on_page_content(content: str, **_: object) -> str:
    """Turn formulas into MathML, which browsers draw without a script."""

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return f'<{found[1]} class="formula">{convert(html.unescape(found[2]), display=display)}</{found[1]}>'

    return FORMULA.sub(mathml, content)


def reference_pages() -> dict[str, str]:
    """Return a page for every package: its modules by name, for mkdocstrings to fill in; and a list of the packages."""
    contents = {"reference/index.md": "# Reference\n\nWhat the docstrings say, a page for each room of the house.\n"}
    for start in sorted((ROOT / "normlab").rglob("__init__.py")):
        package = ".".join(start.parent.relative_to(ROOT).parts)
        modules = [path.stem for path in sorted(start.parent.glob("*.py")) if not path.stem.startswith("_")]
        parts = [f"# {package}", f"::: {package}\n    options: {{show_root_heading: false}}"]
        parts += [f"::: {package}.{module}" for module in modules]
        contents[f"reference/{package}.md"] = "\n\n".join(parts)
        docstring = ast.get_docstring(ast.parse(start.read_text(encoding="utf-8"))) or ""
        summary = " ".join(docstring.split("\n\n")[0].split())
        contents["reference/index.md"] += f"\n- [{package}]({package}.md). {summary}"
    return contents
