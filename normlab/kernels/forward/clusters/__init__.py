"""Provide the cluster kernel of step 7, a chapter in phases.

    kernel      puts the phases together, and what each barrier orders
    operands    what the phases hand to each other: shared memory, a thread's share, a row
    fetch       which columns of which rows a thread has; copies to shared memory, and the waits for them
    passes      first pass over a row, second pass over it

`layouts.Slices` says what a kernel is built for. Conditions on it are decided when a kernel is built.
"""
