"""What saving a norm's output brings in use: memory and time of a LLaMA-shaped model, and a small one trained.

`measure` is `normlab memory`, `train` is `normlab train`; both run the `model` with each of the `variants` of its
norms. `saved` counts what autograd keeps for the backward, `prediction` says it in advance.
"""

import normlab.nn as _nn  # noqa: F401  # which says what to install where PyTorch is missing
