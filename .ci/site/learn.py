"""Make pages of the tutorials' notebooks and of the course's exercises; each leads to the others that belong to it.

A tutorial's last section says "exercise 6" for each exercise that practises it; the links are made from these words.
"""

import ast
import json
import re
from functools import cache
from pathlib import Path

from normlab.course import catalogue
from normlab.learn import tutorials
from normlab.learn.tutorials import Tutorial

ROOT = Path(__file__).parents[2]
EXERCISE = re.compile(r"\b([Ee]xercise)\s(\d+)\b")
HOMES = {  # a page of the site, and the repository's file that it is made of
    "learn/index.md": "tutorials/README.md",
    "learn/instructors.md": "tutorials/INSTRUCTORS.md",
    "learn/exercises/index.md": "normlab/course/exercises",
    **{f"learn/tutorials/{t.notebook.stem}.md": f"tutorials/{t.notebook.name}" for t in tutorials.every()},
    **{f"learn/exercises/{p.stem}.md": f"normlab/course/exercises/{p.name}" for p in catalogue.FILES.values()},
}


def pages() -> dict[str, str]:
    """Return the text of each page and picture, by its path in the site."""
    found = {
        "learn/index.md": tutorial_list(),
        "learn/exercises/index.md": exercise_list(),
        "learn/instructors.md": (tutorials.FOLDER / "INSTRUCTORS.md").read_text(encoding="utf-8"),
    }
    for tutorial in tutorials.every():
        found |= tutorial_page(tutorial)
    for number in catalogue.FILES:
        found[f"learn/exercises/{catalogue.FILES[number].stem}.md"] = exercise_page(number)
    return found


@cache
def practised(tutorial: Tutorial) -> tuple[str, ...]:
    """Return the numbers, such as "06", of the exercises that a tutorial's last section names."""
    text = tutorial.source.read_text(encoding="utf-8").replace("\n# ", " ")
    section = re.split(r"#+ Exercise\b", text)[-1]
    return tuple(dict.fromkeys(f"{int(found):02}" for _, found in EXERCISE.findall(section)))


def exercise_link(number: str, folder: str) -> str:
    """Return a link to an exercise's page, from a page of the folder `folder`."""
    exercise = catalogue.exercise(number)
    return f"[{int(number)}. {exercise.title}]({folder}{catalogue.FILES[number].stem}.md)"


def tutorial_link(tutorial: Tutorial, folder: str) -> str:
    """Return a link to a tutorial's page, from a page of the folder `folder`."""
    return f"[{tutorial.number}. {tutorial.title}]({folder}{tutorial.notebook.stem}.md)"


def tutorial_list() -> str:
    """Return the page of all tutorials: aims, times, and the exercises of each."""
    start = (tutorials.FOLDER / "README.md").read_text(encoding="utf-8").replace("# Tutorials", "# Learn", 1)
    start = re.sub(r"(?s)<!-- tutorial list: begin -->.*end -->\n", "", start)  # below, with aims and exercises
    rows = []
    for t in tutorials.every():
        practice = " · ".join(exercise_link(number, "exercises/") for number in practised(t))
        rows.append(
            f"**{tutorial_link(t, 'tutorials/')}** ({t.minutes} minutes)\n\n"
            f":   {t.aim}\n\n    Practise: {practice or 'what the tutorial itself asks'}\n"
        )
    return "\n".join([start, "\n## The tutorials, in order\n", *rows])


def exercise_list() -> str:
    """Return the page of all exercises, each with its tutorials."""
    rows = []
    for number in catalogue.FILES:
        taught = ", ".join(tutorial_link(t, "../tutorials/") for t in tutorials.every() if number in practised(t))
        rows.append(f"- **{exercise_link(number, '')}**<br>after tutorial {taught}")
    return "\n".join(
        [
            "# Exercises\n",
            f"{len(catalogue.FILES)} exercises, from Welford's step to a tiled matrix product. They need no GPU.\n",
            "```bash\nnormlab course start my_course   # lays the exercises out, a file each\ncd my_course\n"
            "normlab course check 1           # says what is wrong, where, and for which input\n"
            "normlab course hint 1            # gives a hint, and each time another one\n"
            "normlab course progress          # lists what is left\n```\n",
            *rows,
        ]
    )


def exercise_page(number: str) -> str:
    """Return an exercise's page: its task, its file, how to check it, its hints, and the tutorials before it."""
    text = catalogue.skeleton(number)
    task = (ast.get_docstring(ast.parse(text)) or "").split("\n", 1)[1].strip()
    code = text.split('"""', 2)[2].strip()
    taught = [tutorial_link(t, "../tutorials/") for t in tutorials.every() if number in practised(t)]
    hints = [
        f'<details markdown="1"><summary>Hint {count}</summary>\n\n{hint}\n</details>'
        for count, hint in enumerate(catalogue.exercise(number).hints, start=1)
    ]
    return "\n\n".join(
        [
            f"# Exercise {int(number)}. {catalogue.exercise(number).title}",
            f"**Before.** Tutorial {' and '.join(taught)}",
            task,
            f"## Your file\n\n`normlab course start my_course` puts `{catalogue.FILES[number].name}` into a folder:",
            fenced(code, "python"),
            f"## Check it\n\n```bash\nnormlab course check {int(number)}\n```",
            "## Hints\n\nOpen them one at a time.",
            *hints,
        ]
    )


def tutorial_page(tutorial: Tutorial) -> dict[str, str]:
    """Return a notebook as Markdown, with its pictures beside it: a text for each path in the site."""
    name = f"learn/tutorials/{tutorial.notebook.stem}"
    pictures: dict[str, str] = {}
    parts = []
    section = ""
    for cell in json.loads(tutorial.notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(prose(source, tutorial))
            section = [section, *re.findall(r"(?m)^#+ (.+)$", source)][-1]
        elif "google.colab" not in source:  # a page has nothing to install
            parts.append(fenced(source, "python"))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/svg+xml" in data:
                path = f"{name}/{len(pictures) + 1}.svg"
                pictures[path] = "".join(data["image/svg+xml"])
                parts.append(f"![{section}: what the code draws]({Path(path).relative_to('learn/tutorials')})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                printed = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(fenced(printed, "{ .text .no-copy }"))
    return {f"{name}.md": "\n\n".join(parts), **pictures}


def prose(source: str, tutorial: Tutorial) -> str:
    """Return a notebook's Markdown as mkdocs has it: links to exercises, foldable answers, no badges."""
    source = re.sub(r"\[!\[.+?\]\(.+?\)\]\((.+?)\)", r"[Open it in Colab](\1)", source)
    source = source.replace("<details>", '<details markdown="1">')
    if practised(tutorial):
        practice = " · ".join(exercise_link(number, "../exercises/") for number in practised(tutorial))
        source = re.sub(r"(?m)^\*\*Time\.\*\* .+$", rf"\g<0>\n\n**Exercises.** {practice}", source)
    return EXERCISE.sub(_to_exercise, source)


def _to_exercise(found: re.Match[str]) -> str:
    file = catalogue.FILES.get(f"{int(found[2]):02}")
    return f"[{found[0]}](../exercises/{file.stem}.md)" if file else found[0]


def fenced(text: str, language: str) -> str:
    """Return a block of code, or of what code printed."""
    return f"````` {language}\n{text.rstrip()}\n`````"
