"""Programs whose races are known beforehand, from public collections: their patterns, made anew for `numba.cuda`."""
