"""normlab: how a GPU normalises, stage by stage.

The top level re-exports the host functions. Nothing is imported until it is asked for (PEP 562), so that `import
normlab` starts no compiler, no torch and no CUDA driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from normlab.keeping import keep_columns
    from normlab.norm_linear import layer_norm_linear_backward, layer_norm_linear_forward
    from normlab.ops import (
        layer_norm_backward,
        layer_norm_forward,
        rms_norm_backward,
        rms_norm_forward,
    )
    from normlab.products import sgemm

__all__ = [
    "keep_columns",
    "layer_norm_backward",
    "layer_norm_forward",
    "layer_norm_linear_backward",
    "layer_norm_linear_forward",
    "rms_norm_backward",
    "rms_norm_forward",
    "sgemm",
]


_ELSEWHERE = {  # all others are in normlab.ops
    "keep_columns": "normlab.keeping",
    "layer_norm_linear_backward": "normlab.norm_linear",
    "layer_norm_linear_forward": "normlab.norm_linear",
    "sgemm": "normlab.products",
}


def __getattr__(name: str) -> Any:
    """Import a public function the first time somebody uses it."""
    if name in __all__:
        module = import_module(_ELSEWHERE.get(name, "normlab.ops"))
        function = globals()[name] = getattr(module, name)  # the second time it is found at once
        return function
    if name == "family":  # batch, instance and group norm: a module
        return import_module("normlab.family")
    raise AttributeError(f"module 'normlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
