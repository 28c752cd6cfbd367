"""What kernels call: intrinsics, each with a Python twin for the simulator."""
