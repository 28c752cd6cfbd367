"""Batch, instance and group norm for PyTorch: torch.nn.functional's functions and torch.nn's modules, by name.

`functional` checks and chooses, `modules` are torch.nn's with another forward, `operators` are what PyTorch sees: one
operator for all norms, as `normlab.family` has one formula. Two engines compute it, `vectorised` and `launched`, as
`normlab.nn.vectorised` and `normlab.nn.launched` do for LayerNorm, which is at home there.
"""
