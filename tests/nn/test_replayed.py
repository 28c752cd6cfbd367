"""Modules on a fake GPU, whose driver simulates: from the second call on everything is replayed, and gives the same."""

from types import SimpleNamespace

import pytest
import torch
from engine.fake_driver import fake_driver
from engine.fake_torch import fake_backend
from nn.norms import MODES

from normlab import nn
from normlab.engine import using
from normlab.host import replay
from normlab.nn import exact


@pytest.fixture
def gpu(monkeypatch):
    """A fake GPU 0, where CPU tensors lie, and where the exact mode counts as on a real one."""
    library = fake_driver(monkeypatch)
    library.torch = fake_backend(monkeypatch)
    monkeypatch.setattr(exact, "can_count", lambda *given: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    with using("simulator"):
        yield library


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_a_module_is_replayed_and_gives_what_pytorch_s_operations_give(gpu, kind, memory_efficient):
    torch.manual_seed(0)
    norm = kind(36, memory_efficient=memory_efficient)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        if memory_efficient == "exact":
            norm.weight[:2] = 0
    recordings = []
    for _ in range(4):
        x, dy = torch.randn(3, 36, requires_grad=True), torch.randn(3, 36)
        with nn.engine("simulator"):
            got = torch.autograd.grad(norm(x), (x, *norm.parameters()), dy)
        want = torch.autograd.grad(norm(x), (x, *norm.parameters()), dy)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        recordings.append(len(replay._cached))
    assert recordings[1] == recordings[-1] > 1
