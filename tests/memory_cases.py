"""For the tests of normlab.studies.memory: a model with set parameters, and a batch for it."""

import torch

from normlab.studies.memory.model import Decoder, Shape


def decoder(shape: Shape) -> Decoder:
    model = Decoder(shape, "cpu")
    model.reset(0)
    return model


def tokens(shape: Shape) -> list[torch.Tensor]:
    """[inputs, targets]."""
    random = torch.Generator().manual_seed(1)
    return [torch.randint(255, (shape.batch, shape.sequence), generator=random) for _ in range(2)]
