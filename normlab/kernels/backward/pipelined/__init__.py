"""Provide the pipelined backward kernel of step 3, a chapter in phases, one file a phase.

    kernel       puts the phases together
    operands     what the phases hand to each other: arrays, shared memory, a thread's share, a row
    prologue     which columns of which rows a thread has; the first copies
    parameters   gamma and beta in shared memory
    passes       fetch a row, first pass over it, second pass over it
    exchange     the sums of a row's warps, between blocks too
    turns        row after row: the phases of one turn, and what each barrier orders
    columns      the epilogue: the columns' sums become the parameters' gradients

`layout` and `kind` say what a kernel is built for. Conditions on them are decided when a kernel is built.
"""
