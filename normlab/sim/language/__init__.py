"""What Python source means on the device: the rewritten function, its numbers, operators and arrays."""
