"""DDP, FSDP2 and sequence parallelism on two ranks, of the CPU and of two GPUs: the gradients are one process's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import normlab

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def launch(script: Path, *arguments: str, **more: str) -> None:
    """Run a script of ranks, which can import normlab and what tests have; assert that it ends well.

    more: variables of its environment.
    """
    folders = Path(normlab.__file__).parent.parent, Path(__file__).parent.parent, os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(map(str, folders))
    environment = os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | more
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_ddp_fsdp2_and_sequence_parallelism_give_the_gradients_of_one_process(tmp_path, device):
    launch(Path(__file__).parent / "ranks.py", "2", str(tmp_path / "meet"), device)
