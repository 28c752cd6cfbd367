"""The repository's address comes from [project.urls] alone: without it no page shows a link, with it all pages do."""

import re
from pathlib import Path

import pytest

from normlab.learn import address, tutorials

ROOT = Path(__file__).parents[2]
HOME = "https://github.com/someone/else"
WRITTEN = ("*.md", "*.py", "*.ipynb", "*.yml", "*.toml", "*.json")
OWN = re.compile(r"github\.com/[\w.-]+/normlab\b|pypi\.org/project/normlab\b|normlab\.(?:readthedocs|github)\.io")
FROM_AN_INDEX = re.compile(r"pip install (?:-U )?[\"']?normlab\b")


@pytest.fixture
def told(tmp_path):
    """Return a function that writes a pyproject.toml with [project.urls]."""

    def write(urls):
        file = tmp_path / "pyproject.toml"
        file.write_text(f'[project]\nname = "normlab"\n{urls}')
        return file

    return write


def test_the_address_is_read_and_one_elsewhere_refused(told, tmp_path):
    assert address.repository(told("")) is None
    assert address.repository(told(f'[project.urls]\nRepository = "{HOME}/"\n')) == HOME
    assert address.repository(tmp_path / "none.toml") is None
    with pytest.raises(ValueError, match=r"Repository is https://example\.org/x: https://github\.com/OWNER/NAME"):
        address.repository(told('[project.urls]\nRepository = "https://example.org/x"\n'))


@pytest.mark.parametrize("home", [None, HOME])
def test_a_notebook_opens_in_colab_only_with_an_address(home, monkeypatch):
    pytest.importorskip("jupytext", reason="jupytext reads py:percent; normlab[test] has it")
    monkeypatch.setattr(tutorials, "repository", lambda: home)
    for tutorial in tutorials.every():
        cells = tutorials.read(tutorial.source).cells
        badge = f"https://colab.research.google.com/github/someone/else/blob/main/tutorials/{tutorial.notebook.name}"
        assert (badge in cells[0].source) == ("colab" in cells[0].source) == bool(home)
        assert tutorials.HEADER.search(cells[0].source)
        install = [cell for cell in cells if "google.colab" in cell.source]
        assert [cell.cell_type for cell in install] == ["code"] * bool(home)
        assert all(f'"normlab[torch] @ git+{HOME}"' in cell.source for cell in install)


@pytest.mark.parametrize("home", [None, HOME])
def test_the_readme_has_a_badge_only_with_an_address(home, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".ci/site")
    import tabulated

    monkeypatch.setattr(tabulated, "repository", lambda: home)
    assert (HOME in tabulated.address()) == bool(tabulated.address()) == bool(home)


def written():
    """Return the files that a reader or a tool takes links from."""
    folders = ("docs", "normlab", "tutorials", ".ci", ".devcontainer", ".github")
    files = [file for folder in folders for kind in WRITTEN for file in (ROOT / folder).rglob(kind)]
    return [*files, *ROOT.glob("*.md"), ROOT / "pyproject.toml"]


def test_no_file_names_an_address_that_the_setting_does_not_have():
    home = address.repository()
    found = {}
    for file in written():
        named = [one for one in OWN.findall(file.read_text(encoding="utf-8")) if one not in (home or "")]
        if named:
            found[file.relative_to(ROOT).as_posix()] = named
    assert found == {}


def test_no_page_installs_normlab_from_an_index_that_does_not_have_it():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tutorials").glob("*.md")]
    assert [page.name for page in pages if FROM_AN_INDEX.search(page.read_text(encoding="utf-8"))] == []


def test_such_addresses_would_be_found():
    assert OWN.search("https://github.com/normlab/normlab")
    assert FROM_AN_INDEX.search('pip install "normlab[tutorials]"')
    assert not FROM_AN_INDEX.search('pip install -e ".[torch]"')
