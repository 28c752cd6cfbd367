"""Read the project's public address from [project.urls] in pyproject.toml.

README's badges, the tutorials' Colab cells and the documentation site take the address from here. As long as
pyproject.toml has no [project.urls], there is no address, and none of them shows a link to it.
"""

import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
GITHUB = "https://github.com/"


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
