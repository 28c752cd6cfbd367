"""The types that the modules of `normlab.nn` pass to each other."""

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from normlab.host.exact import Kept

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


class Saved(NamedTuple):
    """The tensors that a norm saves. tensor: the input or the output. columns, values: of a `Kept`.

    mean: only beside the input, and None for RMSNorm.
    """

    tensor: Tensor
    invvar: Tensor
    weight: Parameter
    bias: Parameter
    columns: Parameter = None
    values: Parameter = None
    mean: Statistic = None

    @property
    def kept(self) -> Kept | None:
        """Return the columns at risk with their x̂; None if the forward has kept none."""
        return None if self.columns is None or self.values is None else Kept(self.columns, self.values)


class How(NamedTuple):
    """The arguments that a backward needs beside `Saved`. dtype: the input's, and so grad_input's."""

    dtype: torch.dtype
    shape: Shape
    eps: float
    rms: bool
    memory_efficient: MemoryEfficient
