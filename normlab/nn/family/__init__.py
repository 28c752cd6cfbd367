"""Batch, instance and group norm for PyTorch: torch.nn.functional's functions and torch.nn's modules, by name.

`functional` checks the arguments and chooses how to compute; `modules` are torch.nn's modules with another forward. All
norms share one autograd function (`autograd`) and, in graphs, one operator (`operators`), because they have one formula
(`normlab.host.family`). `launched` computes it by normlab's kernels, `aten` by PyTorch's kernels on a CPU, and
`vectorised` by PyTorch's differentiable operations. `normlab.nn` itself has LayerNorm and RMSNorm.
"""
