"""The forward ladder: y = (x - mean) / sqrt(variance + eps) * gamma + beta, over the rows of (n1, n2).

RMSNorm is the same kernel with the mean left out: compiled with None for `mean`, it centres on 0.
The least it can move: read x and write y once, 2 n1 n2 itemsize bytes. "Measured" in a step's file is those bytes over
its time, as a fraction of what a copy of the same size reaches: one H200, 2^27 elements, n2 = 4096, bfloat16 / float32.
"""
