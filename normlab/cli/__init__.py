"""The command `normlab`, a file a subcommand. Each imports what it needs when it runs, so that `--help` is quick."""

from typing import Annotated

import typer

from normlab import __version__
from normlab.cli.bench import bench
from normlab.cli.compare import compare
from normlab.cli.completion import completion
from normlab.cli.course import course
from normlab.cli.doctor import doctor
from normlab.cli.explain import explain_plan
from normlab.cli.memory import memory
from normlab.cli.run import run_script
from normlab.cli.terminal import plain_table, say
from normlab.cli.trace import trace_ladder
from normlab.cli.train import train
from normlab.cli.tutorials import list_or_open
from normlab.cli.usage import OwnWords

FIRST_STEPS = {  # what normlab alone shows, in order of use
    "compare": "recompute from the output, or save the input? on real data",
    "tutorials": "read it: notebooks that begin with what a warp is",
    "course start DIR": "do it: exercises from one value to whole kernels, checked here",
    "course check": "... what is wrong in them, where, and for which input",
    "explain forward": "which kernel runs my norm, and why that plan?",
    "trace forward": "what does each kernel ask of memory? line by line",
    "run --sanitize SCRIPT": "a numba.cuda program of yours without a GPU, and its bugs",
    "memory": "what does memory_efficient save in a model?",
    "bench norm": "how fast is it? on an NVIDIA GPU",
    "doctor": "what works here, and what to install for the rest",
}

app = typer.Typer(
    name="normlab",
    cls=OwnWords,
    add_completion=True,  # `normlab completion` prints the script
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normlab {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How a GPU normalises: LayerNorm and RMSNorm kernels, measured against the truth, with or without a GPU."""
    if context.invoked_subcommand is None:
        table = plain_table()
        for command, what in FIRST_STEPS.items():
            table.add_row(f"  normlab {command}", what)
        say(f"normlab {__version__}: how a GPU normalises, with or without a GPU", "", table, "")
        say("normlab COMMAND --help says more, normlab --help lists everything.")


app.command("tutorials", short_help="Notebooks that begin with what a warp is. Without a GPU, too.")(list_or_open)
app.command(short_help="Recompute from the output, or save the input? On real data.")(compare)
app.command("explain", short_help="Which kernel runs a norm, and why that plan? Without a GPU, too.")(explain_plan)
app.command("trace", short_help="What does each kernel ask of memory? Line by line, without a GPU.")(trace_ladder)
app.command(
    "run",
    short_help="Run a numba.cuda program without a GPU.",
    context_settings={"allow_interspersed_args": False},  # what follows the script is the script's
)(run_script)
app.command(short_help="What does memory_efficient save in a model? On the CPU, too.")(memory)
app.command(short_help="Does a model learn the same with it? On the CPU, too.")(train)
app.add_typer(course, name="course", short_help="Exercises, checked on this machine: from one value to whole kernels.")
app.add_typer(bench, name="bench", short_help="How fast is it? Beside the peers, on a GPU.")
app.command(short_help="What works here, and what to install for the rest.")(doctor)
app.command(short_help="Complete commands and options at the Tab key.")(completion)


def main() -> None:
    """The entry point."""
    app(prog_name="normlab")
