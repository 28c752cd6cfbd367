"""Measure what saving norms' outputs brings: memory and time of a LLaMA-shaped model, and a small model trained.

`measure` is `normlab memory`, `train` is `normlab train`; both run the `model` with each of the `variants` of its
norms. `saved` counts what autograd keeps for the backward, `prediction` predicts it.
"""

import normlab.nn as _nn  # noqa: F401  # which says what to install where PyTorch is missing
