"""Predict the bytes that autograd keeps of a forward of `normlab.studies.memory.model`, without running it.

The bytes are listed by role, each of one or several storages that `normlab.studies.memory.saved` counts; tests compare
prediction and count on the CPU. On a GPU attention also keeps its seeds, a few bytes; in float64, which has no fused
kernel there, it keeps much more.
"""

from normlab.studies.memory.model import VOCABULARY, Shape
from normlab.studies.memory.variants import FUSED, TORCH

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
STATISTICS = {"rms": 1, "layer": 2}  # per row: invvar; and a mean
LLAMA = Shape(layers=32, hidden=4096, batch=2, sequence=2048, norm="rms", dtype="bfloat16")
"""LLaMA-7B's shape, except for its vocabulary, on a batch of 4,096 tokens."""


def saved(shape: Shape, variant: str, device: str) -> dict[str, int]:
    """Return the bytes that autograd keeps, by role. variant: a norm of `normlab.studies.memory.variants`.

    Only the norms keep their inputs. The linear layers keep the norms' outputs, whatever the norms keep. No column is
    at risk (the norms' weights are about 1), so "exact" keeps what True keeps. An addition keeps nothing, alone or in a
    norm's call.
    """
    item, tokens = ITEM_BYTES[shape.dtype], shape.tokens
    wide = max(4, item)  # bytes of an accumulator, and of the kernels' statistics
    stream = tokens * shape.hidden  # elements of the residual stream
    inputs, statistics = stream * item, tokens * STATISTICS[shape.norm] * wide
    if variant in ("True", "exact", FUSED):
        inputs, statistics = 0, tokens * wide  # invvar alone: x̂ is recomputed from the output
    elif variant == TORCH and device == "cpu":
        if shape.norm == "rms":  # composed of a square, a mean, …, which keep input and x̂ in accumulator precision
            inputs = 2 * stream * wide
        else:  # statistics in the input's dtype
            statistics = tokens * STATISTICS[shape.norm] * item
    attention = 4 * stream * item + tokens * shape.heads * wide  # q, k, v, the output, and one number per row and head
    mlp = 4 * tokens * shape.inner * item  # gate, up, silu(gate), and the product
    rotary = 2 * shape.sequence * (shape.hidden // shape.heads) * item  # cos, sin
    loss = 4 * (tokens * VOCABULARY + 1)  # float32: log-probabilities, and what they are divided by
    return {
        "norm inputs": shape.norms * inputs,
        "norm outputs": shape.norms * stream * item,
        "statistics": shape.norms * statistics,
        "attention": shape.layers * attention,
        "mlp": shape.layers * mlp,
        "rest": rotary + loss,
    }


def total(shape: Shape, variant: str, device: str) -> int:
    """Return the sum of what `saved` returns."""
    return sum(saved(shape, variant, device).values())


def moved(shape: Shape, fused: bool) -> int:
    """Return the bytes that the blocks' norms and additions read and write in a step, as far as matrices go.

    fused: the first norm of a block passes the stream on, and the second one adds first. A norm then reads a gradient
    more, and no addition of gradients is left; the addition after the MLP is apart in both.
    """
    norm, addition, backward = 2, 3, 3  # matrices: read and written forward, of an addition, of a norm's backward
    if fused:
        matrices = norm + (norm + 2) + addition + 2 * (backward + 1)
    else:
        matrices = 2 * (norm + addition) + 2 * (backward + addition)
    return shape.layers * matrices * shape.tokens * shape.hidden * ITEM_BYTES[shape.dtype]


def peak(shape: Shape, device: str) -> int:
    """Return about how many bytes a step needs at least: parameters, gradients, and what is saved with saved inputs."""
    return 2 * shape.parameters * ITEM_BYTES[shape.dtype] + total(shape, TORCH, device)
