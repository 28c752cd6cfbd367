"""The ranks that all tests of this folder share, one set per test process."""

from pathlib import Path

import pytest
from distributed.pool import Ranks

import normlab


@pytest.fixture(scope="session")
def ranks():
    made = Ranks(Path(normlab.__file__).parents[1])
    yield made
    made.close()
