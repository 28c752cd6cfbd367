"""What the site makes of tutorials, course and records: links both ways, a whole glossary, every record on a page."""

import ast
import re
import sys
from pathlib import Path

import pytest

from normlab.course import catalogue
from normlab.kernels import LADDERS
from normlab.learn import tutorials
from normlab.measure import files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / ".ci/site"))
import cost_model  # noqa: E402
import glossary  # noqa: E402
import learn  # noqa: E402
import speed  # noqa: E402

sys.path.remove(str(ROOT / ".ci/site"))

GLOSSARY = glossary.GLOSSARY.read_text(encoding="utf-8")


def test_every_exercise_leads_to_a_tutorial_and_that_tutorial_leads_back():
    pages = learn.pages()
    for number, file in catalogue.FILES.items():
        page = pages[f"learn/exercises/{file.stem}.md"]
        taught = re.findall(r"\.\./tutorials/(\w+)\.md", page)
        assert taught, f"no tutorial's last section names exercise {int(number)}"
        assert all(f"../exercises/{file.stem}.md" in pages[f"learn/tutorials/{name}.md"] for name in taught)


def test_the_tutorial_that_an_exercise_names_names_the_exercise():
    practised = {tutorial.number: learn.practised(tutorial) for tutorial in tutorials.every()}
    named = {number: catalogue.exercise(number).tutorial for number in catalogue.FILES}
    assert [number for number, tutorial in named.items() if number not in practised[tutorial]] == []


def test_every_tutorial_practises_an_exercise():
    assert [tutorial.number for tutorial in tutorials.every() if not learn.practised(tutorial)] == []


def test_the_glossary_has_the_terms_of_the_tutorials_and_no_others():
    assert glossary.missing(GLOSSARY) == []
    assert glossary.terms(GLOSSARY) == sorted(glossary.terms(GLOSSARY), key=str.lower)


@pytest.mark.parametrize(
    ("term", "place"), [("bank conflict", "05_block.md#banks"), ("warp", "01_threads.md#32-threads-are-a-warp")]
)
def test_a_term_leads_to_the_place_that_introduces_it(term, place):
    line = re.search(rf"(?m)^.*\*\*{term}\*\*.*\n:   .*$", glossary.page(GLOSSARY))[0]
    assert f"(../learn/tutorials/{place})" in line


def test_docstrings_have_no_brackets_that_the_site_takes_for_a_link():
    """`states["s0"][i]` outside of backticks is a link to `i`, which the strict build then misses."""
    found = []
    for file in sorted((ROOT / "normlab").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                prose = re.sub(r"(?m)`[^`]*`|^ *>>> .*$|^    .*$", "", ast.get_docstring(node) or "")
                found += [f"{file.relative_to(ROOT)}: {link}" for link in re.findall(r"\w+\[[^]]*\]\[.*?\]", prose)]
    assert found == []


def test_a_term_that_no_tutorial_introduces_is_named_and_so_is_one_that_the_glossary_lacks():
    assert glossary.missing(f"{GLOSSARY}\nquark\n:   A particle.\n") == ["quark"]
    assert glossary.missing(GLOSSARY.replace("\nrace\n:   ", "\nwave\n:   ")) == ["race"]


def test_every_record_stands_on_a_page_with_its_command():
    text = "\n".join(page for path, page in speed.pages().items() if path.endswith(".md"))
    for name in files.known():
        command = files.record(name).get("command")
        assert f"`{name}`" in text or (command and command.split(" --json")[0].rsplit("/", 1)[-1] in text), name


def test_the_cost_model_s_picture_stands_on_its_page():
    page = (ROOT / "docs/speed/model.md").read_text(encoding="utf-8")
    assert "](model.svg)" in cost_model.with_picture(page)
    picture = cost_model.pages()["speed/model.svg"]
    for title in ("LayerNorm forward", "RMSNorm forward", "LayerNorm backward", "RMSNorm backward"):
        assert title in picture


def test_what_a_step_s_file_says_of_its_speed_is_what_its_ladder_s_record_says():
    for ladder in ("forward", "backward"):
        recorded = {entry["step"]: entry["of_copy"] for entry in files.record(f"ladder_{ladder}_h200")["steps"]}
        for number, step in enumerate(LADDERS[ladder]):
            text = (ROOT / f"normlab/kernels/{ladder}/step_{number}_{step.name}.py").read_text(encoding="utf-8")
            if said := re.search(r"(?m)^Measured: (\d\.\d+) / ", text):
                assert said[1] == f"{recorded[step.name]:.2f}", f"{ladder}/{step.name}"
