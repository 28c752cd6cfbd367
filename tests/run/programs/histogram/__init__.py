"""A package beside the script, with kernels of its own."""
