"""Norms whose statistics are merged across the ranks of a process group of torch.distributed.

`sharded_layer_norm` and `sharded_rms_norm` normalise rows whose columns lie on several ranks, `ShardedNorm` makes
modules do so under tensor parallelism, and `SyncBatchNorm` normalises a batch that lies on several ranks. Means and
variances of the ranks' parts are merged by Chan's formula, which cancels nothing and takes parts of any size.

This package needs PyTorch; `import normlab` does not.
"""

from typing import TYPE_CHECKING, Any

import normlab.nn as _nn  # noqa: F401  # says what is missing if PyTorch is
from normlab.distributed.batch import SyncBatchNorm
from normlab.distributed.functional import sharded_layer_norm, sharded_rms_norm

if TYPE_CHECKING:
    from normlab.distributed.parallel import ShardedNorm

__all__ = ["ShardedNorm", "SyncBatchNorm", "sharded_layer_norm", "sharded_rms_norm"]


def __getattr__(name: str) -> Any:
    """Import ShardedNorm the first time somebody uses it: it needs torch.distributed.tensor, which takes a second."""
    if name == "ShardedNorm":
        from normlab.distributed.parallel import ShardedNorm

        return ShardedNorm
    raise AttributeError(f"module 'normlab.distributed' has no attribute {name!r}")
