"""Time the first call of a process: `normlab bench host` starts `python -m normlab.bench.first_call CONTENDER`.

PyTorch is imported, and the inputs are on the GPU, before the clock starts. Prints JSON: seconds to import the
contender, and of its first LayerNorm, forward, until the GPU has done it.
"""

import json
import sys
import time


def main(name: str, device: str = "cuda", shape: tuple[int, int] = (8, 4096)) -> dict[str, float]:
    """Return the times of one contender."""
    import torch

    dtype = torch.bfloat16
    x, dy = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    weight, bias = (torch.ones(shape[1], device=device, dtype=dtype) for _ in range(2))
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    finish()
    if name != "normlab":
        import normlab.bench.contenders  # noqa: F401  # what normlab imports is not the peer's

    began = time.perf_counter()
    from normlab.bench.contenders import Ours
    from normlab.bench.peers import PEERS
    from normlab.bench.problem import Data

    contender = Ours() if name == "normlab" else PEERS[name]()[0]
    imported = time.perf_counter()
    contender.forward(Data(x, weight, bias, dy))()
    finish()
    called = time.perf_counter()
    return {"import_s": round(imported - began, 6), "call_s": round(called - imported, 6)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
