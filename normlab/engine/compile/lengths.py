"""Name the lengths that a kernel's arrays have in common, so that a launch hands over each of them only once.

    @same_lengths({"x": "n1 n2", "output": "n1 n2", "weight": "n2"})
    @cuda.jit
    def kernel(x, weight, output): ...

The kernel's entry then takes x's address and both lengths, and only the addresses of the other arrays (`entries`).
"""

from collections.abc import Callable, Mapping
from typing import Any

Names = tuple[str | None, ...]  # the names of an array's lengths; () for an argument that is no array


def same_lengths(names: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return a decorator of a kernel under `cuda.jit`.

    Args:
        names: argument -> the names of its lengths, separated by spaces. An array that has another number of dimensions
            in a launch hands over all its lengths. Each launch checks that lengths of one name are equal.
    """

    def mark(kernel: Any) -> Any:
        kernel.names_of_lengths = {argument: tuple(words.split()) for argument, words in names.items()}
        return kernel

    return mark


def lengths_of(kernel: Any, kinds: tuple) -> list[Names]:
    """Return the names of each argument's lengths; None for a length without a name.

    kinds: of the arguments, from `signatures`; (dtype, dimensions, layout) for an array.
    """
    code, named = kernel.py_func.__code__, getattr(kernel, "names_of_lengths", {})
    found: list[Names] = []
    for argument, kind in zip(code.co_varnames, kinds, strict=False):  # after the arguments come local variables
        dimensions = kind[1] if isinstance(kind, tuple) else 0
        names = named.get(argument, ())
        found.append(names if len(names) == dimensions else (None,) * dimensions)
    return found


def first_seen(shape: tuple[int, ...], names: Names, seen: dict[str, int]) -> list[int]:
    """Return the lengths of an array that no earlier array of the launch has handed over, and add them to `seen`.

    Raises:
        ValueError: two lengths of one name differ.
    """
    found = []
    for length, name in zip(shape, names, strict=True):
        if name is None or name not in seen:
            found.append(length)
        elif seen[name] != length:
            raise ValueError(f"arrays of one launch must agree in {name}, got {seen[name]} and {length}")
        if name is not None:
            seen[name] = length
    return found


def check_lengths(kernel: Any, args: tuple) -> None:
    """Raise ValueError if lengths of one name differ among the NumPy arrays of a launch in the simulator."""
    shapes = [getattr(arg, "shape", ()) for arg in args]
    seen: dict[str, int] = {}
    for shape, names in zip(shapes, lengths_of(kernel, tuple((None, len(one)) for one in shapes)), strict=True):
        first_seen(shape, names, seen)
