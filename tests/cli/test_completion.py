"""What a shell completes: commands, options, and the values of everything that has few."""

import shutil
import subprocess

import pytest
import typer.main
from typer.testing import CliRunner

from normlab.cli import app

CHOOSING = ("NAME", "NAME,…", "LADDER", "LADDER|LADDER/STEP", "NN", "[NN]", "[NN]...", "RECORD…", "input|output")


def completed(*words):
    """What bash is offered for the last word."""
    asked = {
        "_NORMLAB_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["normlab", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, [], env=asked).stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_a_shell_asks_normlab(shell):
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0
    assert "_NORMLAB_COMPLETE" in done.stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_takes_the_script():
    script = CliRunner().invoke(app, ["completion", "bash"]).stdout
    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p normlab"], capture_output=True, text=True, timeout=20)
    assert done.stdout.strip() == "complete -o default -F _normlab_completion normlab"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("com",), ["compare", "completion"]),
        (("course", "ch"), ["check"]),
        (("compare", "--det"), ["--details"]),
        (("compare", "--norm", ""), ["layer", "rms"]),
        (("explain", "f"), ["forward", "family"]),
        (("explain", "forward", "--device", "h"), ["here", "h200", "h100", "h100-pcie"]),
        (("explain", "forward", "--step", "fus"), ["fused"]),
        (("explain", "sgemm", "--step", "naive"), ["naive"]),
        (("compare", "--step", "b"), ["block_tree"]),
        (("trace", "back"), ["backward"]),
        (("trace", "forward/a"), ["forward/apex"]),
        (("course", "check", "09_"), ["09_count_zero"]),
        (("course", "check", "count"), ["count_zero"]),
        (("bench", "norm", "--dtype", "float32,b"), ["float32,bfloat16"]),
        (("bench", "report", "ladder_f"), ["ladder_forward_h200"]),
        (("tutorials", "15"), ["15"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_what_is_offered(words, offered):
    assert completed(*words) == offered


def test_every_parameter_that_has_few_values_offers_them():
    def walk(command, path):
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, [*path, name])
        yield from ((path, parameter) for parameter in command.params)

    asked = [(path, one) for path, one in walk(typer.main.get_command(app), []) if one.metavar in CHOOSING]
    assert len(asked) > 15
    assert [(path, one.name) for path, one in asked if one._custom_shell_complete is None] == []
