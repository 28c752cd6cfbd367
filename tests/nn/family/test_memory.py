"""What a CPU allocates beside the results: at most two activations more than torch.nn.functional."""

import pytest
import torch
from draws import paired
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from normlab import nn

SHAPE = (4, 32, 24, 24)


def peak(run) -> int:
    """The most bytes that were allocated at once, in a call and in PyTorch's own kernels."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = run()
    del kept
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def step(library, norm, x, dy):
    """Forward and backward, kept."""
    kind, _, how = norm.partition(" ")
    affine = [torch.ones(x.shape[1], requires_grad=True) for _ in range(2)]
    if kind == "group":
        output = library.group_norm(x, int(how), *affine)
    else:
        running = (torch.zeros(x.shape[1]), torch.ones(x.shape[1])) if how else (None, None)
        output = getattr(library, f"{kind}_norm")(x, *running, *affine, how != "evaluation")
    return output, torch.autograd.grad(output, (x, *affine), dy)


@pytest.mark.parametrize(
    ("norm", "offset", "dtype", "layout"),
    paired(
        ["batch", "batch tracked", "batch evaluation", "instance", "instance tracked", "group 1", "group 8"],
        [0, 100],
        [torch.float32, torch.bfloat16],
        [torch.contiguous_format, torch.channels_last],
    ),
)
def test_transient_memory(norm, offset, dtype, layout):
    x = (torch.randn(SHAPE) + offset).to(dtype).to(memory_format=layout).requires_grad_()
    dy = torch.randn_like(x)
    step(nn, norm, x, dy)
    mine, theirs = (peak(lambda library=library: step(library, norm, x, dy)) for library in (nn, functional))
    assert mine - theirs <= 2 * x.numel() * x.element_size()
    assert theirs >= 2 * x.numel() * x.element_size()  # output and gradient were seen
