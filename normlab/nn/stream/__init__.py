"""Norms in the residual stream of a model: an addition and a norm, or a norm and the stream past it, in one call.

`calls` is what fused layers and norms with an offset call. `autograd` computes it eagerly, and `operators` in graphs of
torch.compile. `rewrite` and `layers` put the calls into a model's layers, and `compare` checks the rewritten layers.
"""
