"""Batch, instance and group norm for PyTorch: torch.nn.functional's functions and torch.nn's modules, by name.

`functional` checks and chooses, `modules` are torch.nn's with another forward. What PyTorch sees is one autograd
function (`autograd`) and, in graphs, one operator (`operators`) for all norms, as `normlab.host.family` has one
formula. Two engines compute it, `vectorised` and `launched`, as those of `normlab.nn` do for LayerNorm, which is at
home there.
"""
