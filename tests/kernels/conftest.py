"""A kernel's PTX and its cubin are made of the same intermediate code: for the tests here Numba compiles it once."""

from functools import cache

import pytest

from normlab.engine import offline


@pytest.fixture(autouse=True, scope="session")
def intermediate_codes_are_kept():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline, "_intermediate_codes", cache(offline._intermediate_codes))
        yield
