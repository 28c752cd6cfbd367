"""normlab: how a GPU normalises, stage by stage.

The top level re-exports the host functions. Nothing is imported until it is asked for (PEP 562), so that `import
normlab` starts no compiler, no torch and no CUDA driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from normlab.host.add_norm import (
        add_layer_norm_backward,
        add_layer_norm_forward,
        add_rms_norm_backward,
        add_rms_norm_forward,
        head_rms_norm_backward,
        head_rms_norm_forward,
    )
    from normlab.host.exact import keep_columns
    from normlab.host.gated_norm import gated_rms_norm_backward, gated_rms_norm_forward
    from normlab.host.matmul import sgemm
    from normlab.host.modulated_norm import modulated_layer_norm_backward, modulated_layer_norm_forward
    from normlab.host.norm_linear import layer_norm_linear_backward, layer_norm_linear_forward
    from normlab.host.norms import (
        layer_norm_backward,
        layer_norm_forward,
        rms_norm_backward,
        rms_norm_forward,
    )
    from normlab.learn.explain import explain

__all__ = [
    "add_layer_norm_backward",
    "add_layer_norm_forward",
    "add_rms_norm_backward",
    "add_rms_norm_forward",
    "explain",
    "gated_rms_norm_backward",
    "gated_rms_norm_forward",
    "head_rms_norm_backward",
    "head_rms_norm_forward",
    "keep_columns",
    "layer_norm_backward",
    "layer_norm_forward",
    "layer_norm_linear_backward",
    "layer_norm_linear_forward",
    "modulated_layer_norm_backward",
    "modulated_layer_norm_forward",
    "rms_norm_backward",
    "rms_norm_forward",
    "sgemm",
]


_ELSEWHERE = {  # all others are in normlab.host.norms
    "add_layer_norm_backward": "normlab.host.add_norm",
    "add_layer_norm_forward": "normlab.host.add_norm",
    "add_rms_norm_backward": "normlab.host.add_norm",
    "add_rms_norm_forward": "normlab.host.add_norm",
    "head_rms_norm_backward": "normlab.host.add_norm",
    "head_rms_norm_forward": "normlab.host.add_norm",
    "explain": "normlab.learn.explain",
    "gated_rms_norm_backward": "normlab.host.gated_norm",
    "gated_rms_norm_forward": "normlab.host.gated_norm",
    "keep_columns": "normlab.host.exact",
    "layer_norm_linear_backward": "normlab.host.norm_linear",
    "layer_norm_linear_forward": "normlab.host.norm_linear",
    "modulated_layer_norm_backward": "normlab.host.modulated_norm",
    "modulated_layer_norm_forward": "normlab.host.modulated_norm",
    "sgemm": "normlab.host.matmul",
}


def __getattr__(name: str) -> Any:
    """Import a public function, or a module, at its first use."""
    if name in __all__:
        module = import_module(_ELSEWHERE.get(name, "normlab.host.norms"))
        function = globals()[name] = getattr(module, name)  # the second time it is found at once
        return function
    if name == "family":  # batch, instance and group norm: a module
        return import_module("normlab.host.family")
    if name in ("nn", "oracle", "sim", "stages"):
        return import_module(f"normlab.{name}")
    raise AttributeError(f"module 'normlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return each name once: a function that was used is in both."""
    return sorted({*globals(), *__all__})
