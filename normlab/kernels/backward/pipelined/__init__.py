"""Provide the pipelined backward kernel of step 3, one file per phase.

    kernel       puts the phases together
    operands     what the phases hand to each other: arrays, shared memory, a thread's share, a row
    prologue     which columns of which rows a thread has; the first copies
    parameters   gamma and beta in shared memory
    passes       fetch a row, first pass over it, second pass over it
    edges        what the passes do at the two ends of rows that begin in the middle of a vector
    exchange     the sums of a row's warps, between blocks too
    turns        row after row: the phases of one turn, and what each barrier orders
    columns      the epilogue: the columns' sums become the parameters' gradients

`layout` and `kind` say what a kernel is built for. Python decides conditions on them when it builds the kernel, so they
cost the GPU nothing. In formulas g = dy gamma, and x̂ is the normalised input.
"""
