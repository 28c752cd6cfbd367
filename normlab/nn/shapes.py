"""The types that the modules of `normlab.nn` pass to each other."""

from typing import Literal, TypeAlias

from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
"""normalized_shape."""
Parameter: TypeAlias = Tensor | None
"""weight or bias."""
Owners: TypeAlias = tuple[Parameter, Parameter]
"""weight and bias as the caller has them, not as autocast rounds them."""
Statistic: TypeAlias = Tensor | None
"""mean, which RMSNorm does not have."""
Gradients: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]
"""(grad_input, grad_weight, grad_bias)."""
MemoryEfficient: TypeAlias = bool | Literal["exact"]
"""What the backward keeps: False the input, True the output, "exact" the output and x̂ of the columns at risk."""
