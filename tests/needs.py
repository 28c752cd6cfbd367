"""Marks for tests that need more than every machine has."""

from importlib.util import find_spec

import pytest

compiler = pytest.mark.skipif(
    not find_spec("numba_cuda"), reason="PTX is made by numba-cuda, which has no wheels for this platform"
)
