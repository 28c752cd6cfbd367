"""Read the project's public address from [project.urls] in pyproject.toml.

README's badges, the tutorials' Colab cells and the documentation site take the address from here. As long as
pyproject.toml has no [project.urls], there is no address, and none of them shows a link to it.
"""

import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com"
INSTALL = """# In Colab this installs normlab; elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "normlab[torch] @ git+{home}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)"""


def repository(pyproject: Path = PYPROJECT) -> str | None:
    """Return the repository's address, https://github.com/OWNER/NAME, or None if pyproject.toml has none.

    Raises:
        ValueError: an address elsewhere; Colab opens notebooks from GitHub only.
    """
    if not pyproject.exists():  # an installed wheel has no pyproject.toml
        return None
    urls = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"].get("urls", {})
    address = urls.get("Repository")
    if address is not None and not address.startswith(GITHUB):
        raise ValueError(f"[project.urls] Repository is {address}: {GITHUB}OWNER/NAME is needed")
    return address.rstrip("/") if address else None


def open_in_colab(notebook: Any, name: str, home: str) -> None:
    """Put a badge below a notebook's title, and after the first cell one that installs normlab in Colab.

    Args:
        notebook: the notebook, which is changed.
        name: its file in tutorials/.
        home: the repository's address.
    """
    from nbformat.v4 import new_code_cell

    first = notebook.cells[0]
    title, rest = first.source.split("\n", 1)
    page = f"{COLAB}/github/{home.removeprefix(GITHUB)}/blob/main/tutorials/{name}"
    first.source = f"{title}\n\n[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({page})\n{rest}"
    notebook.cells.insert(1, new_code_cell(INSTALL.format(home=home)))
