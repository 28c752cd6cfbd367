"""What the norms of a decoder cost in a training step.

    python -m hardware.llama [OUT.json [MODELS [MODES [SECONDS [PLACES]]]]]

8 blocks of hidden 2,048, batch 4 x 2,048, bfloat16, fused AdamW; eager and compiled. MODELS: a Llama, a Qwen3, which
has a norm of each head of queries and keys, and a Gemma, whose norms scale by 1 + weight. MODES: transformers' norms,
PyTorch's rms_norm, normlab's with each memory_efficient, and with `fuse_residual` ("exact fused") or inside of
`fused_by_compiler` ("True formulas"). PLACES: eager, compiled. Before it is timed, a mode's loss
and gradients are compared with those of the first mode. The modes train in turn, in another order each round, because a
GPU at its power limit is slower the longer it has run; a step's time is compared with the first mode's in the same
round. After SECONDS no further mode is compiled.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from normlab.measure.provenance import provenance
from normlab.nn import fused_by_compiler, replace_norms

ROUNDS, STEPS = 12, 3
MODES = ("torch.nn", "exact", "exact fused")
MODELS: dict[str, dict[str, int]] = {
    "Llama": {"num_attention_heads": 16, "num_key_value_heads": 16},
    "Qwen3": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128},
    "Gemma": {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 256},
}
BATCH, LENGTH, VOCABULARY = 4, 2048, 32000
KERNELS = {
    "normlab": ("forward_one_barrier", "backward_pipelined", "backward_final_sums", "combine_rows", "risk", "survey"),
    "compiler": ("triton_",),
    "products": ("nvjet", "gemm", "cutlass"),
    "attention": ("flash", "fmha", "cudnn"),
    "optimizer": ("multi_tensor", "adam"),
}
"""Parts of kernels' names."""
COSINE, LOSS = 0.99, 2e-2
"""How far two modes may be apart in bfloat16: the gradients' cosine, and the losses' difference."""


class TorchNorm(torch.nn.Module):
    """PyTorch's rms_norm with the weight of a norm of transformers; added: 1 for Gemma's 1 + weight."""

    def __init__(self, old: Any, added: int) -> None:
        super().__init__()
        self.weight, self.added = old.weight, added
        self.eps = getattr(old, "variance_epsilon", None) or old.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight + self.added if self.added else self.weight
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps)


class Trained(NamedTuple):
    """A model's training step, and its loss and gradients before the first one."""

    step: Callable[[], None]
    loss: float
    gradients: dict[str, torch.Tensor]


def made(model: str, mode: str) -> Any:
    """Return a new model with the norms of a mode."""
    import transformers  # which tests, that only collect this file, do without

    torch.manual_seed(0)
    config = getattr(transformers, f"{model}Config")(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=5632, num_hidden_layers=8,
        max_position_embeddings=LENGTH, use_cache=False, **MODELS[model],
    )  # fmt: skip
    with torch.device("cuda"):
        found = getattr(transformers, f"{model}ForCausalLM")(config).to(torch.bfloat16)
    if mode == "torch.nn":
        for name, norm in list(found.named_modules()):
            if type(norm).__name__.endswith("RMSNorm"):
                found.set_submodule(name, TorchNorm(norm, int(model == "Gemma")))
    elif mode != "transformers":
        kind, _, how = mode.partition(" ")
        fused = how == "fused"
        kinds: dict[str, Any] = {"False": False, "True": True, "exact": "exact"}
        report = replace_norms(found, kinds[kind], fuse_residual=fused)
        assert report.left == [], report
        assert len(report.fused) == (8 if fused else 0), report
    return found


def trained(model: str, mode: str, compiled: bool) -> Trained:
    """Return the training of a new model."""
    whole = made(model, mode)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(
        0, VOCABULARY, (BATCH, LENGTH), device="cuda", generator=torch.Generator("cuda").manual_seed(0)
    )
    run: Any = torch.compile(whole, dynamic=False) if compiled else whole

    def loss_of_run() -> torch.Tensor:
        with fused_by_compiler() if mode.endswith("formulas") else nullcontext():
            return run(input_ids=tokens, labels=tokens).loss

    def step() -> None:
        loss_of_run().backward()
        optimizer.step()
        optimizer.zero_grad()

    loss = loss_of_run()
    loss.backward()
    kept = {name: one.grad.cpu() for name, one in whole.named_parameters() if ".0." in name or "norm" in name}
    step()
    return Trained(step, float(loss.detach()), kept)


