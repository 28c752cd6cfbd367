"""torch CPU tensors taken for tensors on GPU 0 of a fake driver."""

import torch

from normlab.host import arrays, norms, replay
from normlab.host import exact as host_exact
from normlab.nn import exact


def fake_home(monkeypatch):
    """Let the host functions launch on the (fake) driver for CPU tensors. Returns a dict whose "stream" is current."""
    current = {"stream": 7}
    for module in (arrays, replay):
        monkeypatch.setattr(module, "stream_getter", lambda: lambda index: current["stream"])
    monkeypatch.setattr(replay, "quick_memory", lambda: (lambda: -1, None))  # which a machine with a GPU has there
    real = norms.home_of

    class Home(arrays.TorchHome):
        def __init__(self, device):
            self.device, self.index, self.stream = device, 0, current["stream"]

    def home_of(required, optional):
        home = real(required, optional)
        first = next(iter(required.values()))
        return Home(first.device) if isinstance(first, torch.Tensor) else home

    for module in (norms, host_exact):
        monkeypatch.setattr(module, "home_of", home_of)
    monkeypatch.setattr(exact, "TorchHome", Home)
    monkeypatch.setattr(replay, "_recordings", {})
    return current
