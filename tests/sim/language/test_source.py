"""Lines of source, as errors and reports name them."""

from normlab.sim.language.source import Line, line_of


def test_equal_code_in_two_files_has_lines_in_its_own():
    """Code objects are equal whatever their file's name, as long as neither has been specialised."""
    one, other = (compile("\nx = 1\n", file, "exec") for file in ("one.py", "other.py"))
    assert one == other
    last = len(one.co_code) - 2
    assert line_of(one, last) == Line("one.py", 2)
    assert line_of(other, last) == Line("other.py", 2)
