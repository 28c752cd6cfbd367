"""Check the project, each check in an environment of its own: `nox -f .ci/noxfile.py`.

`-s lint` runs one session, `-r` reuses the environments of the last time, and `-- ARGUMENTS` go to the session's tool:
`nox -f .ci/noxfile.py -r -s tests -- tests/oracle` runs the oracle's tests.
"""

from pathlib import Path

import nox

ROOT = Path(__file__).parents[1]
EXTRAS = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
nox.options.envdir = str(ROOT / "build/nox")


def requirement(tool: str) -> str:
    """Return the line of the extra [test] that names a tool, versions included."""
    return next(line for line in EXTRAS["test"] if line.startswith(tool))


@nox.session
def lint(session: nox.Session) -> None:
    """Lint, and check the format."""
    session.chdir(ROOT)
    session.install(requirement("ruff"))
    session.run("ruff", "check", *(session.posargs or ["."]))
    session.run("ruff", "format", "--check", *(session.posargs or ["."]))


@nox.session
def types(session: nox.Session) -> None:
    """Check the types."""
    session.chdir(ROOT)
    session.install("-e", ".[test]")
    session.run("mypy", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, the same with and without a GPU."""
    session.chdir(ROOT)
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, and look at it in a browser if there is one."""
    session.chdir(ROOT)
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "-f", ".ci/site/mkdocs.yml", *session.posargs)
    session.run("python", ".ci/site/look.py")


@nox.session
def notebooks(session: nox.Session) -> None:
    """Execute all tutorials, or those whose numbers are given, and compile their kernels."""
    session.chdir(ROOT)
    session.install("-e", ".[test]")
    session.run("normlab", "tutorials", *session.posargs, "--check")
    session.run("python", "tests/compile_tutorials.py", *session.posargs)
