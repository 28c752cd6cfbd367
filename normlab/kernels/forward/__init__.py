"""The forward ladder: y = (x - mean) / sqrt(variance + eps) * gamma + beta, over the rows of (n1, n2).

RMSNorm is the same kernel with the mean left out: compiled with None for `mean`, it centres on 0.
The least it can move: read x and write y once, 2 n1 n2 itemsize bytes. Every step is measured against that.
"""
