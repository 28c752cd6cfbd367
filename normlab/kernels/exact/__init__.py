"""What the exact mode adds to the backward from a saved output: x̂ of the columns at risk, kept aside.

Recomputing x̂ is as good as having saved the input, but for a few columns (`risk`). The forward finds them (`choose`)
and keeps their x̂ (`keep`); the backward's step, any of its ladder, is told what they lack in the sums along a row
(`correct`), and what it made of these columns themselves is written over (`repair`). No other column is touched, so
the step is as fast as without; with no column at risk nothing of this runs.
"""
