"""For all tests of the vectorised engine."""

import pytest

from normlab.sim.vectorised import engine


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Let errors of the engine itself come out; forget what it has learnt."""
    monkeypatch.setattr(engine, "STRICT", True)
    monkeypatch.setattr(engine, "_learnt", {})
