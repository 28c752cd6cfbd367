"""`normlab doctor`."""

from normlab import __version__


def doctor() -> None:
    """What is here, what therefore works, and what to install for the rest: one screen.

    Exit code: 0, whatever is missing.
    """
    from rich.text import Text

    from normlab.cli.terminal import plain_table, say
    from normlab.studies.doctor import abilities, examine

    found = examine()
    say(f"normlab {__version__}", "")
    for rows in (
        [(one.what, one.works, one.found) for one in found],
        [(one.what, one.works, "" if one.works else one.instead) for one in abilities(found)],
    ):
        table = plain_table()
        for what, works, told in rows:
            table.add_row(what, Text("yes" if works else "no", style="green" if works else "bold red"), Text(told))
        say(table, "")
    say("pip takes the normlab that is installed here, whether from a checkout or from a wheel.")
