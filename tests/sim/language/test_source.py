"""Lines of source, as errors and reports name them."""

import dis
import linecache

from normlab.sim.language.source import Line, line_of, name_given


def test_equal_code_in_two_files_has_lines_in_its_own():
    """Code objects are equal whatever their file's name, as long as neither has been specialised."""
    one, other = (compile("\nx = 1\n", file, "exec") for file in ("one.py", "other.py"))
    assert one == other
    last = len(one.co_code) - 2
    assert line_of(one, last) == Line("one.py", 2)
    assert line_of(other, last) == Line("other.py", 2)


def test_a_name_is_found_although_equal_code_comes_from_a_file_that_cannot_be_read(monkeypatch):
    text = "def kernel():\n    tile = made()\n"
    monkeypatch.setitem(linecache.cache, "here.py", (len(text), None, text.splitlines(True), "here.py"))
    nowhere, here = (compile(text, file, "exec").co_consts[0] for file in ("<nowhere>", "here.py"))
    call = next(one.offset for one in dis.get_instructions(here) if one.opname.startswith("CALL"))
    assert nowhere == here
    assert [name_given(code, call, "shared array") for code in (nowhere, here)] == ["shared array", "tile"]


def test_calls_after_a_starred_target_get_no_name_of_another(monkeypatch):
    text = "def kernel():\n    *a, b = one(), two(), three()\n    c, d = four(), five()\n"
    monkeypatch.setitem(linecache.cache, "starred.py", (len(text), None, text.splitlines(True), "starred.py"))
    code = compile(text, "starred.py", "exec").co_consts[0]
    calls = [one.offset for one in dis.get_instructions(code) if one.opname == "CALL"]
    assert [name_given(code, call, "?") for call in calls] == ["?", "?", "?", "c", "d"]
