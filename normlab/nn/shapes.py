"""The types that the modules of `normlab.nn` pass to each other."""

from typing import TypeAlias

from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
"""normalized_shape."""
Parameter: TypeAlias = Tensor | None
"""weight or bias."""
Statistic: TypeAlias = Tensor | None
"""mean, which RMSNorm does not have."""
Kept: TypeAlias = tuple[Tensor, Tensor]
"""x̂ of the columns at risk: columns (capacity,) int32, ascending, then -1; values (capacity, n1), output's dtype."""
Gradients: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]
"""(grad_input, grad_weight, grad_bias)."""
