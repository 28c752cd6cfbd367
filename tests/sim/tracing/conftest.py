"""The browser that the pages of traces are looked at in."""

import pytest
from browsing import started


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium."""
    driver = started(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()
