"""The site's pages: README, the tutorials' notebooks, and a page of docstrings for every room of normlab.

A hook of mkdocs (`mkdocs.yml` names it). The pages exist while the site is built, and nowhere else.
"""

import ast
import html
import json
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from normlab.learn import tutorials

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put our pages in the place of docs_dir's files, and into the menu; the theme's files stay."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    contents: dict[str, str | bytes] = {"index.md": readme}
    for picture in re.findall(r"!\[.*?\]\((.+?)\)", readme):
        contents[picture] = (ROOT / picture).read_bytes()
    contents["tutorials/index.md"] = tutorial_list()
    for tutorial in tutorials.every():
        contents |= tutorial_pages(tutorial)
    contents["tutorials/INSTRUCTORS.md"] = (tutorials.FOLDER / "INSTRUCTORS.md").read_text(encoding="utf-8")
    contents |= reference_pages()
    for file in ("architecture.md", "house.svg"):
        contents[f"docs/{file}"] = (ROOT / "docs" / file).read_bytes()
    for name in ("style.css", "iframe-worker.js"):
        contents[name] = (HERE / name).read_text(encoding="utf-8")
    pages = [path for path in contents if path.endswith(".md")]
    config.nav = ["index.md", {"Architecture": "docs/architecture.md"}]
    for title in ("Tutorials", "Reference"):
        config.nav.append({title: [path for path in pages if path.startswith(title.lower())]})
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files(theme + [File.generated(config, path, content=content) for path, content in contents.items()])


def on_page_content(content: str, **_: object) -> str:
    """Turn formulas into MathML, which browsers draw without a script."""

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return f'<{found[1]} class="formula">{convert(html.unescape(found[2]), display=display)}</{found[1]}>'

    return FORMULA.sub(mathml, content)


def tutorial_list() -> str:
    """tutorials/README.md, and under it every tutorial with its aim."""
    rows = [
        f"{t.number}. **[{t.title}]({t.notebook.stem}.md)** ({t.minutes} minutes). {t.aim}" for t in tutorials.every()
    ]
    return "\n".join([(tutorials.FOLDER / "README.md").read_text(encoding="utf-8"), *rows])


def tutorial_pages(tutorial: tutorials.Tutorial) -> dict[str, str]:
    """A notebook as Markdown, with its pictures beside it: a text for each path in the site."""
    name = f"tutorials/{tutorial.notebook.stem}"
    pictures: dict[str, str] = {}
    parts = []
    section = ""
    for cell in json.loads(tutorial.notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(prose(source))
            section = [section, *re.findall(r"(?m)^#+ (.+)$", source)][-1]
        elif "google.colab" not in source:  # a page has nothing to install
            parts.append(fenced(source, "python"))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/svg+xml" in data:
                path = f"{name}/{len(pictures) + 1}.svg"
                pictures[path] = "".join(data["image/svg+xml"])
                parts.append(f"![{section}: what the code draws]({Path(path).relative_to('tutorials')})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                printed = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(fenced(printed, "{ .text .no-copy }"))
    return {f"{name}.md": "\n\n".join(parts), **pictures}


def prose(source: str) -> str:
    """A notebook's Markdown as mkdocs has it: links to pages, foldable answers with Markdown inside, no badges."""
    source = re.sub(r"\[!\[(.+?)\]\(.+?\)\]", r"[\1]", source)
    source = re.sub(r"\((\w+)\.ipynb\)", r"(\1.md)", source)
    return source.replace("<details>", '<details markdown="1">')


def fenced(text: str, language: str) -> str:
    """A block of code, or of what code printed."""
    return f"````` {language}\n{text.rstrip()}\n`````"


def reference_pages() -> dict[str, str]:
    """A page for every package: its modules by name, for mkdocstrings to fill in; and a list of the packages."""
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
