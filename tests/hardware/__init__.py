"""The simulator's counters and findings held to the hardware's: `ncu` and `compute-sanitizer`, where there are any."""
