"""What the exact mode adds to the backward from a saved output: x̂ of the columns at risk, kept aside."""
