"""Say in normlab's own words what a command cannot use, what it needs, and which name comes nearest.

Typer's errors come from several versions of click and from pydantic. They are told apart by the names of their classes
and attributes, and one that this file does not know keeps its own words.
"""

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

NEEDED = {  # pydantic's kind of error → what is needed
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
}


class OwnWords(TyperGroup):
    """The command line, whose errors are two lines on stderr: what is wrong, and where help is."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command as Typer does; say a wrong argument in normlab's words, and exit with 2."""
        try:
            code = super().main(*arguments, **options | {"standalone_mode": False})
        except typer.Abort:
            code = 1
        except Exception as caught:
            error: Any = caught
            if not hasattr(error, "format_message"):  # no error of usage
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                context = getattr(error, "ctx", None)
                path = "normlab" if context is None else context.command_path
                typer.echo(f"{path}: {in_words(error)}\n{path} --help says more.", err=True)
            code = getattr(error, "exit_code", 2)
        sys.exit(code if isinstance(code, int) else 0)


def in_words(error: Any) -> str:
    """Return what one of Typer's usage errors means: what was given, what is needed, what comes nearest."""
    kind, said, context = type(error).__name__, error.format_message(), getattr(error, "ctx", None)
    unknown = re.match(r"No such command '(.+?)'", said)
    if unknown and context:
        return f"there is no command {unknown[1]}{nearest(unknown[1], context.command.list_commands(context))}"
    if kind == "NoSuchOption" and context:
        options = [name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts)]
        return f"there is no option {error.option_name}{nearest(error.option_name, options)}"
    if kind == "MissingParameter":
        help_text = getattr(error.param, "help", None)
        return f"{_name(error.param)} is missing{f': {help_text}' if help_text else ''}"
    if kind == "BadParameter" and error.param is not None:
        return f"{_name(error.param)} {_needed(error)}"
    if said.startswith("Got unexpected extra argument"):
        return f"one argument is too many: {said[said.rfind('(') + 1 : said.rfind(')')]}"
    without = re.fullmatch(r"Option '(.+)' requires an argument\.", said)
    return f"{without[1]} needs a value" if without else said


def nearest(given: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names the known word most like `given`, or all of them where none is like it.

    >>> nearest("comprae", ["compare", "course"]), nearest("x", ["compare", "course"])
    ('; did you mean compare?', '; there are compare, course')
    """
    words = list(known)
    like = get_close_matches(given, words, n=1)
    return f"; did you mean {like[0]}?" if like else f"; there are {', '.join(words)}"


def _needed(error: Any) -> str:
    """Return what a parameter must be and what it was given, from pydantic's report or else from click's sentence."""
    report = getattr(error.__cause__, "errors", None)
    if report is None:
        return _from_sentence(error.message)
    (first, *_) = report()
    if first["type"] in NEEDED:
        return f"{NEEDED[first['type']].format(**first.get('ctx', {}))}, got {first['input']}"
    return _from_sentence(first["msg"].removeprefix("Value error, "))


def _from_sentence(said: str) -> str:
    """Return click's sentence about a value in normlab's words, or as it is where it is none of those known here.

    >>> _from_sentence("'rmss' is not one of 'layer', 'rms'."), _from_sentence("-1 is not in the range x>=0.")
    ('must be one of layer, rms; got rmss; did you mean rms?', 'must be at least 0, got -1')
    """
    choice = re.fullmatch(r"'(.*)' is not one of (.+?)\.?", said)
    if choice:
        known = re.findall(r"'([^']+)'", choice[2])
        like = get_close_matches(choice[1], known, n=1)
        return f"must be one of {', '.join(known)}; got {choice[1]}{f'; did you mean {like[0]}?' if like else ''}"
    out_of_range = re.fullmatch(r"(\S+) is not in the range x>=([^<>=]+?)\.?", said)
    if out_of_range:
        return f"must be at least {out_of_range[2]}, got {out_of_range[1]}"
    no_number = re.fullmatch(r"'(.*)' is not a valid (int|float)(?:eger)?(?: range)?\.?", said)
    if no_number:
        return f"must be a {'whole ' if no_number[2] == 'int' else ''}number, got {no_number[1]}"
    return f"cannot be used: {said}"


def _name(parameter: Any) -> str:
    """Return what a user calls a parameter: its long option, or the word that the help shows for an argument."""
    options = [name for name in parameter.opts if name.startswith("-")]
    return max(options, key=len) if options else (parameter.metavar or parameter.name).strip("[].…").upper()
