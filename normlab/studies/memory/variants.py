"""Run a model's norms in four ways over the same parameters: torch.nn's own, and normlab's three."""

from torch.nn import Module

from normlab.nn import replace_norms
from normlab.studies.memory.model import NORMS

TORCH = "torch.nn"
MODES: dict[str, bool | str] = {"False": False, "True": True, "exact": "exact"}  # of memory_efficient
VARIANTS = (TORCH, *MODES)


class Switch:
    """A switch that makes a model with torch.nn's norms run with any of the VARIANTS, back and forth."""

    def __init__(self, model: Module) -> None:
        self.model = model
        own = {name: module for name, module in model.named_modules() if type(module) in NORMS.values()}
        self.norms = {TORCH: own}
        for variant, memory_efficient in MODES.items():
            replace_norms(model, memory_efficient)  # type: ignore[arg-type]
            self.norms[variant] = {name: model.get_submodule(name) for name in own}
            self(TORCH)

    def __call__(self, variant: str) -> None:
        """Set the norms of a variant in."""
        for name, norm in self.norms[variant].items():
            self.model.set_submodule(name, norm)
