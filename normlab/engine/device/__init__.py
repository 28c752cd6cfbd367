"""The intrinsics that kernels call, each with a Python twin for the simulator."""
