"""The driver, arrays in GPU memory, and launches, on a GPU or in the simulator."""
