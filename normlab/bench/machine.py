"""Say whether the machine can run a benchmark, and how fast its GPU could add and multiply."""

from normlab import engine
from normlab.kernels import roofline
from normlab.measure.provenance import ask_nvidia_smi

INSTEAD = "Without one, `normlab trace {}` shows what each kernel asks of memory, line by line."


class NotFitError(Exception):
    """This machine cannot run a benchmark; the message says what is missing."""


def require_gpu(ladder: str) -> None:
    """Raise NotFitError unless there are a GPU and a PyTorch that can use it.

    `ladder` is what the error advises to run instead: `normlab trace LADDER`.
    """
    if not engine.gpu_available():
        raise NotFitError(f"needs an NVIDIA GPU and its driver; none was found here. {INSTEAD.format(ladder)}")
    try:
        import torch
    except ImportError as error:
        raise NotFitError(
            f"needs PyTorch, for arrays on the GPU and as a peer ({error}); pip install 'normlab[torch]' gets it"
        ) from None
    if not torch.cuda.is_available():
        raise NotFitError(f"needs a PyTorch with CUDA, but this one ({torch.__version__}) finds no GPU")


def peak() -> float | None:
    """Return float32 operations a second at the highest clock, without tensor cores; None where that is not known."""
    import torch

    megahertz = ask_nvidia_smi("clocks.max.sm") or ""
    if not megahertz.strip().isdigit():
        return None
    found = torch.cuda.get_device_properties(0)
    try:
        return roofline.peak(found.multi_processor_count, 1e6 * int(megahertz), (found.major, found.minor))
    except ValueError:
        return None
