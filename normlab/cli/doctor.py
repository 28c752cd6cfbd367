"""`normlab doctor`."""

import typer

from normlab import __version__


def doctor() -> None:
    """What is here, what therefore works, and what to install for the rest: one screen.

    Exit code: 0, whatever is missing.
    """
    from rich.table import Table
    from rich.text import Text

    from normlab.cli.terminal import say
    from normlab.studies.doctor import abilities, examine

    found = examine()
    typer.echo(f"normlab {__version__}\n")
    for rows in (
        [(one.what, one.works, one.found) for one in found],
        [(one.what, one.works, "" if one.works else one.instead) for one in abilities(found)],
    ):
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for what, works, told in rows:
            table.add_row(what, Text("yes" if works else "no", style="green" if works else "bold red"), Text(told))
        say(table)
        typer.echo()
    typer.echo('In a checkout of normlab: pip install -e ".[tutorials]" instead of pip install "normlab[tutorials]".')
