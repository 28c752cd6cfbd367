"""Norms in the residual stream of a model: an addition and a norm, or a norm and the stream past it, in one call.

`calls` is what fused layers and norms with an offset call: eagerly it runs `normlab.nn.add_norm.autograd`, and
`operators` in graphs of torch.compile. `rewrite` and `layers` put the calls into a model's layers. `compare` checks the
rewritten layers.
"""