def check(got: Trained, want: Trained, name: str) -> None:
    """Raise if a mode's loss or a gradient is another than the first mode's."""
    assert abs(got.loss - want.loss) <= LOSS, f"{name}: loss {got.loss} instead of {want.loss}"
    for key, gradient in want.gradients.items():
        both = gradient.float().flatten(), got.gradients[key].float().flatten()
        cosine = float(torch.nn.functional.cosine_similarity(*both, dim=0))
        assert cosine >= COSINE, f"{name}: the gradient of {key} has a cosine of {cosine}"


def peak(step: Callable[[], None]) -> int:
    """Return the most bytes that a step allocates beside what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def by_kind(step: Callable[[], None]) -> dict[str, float]:
    """Return the milliseconds of a step's kernels by their kinds: normlab's, the compiler's, products, others."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for one in profile.key_averages():
        kind = next((kind for kind, names in KERNELS.items() if any(name in one.key for name in names)), "others")
        found[kind] = found.get(kind, 0.0) + 1e-3 * one.self_device_time_total
    return found


def milliseconds(step: Callable[[], None]) -> float:
    """Return the time of a step, of STEPS in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS


def measured(model: str, modes: list[str], compiled: bool, until: float) -> dict[str, dict[str, Any]]:
    """Return by mode: milliseconds per step, their ratio to the first mode's in the same round, and peak bytes."""
    steps: dict[str, Callable[[], None]] = {}
    first: Trained | None = None
    for mode in modes:
        if compiled and time.monotonic() > until:
            break
        began = time.monotonic()
        one = trained(model, mode, compiled)
        first = first or one
        check(one, first, f"{model}, {mode}")
        steps[mode] = one.step
        for _ in range(2):
            one.step()
        torch.cuda.synchronize()
        print(f"{model} {mode}{' compiled' if compiled else ''}: ready in {time.monotonic() - began:.1f} s", flush=True)
    if len(steps) < 2:
        return {}
    found = [
        {name: milliseconds(steps[name]) for name in random.sample(list(steps), len(steps))} for _ in range(ROUNDS)
    ]
    base = modes[0]
    return {
        name: {
            "ms": statistics.median(one[name] for one in found),
            "ratio": statistics.median(one[name] / one[base] for one in found),
            "peak": peak(step),
            "kernels": by_kind(step),
        }
        for name, step in steps.items()
    }


def main(
    out: str | None = None,
    models: str = ",".join(MODELS),
    modes: str = ",".join(MODES),
    seconds: str = "3600",
    places: str = "eager,compiled",
) -> None:
    """Measure, print a table, and write a record if OUT is given."""
    until = time.monotonic() + float(seconds)
    command = " ".join(["python -m hardware.llama", *sys.argv[1:]])
    record: dict[str, Any] = {"what": "llama", **provenance(), "command": command, "rows": []}
    lines = []
    names = models.split(",")
    # eager steps of all models first: a compiled one takes half a minute to be compiled
    for place, model in [(place, name) for place in places.split(",") for name in names]:
        wanted = [mode for mode in modes.split(",") if place == "compiled" or not mode.endswith("formulas")]
        rows = measured(model, wanted, place == "compiled", until)
        record["rows"] += [{"model": model, "place": place, "norms": name, **row} for name, row in rows.items()]
        for name, row in rows.items():
            ratio, mebibytes = row["ratio"], row["peak"] / 2**20
            lines.append(f"{model:7}{place:9}{name:14}{row['ms']:8.2f} ms {ratio:8.4f} {mebibytes:10.1f} MiB")
            lines.append("    kernels: " + ", ".join(f"{kind} {ms:.2f} ms" for kind, ms in row["kernels"].items()))
        torch.compiler.reset()
        torch.cuda.empty_cache()
        if out is not None:
            with open(out, "w") as file:
                json.dump(record, file, indent=1)
    print("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
