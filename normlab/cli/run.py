"""`normlab run`."""

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.errors import refused


def run_script(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python program that uses numba.cuda.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", show_default=False, help="The program's own arguments.")
    ] = None,
    sanitize: Annotated[
        bool,
        typer.Option("--sanitize", help="Look for races, bad indices, reads of garbage, … in every launch."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Benign races, stores of one value, make --sanitize fail, too.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Count what the first launch of every kernel asks of memory, line by line.")
    ] = False,
    play: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="With --trace: block 0 of each kernel as a page, step by step."
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", show_default=False, help="Write the report as JSON, too."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Refuse kernels that Numba does not compile, before they run.")
    ] = True,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, such as pytest, as python -m takes it.")
    ] = False,
) -> None:
    """Run a program that uses numba.cuda, unmodified: its kernels run in normlab's simulator, with a GPU or without.

    Launches, device arrays, streams, events, reductions, vectorize and random numbers behave as Numba's; the device
    calls itself an H200. Times that the program measures are of the simulation. Options of normlab come before SCRIPT;
    `normlab run -m pytest tests` runs a module.

    A kernel that Numba does not compile is refused, with the line and the reason, as on a GPU. --no-check runs it.

    --play writes pages that show what the first block of each kernel does, statement by statement. Several kernels have
    a page each, with number and name.

    --sanitize and --trace report on stderr when the program has ended, kernel by kernel. Launches in processes that
    the program starts by multiprocessing are simulated, but not watched; those of subprocess are not simulated. A
    device array that is allocated empty and then partly written counts as written if its elements are shorter than 4
    bytes.

    Exit code: the program's own, as `python SCRIPT` would have it (1 for an uncaught exception, 130 for Ctrl-C), or 1
    when --sanitize found something wrong, whatever the program's: the last report on stderr tells the two apart. A
    race of stores that all store one value is told and is not wrong, except with --strict. 2 when
    normlab cannot use its arguments or read SCRIPT.
    """
    from normlab.run import run_program

    if json_file is not None and not (sanitize or trace):
        raise refused("run", "--json writes what --sanitize or --trace report: give one of them, too")
    if play is not None and not trace:
        raise refused("run", "--play writes what --trace follows: give that, too")
    if strict and not sanitize:
        raise refused("run", "--strict says what --sanitize counts as wrong: give that, too")
    _tell_of_late_options(f"-m {script}" if module else script, args or [])
    try:
        if json_file is not None:
            json_file = json_file.absolute()  # wherever the program goes
        if play is not None:
            play = play.absolute()
            there = play.exists()
            play.open("a").close()  # an error now, not when the program has ended
            if not there:
                play.unlink()  # the pages of several kernels have other names
        code = run_program(script, args or [], sanitize, trace, json_file, check, strict, play, module)
    except ModuleNotFoundError as error:
        raise refused("run", f"cannot run -m {script}: {error}") from None
    except OSError as error:
        raise refused("run", f"cannot open {error.filename}: {error.strerror}") from None
    raise typer.Exit(code)


def _tell_of_late_options(script: str, args: list[str]) -> None:
    """Say which of the program's arguments normlab has an option for, in case normlab's was meant."""
    for name in ("--sanitize", "--strict", "--trace", "--play FILE", "--json FILE", "--no-check"):
        option = name.split()[0]
        if option in args:
            typer.echo(
                f"normlab run: {option} after SCRIPT is an argument of the program; normlab's own comes before: "
                f"normlab run {name} {script}",
                err=True,
            )
