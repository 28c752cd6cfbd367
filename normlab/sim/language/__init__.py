"""Give Python source its meaning on the device: rewrite functions, and define numbers, operators and arrays."""
