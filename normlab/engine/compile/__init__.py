"""Compile a Python function to PTX and machine code, and report its registers and shared memory, without a GPU."""
