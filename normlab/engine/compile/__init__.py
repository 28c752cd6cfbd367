"""From a Python function to PTX, machine code, and what that takes of a GPU: with no GPU and no driver."""
