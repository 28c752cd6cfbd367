"""The command `normlab`, invoked in this process, as a user writes it."""

from click.testing import Result
from typer.testing import CliRunner

from normlab.cli import app


def invoke(*arguments) -> Result:
    """Return what `normlab` does with these arguments."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(*arguments) -> str:
    """Return the one line on stderr, after the command's name, of one that exits with 2 and prints nothing else."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    name = " ".join(arguments[:2] if arguments[0] == "bench" else arguments[:1])
    assert line.startswith(f"normlab {name}: ")
    return line
