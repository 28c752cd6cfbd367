"""Run a model's norms in several ways over the same parameters: torch.nn's own, and normlab's three.

FUSED is the third of normlab's with the blocks' additions in the norms' calls, as `fuse_residual` makes it.
"""

from copy import copy

from torch.nn import Module

from normlab.nn import replace_norms
from normlab.studies.memory.model import NORMS

TORCH = "torch.nn"
MODES: dict[str, bool | str] = {"False": False, "True": True, "exact": "exact"}  # of memory_efficient
VARIANTS = (TORCH, *MODES)
FUSED = "exact, fused"
MEASURED = (*VARIANTS, FUSED)
"""What `normlab memory` measures. `normlab train` leaves FUSED out: losses differ by the mode, not by the calls."""


class Switch:
    """A switch that makes a model with torch.nn's norms run with any of the variants, back and forth."""

    def __init__(self, model: Module) -> None:
        self.model = model
        own = {name: module for name, module in model.named_modules() if type(module) in NORMS.values()}
        self.norms = {TORCH: own}
        self.blocks = {TORCH: {block: type(block) for block in model.modules()}}
        for variant in MEASURED[1:]:
            # `replace_norms` changes a norm itself: copies, which have the same parameters
            self.norms[variant] = {name: copy(norm) for name, norm in own.items()}
            self.blocks[variant] = self.blocks[TORCH]
            self(variant)
            fused = variant == FUSED
            replace_norms(model, MODES["exact" if fused else variant], fuse_residual=fused)  # type: ignore[arg-type]
            self.blocks[variant] = {block: type(block) for block in self.blocks[TORCH]}
        self(TORCH)

    def __call__(self, variant: str) -> None:
        """Set the norms of a variant in, and give the blocks its classes."""
        for block, kind in self.blocks[variant].items():
            block.__class__ = kind
        for name, norm in self.norms[variant].items():
            self.model.set_submodule(name, norm)
