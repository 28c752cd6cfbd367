"""Call the driver, allocate arrays in GPU memory, and launch kernels on a GPU or in the simulator."""
