"""Say Numba's names of types in the words of a kernel's author."""

import re


def several(count: int, one: str, many: str | None = None) -> str:
    """Return "1 argument" or "2 arguments"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def split_types(text: str) -> list[str]:
    """Return the types in a list such as "array(float32, 1d, C), int64", which has commas inside brackets, too."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


# The beginning of Numba's name of a type → the words for it.
STARTS = {
    **{"DictType": "a dict", "list": "a list", "set": "a set", "slice": "a slice", "unicode_type": "a text"},
    **{"none": "None", "bool": "a bool", "OptionalType": "None or a number", "Dim3": "all three of .x, .y and .z"},
}


def told_type(name: str) -> str:
    """Return a type by its name in Numba as "a float32", "an array of float32", "the int 5".

    >>> told_type("array(float32, 2d, C)")
    'an array of float32 with 2 dimensions'
    >>> told_type("Literal[int](5)")
    'the int 5'
    """
    name = name.strip()
    if found := re.match(r"(?:readonly |unaligned |const )*array\((.+), (\d+)d, \w+\)$", name):
        return f"an array of {found[1]}" + (f" with {found[2]} dimensions" if found[2] != "1" else "")
    if found := re.match(r"Literal\[(\w+)\]\((.*)\)$", name):
        return {"int": f"the int {found[2]}", "bool": f"{found[2]}", "str": f"the text {found[2]!r}"}.get(
            found[1], f"{found[1]} {found[2]}"
        )
    if found := re.match(r"UniTuple\((.+) x (\d+)\)$", name):
        return f"a tuple of {found[2]}"
    if found := re.match(r"Tuple\((.*)\)$", name):
        return f"a tuple of {len(split_types(found[1]))}"
    if found := re.match(r"class\((\w+)\)$|Function\(<class '(?:\w+\.)*(\w+)'>\)$", name):
        return f"the type {found[1] or found[2]}"
    if found := re.match(r"Module\(<module '([\w.]+)'", name):
        return f"the module {found[1]}"
    if found := re.search(r"<(?:function|intrinsic) (\w+)", name):
        return f"the function {found[1]}"
    for start, told in STARTS.items():
        if name.startswith(start):
            return told
    return f"{'an' if name[:1] in 'aeio' else 'a'} {name}"
