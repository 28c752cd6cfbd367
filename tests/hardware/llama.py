"""What the norms of a Llama cost in a training step: python -m hardware.llama [OUT.json [MODES]]

8 blocks of hidden 2,048, batch 4 x 2,048, bfloat16, fused AdamW; eager and compiled. The models train in turn, in
another order each round, because a GPU at its power limit is slower the longer it has run; and a step's time is
compared with that of memory_efficient=True in the same round.
"""

import json
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from normlab.measure.provenance import provenance
from normlab.nn import replace_norms

ROUNDS, STEPS = 25, 4
MODES: dict[str, Any] = {"transformers": None, "False": False, "True": True, "exact": "exact"}
BATCH, LENGTH, VOCABULARY = 4, 2048, 32000


def trained(mode: Any, compiled: bool) -> Callable[[], None]:
    """A step of training of a new model, its norms replaced unless mode is None."""
    from transformers import LlamaConfig, LlamaForCausalLM  # which tests, that only collect this file, do without

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=16, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    if mode is not None:
        replace_norms(model, memory_efficient=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")
    run: Any = torch.compile(model) if compiled else model

    def step() -> None:
        run(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak(step: Callable[[], None]) -> int:
    """The most bytes that a step allocates beside what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def milliseconds(step: Callable[[], None]) -> float:
    """The time of a step, of STEPS behind each other."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS


def shuffled(names: list[str]) -> list[str]:
    """The names in another order."""
    return random.sample(names, len(names))


def measured(modes: list[str], compiled: bool) -> dict[str, dict[str, float]]:
    """By mode: milliseconds a step, that over True's in the same round, and peak bytes."""
    steps = {name: trained(MODES[name], compiled) for name in modes}
    for step in steps.values():
        for _ in range(3):
            step()
    found = [{name: milliseconds(steps[name]) for name in shuffled(list(steps))} for _ in range(ROUNDS)]
    return {
        name: {
            "ms": statistics.median(one[name] for one in found),
            "over True": statistics.median(one[name] / one["True"] for one in found),
            "peak": peak(step),
        }
        for name, step in steps.items()
    }


def main(out: str | None = None, modes: str = ",".join(MODES)) -> None:
    """Measure, print a table, and write a record if OUT is given. modes: some of MODES, True among them."""
    command = " ".join(["python -m hardware.llama", *sys.argv[1:]])
    record: dict[str, Any] = {"what": "llama", **provenance(), "command": command}
    for compiled in (False, True):
        record["compiled" if compiled else "eager"] = rows = measured(modes.split(","), compiled)
        for name, row in rows.items():
            place = "compiled" if compiled else "eager"
            print(f"{place:9}{name:14}{row['ms']:8.2f} ms {row['over True']:8.4f} {row['peak'] / 2**20:10.1f} MiB")
        torch.cuda.empty_cache()
        if out is not None:
            with open(out, "w") as file:
                json.dump(record, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
