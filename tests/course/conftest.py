"""For the course's tests: which files are no tests, and a fork server that has compiled the stages."""

import pytest

from normlab.course import process

collect_ignore = ["other", "wrong"]  # they are graded, not imported


@pytest.fixture(autouse=True, scope="session")
def solutions_find_the_stages_compiled():
    """As for a class: it takes the fork server 2 s, and each of hundreds of solutions' processes up to 0.6 s less."""
    process.prepare_for_a_class()
