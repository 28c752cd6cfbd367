"""RMSNorm with a gate by normlab's kernels; the functions are those of `normlab.nn.gated_norm.vectorised`."""

from torch import Tensor

from normlab.host.gated_norm import gated_rms_norm_backward, gated_rms_norm_forward
from normlab.nn.gated_norm.vectorised import GateHow, GateSaved
from normlab.nn.launched import world
from normlab.nn.shapes import Parameter


def forward(x: Tensor, gate: Tensor, weight: Parameter, how: GateHow) -> tuple[Tensor, Tensor]:
    """Return (output, invvar)."""
    with world(x):
        return gated_rms_norm_forward(x, gate, weight, eps=how.eps, norm_before_gate=how.norm_before_gate)


def backward(grad_output: Tensor, saved: GateSaved, how: GateHow) -> tuple[Tensor, Tensor, Parameter]:
    """Return (grad_x, grad_gate, grad_weight)."""
    eps, norm_before_gate, memory_efficient = how
    with world(saved.gate):
        return gated_rms_norm_backward(
            grad_output, *saved, eps=eps, norm_before_gate=norm_before_gate, memory_efficient=memory_efficient
        )
