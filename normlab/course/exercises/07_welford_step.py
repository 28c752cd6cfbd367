"""7 · One more value: Welford's step.

A thread walks along a row and wants its mean and variance, but looks at every value once. So it
carries three numbers, the mean, m2 (the sum of squared deviations from the mean) and the count, and
brings them up to date with each value.

The kernel below starts a thread for every row: cuda.grid(1) is the number of the running thread,
counted through the whole launch, and threads past the last row have nothing to do. All of them call
the function that you write; a function that kernels call is a "device function".

In NumPy, after the values v[0] … v[count - 1]:

    mean = v[:count].mean()        m2 = ((v[:count] - mean) ** 2).sum()

The textbook's way, sum(v**2) / count - mean**2, subtracts two large numbers that are nearly equal.
For values around 1000 with a spread of 1 it leaves hardly a digit, and the checks have such values.
Welford's step has no such subtraction: with delta = value - (old mean), the mean moves by delta /
count, and m2 grows by delta · (value - new mean).

Every number here is a float32: write float32(1). With 1.0 or 1 a GPU computes in float64, which is
slow. (The check does not see that. It looks at results, and these get no worse.)

Checked: right for rows of any length, whatever their mean.

To write: about 4 lines.

Tutorial: normlab tutorials 2. Next: exercise 8, chan_merge.
"""

from normlab.engine import cuda, float32


@cuda.jit(device=True)
def welford_step(value, mean, m2, count):
    """Take one value into (mean, m2, count) and return the new three."""
    # Your lines.


@cuda.jit
def row_statistics(x, means, variances):
    """A thread per row: x is (rows, columns), means and variances are (rows,)."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        mean = float32(0)
        m2 = float32(0)
        count = float32(0)
        for column in range(x.shape[1]):
            mean, m2, count = welford_step(x[row, column], mean, m2, count)
        means[row] = mean
        variances[row] = m2 / count
