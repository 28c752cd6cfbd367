"""Provide the cluster kernel of step 7, one file per phase.

    kernel      puts the phases together, and says what each barrier orders
    operands    what the phases hand to each other: shared memory, a thread's share, a row
    fetch       which columns of which rows a thread has; copies to shared memory, and the waits for them
    passes      first pass over a row, second pass over it
    edges       what differs where rows begin in the middle of a vector

`layouts.ClusterLayout` says what a kernel is built for. Python decides conditions on it when it builds the kernel, so
they cost the GPU nothing. The words for its parts:

    slice       a row is divided into slices; a slice has one block, or `spread` smaller blocks
    span        the columns of a slice that its threads' first vectors cover, then their second vectors, …
    block span  the part of a span that one block has: the whole span if a slice has one block
    readers     clusters that read the same row, of which each writes a part of the output
    kept        registers hold the thread's part of the row from its arrival to its output

For example, with two blocks per slice and two vectors per thread a slice has two spans:

    columns   | span 0: block 0 | span 0: block 1 | span 1: block 0 | span 1: block 1 |
"""
