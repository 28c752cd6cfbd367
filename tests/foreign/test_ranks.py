"""Models with replaced norms under DDP and FSDP2 on two ranks of the CPU: they train as one untouched model does."""

from pathlib import Path

import pytest
import torch
from foreign import architectures  # noqa: F401  skips where its libraries are missing
from nn.test_distributed import launch


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_replaced_models_train_under_ddp_and_fsdp2_as_an_untouched_one_does_alone(tmp_path):
    launch(
        Path(__file__).parent / "ranks.py", "2", str(tmp_path / "meet"), CUDA_VISIBLE_DEVICES=""
    )  # forks have no GPU
