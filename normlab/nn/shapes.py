"""The types that the modules of `normlab.nn` pass to each other."""

from typing import Literal, TypeAlias

from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
"""normalized_shape."""
Parameter: TypeAlias = Tensor | None
"""weight or bias."""
Owners: TypeAlias = tuple[Parameter, Parameter]
"""The weight and bias that the caller gave, before autocast rounds them."""
Statistic: TypeAlias = Tensor | None
"""mean; None for RMSNorm."""
Gradients: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]
"""(grad_input, grad_weight, grad_bias)."""
MemoryEfficient: TypeAlias = bool | Literal["exact"]
"""The tensors that the backward keeps. False: the input; True: the output; "exact": also x̂ of the columns at risk."""
