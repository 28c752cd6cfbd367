"""torch CPU tensors taken for tensors on GPU 0 of a fake driver."""

import torch

from normlab.host import arrays, norms, replay
from normlab.host import exact as host_exact
from normlab.nn import counting, exact


def fake_backend(monkeypatch):
    """Let the host functions launch on the (fake) driver for CPU tensors. Returns a dict whose "stream" is current."""
    current = {"stream": 7}
    for module in (arrays, replay):
        monkeypatch.setattr(module, "stream_getter", lambda: lambda index: current["stream"])
    monkeypatch.setattr(replay, "quick_memory", lambda: (lambda: -1, None))  # which a machine with a GPU has there
    real = norms.backend_of

    class Backend(arrays.TorchBackend):
        def __init__(self, device):
            self.device, self.index, self.stream = device, 0, current["stream"]

    def backend_of(required, optional):
        backend = real(required, optional)
        first = next(iter(required.values()))
        return Backend(first.device) if isinstance(first, torch.Tensor) else backend

    for module in (norms, host_exact):
        monkeypatch.setattr(module, "backend_of", backend_of)
    for module in (exact, counting):
        monkeypatch.setattr(module, "TorchBackend", Backend)
    monkeypatch.setattr(replay, "_cached", {})
    return current
