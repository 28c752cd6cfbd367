"""What the exact mode adds to the backward from a saved output: x̂ of the columns at risk, kept aside.

Recomputing x̂ is as good as having saved the input, except in a few columns (`risk`), more of them where eps hides how
far the rows vary (`spread`). They are found for one norm (`choose`) or for many in one launch (`survey`). The forward
keeps their x̂ (`keep`). The backward then runs any step of its ladder between two others: `correct` computes what the
columns at risk lack in each row's sum, which the step adds, and `repair` overwrites the gradients of these columns. No
other column is touched, so the step is as fast as without; with no column at risk nothing of this runs.
"""
