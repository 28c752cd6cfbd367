"""Kernels as NumPy, rounding where the bounds say a kernel rounds, for the tests of the bounds.

A row is dealt out to `threads` threads in turn; each works through its values one after another, then the
threads' results are merged in a tree that halves them. `cuts` divides a row into groups first, each with `threads`
threads of its own; a tree over the groups follows. Every array is of the accumulator's type U, so NumPy rounds each
operation to U. A method is one place where a kernel can be wrong: the tests override one to get a broken kernel.
"""

from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

from normlab.oracle import Arithmetic

DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def stored(values, name):
    """Rounded once to a storage format. (ml_dtypes rounds float64 to bfloat16 in two steps: by way of float32.)"""
    return values.astype(DTYPES[name])


class Forward(NamedTuple):
    output: np.ndarray
    mean: np.ndarray | None
    invvar: np.ndarray


class Backward(NamedTuple):
    grad_input: np.ndarray
    grad_weight: np.ndarray | None
    grad_bias: np.ndarray | None


@dataclass(frozen=True)
class NumpyKernels:
    input: str = "float32"
    output: str = "float32"
    parameter: str = "float32"
    threads: int = 1
    column_threads: int = 1
    statistics: str = "welford"
    rms: bool = False
    cuts: tuple[float, ...] = ()  # where a group of a row ends and the next begins, in shares of it; not for Welford's
    reciprocal: bool = False  # times 1/n instead of divided by n
    fast_root: bool = False
    means: bool = False  # grad_input by means instead of sums

    @property
    def U(self):  # noqa: N802
        return np.float64 if self.input == "float64" else np.float32

    def arithmetic(self, n1, n2):
        return Arithmetic(
            input=self.input,
            output=self.output,
            parameter=self.parameter,
            accumulator=np.dtype(self.U).name,
            row_terms=-(-self.counts(n2).max() // self.threads),
            row_merges=self.threads.bit_length() - 1 + len(self.cuts).bit_length(),
            column_terms=max(1, -(-n1 // self.column_threads)),
            column_merges=self.column_threads.bit_length() - 1,
            statistics=self.statistics,
        )

    def load(self, values):
        return None if values is None else values.astype(self.U)

    # sums

    def ends(self, n2):
        """Where the groups end, but for the last."""
        return [int(cut * n2) for cut in self.cuts]

    def counts(self, n2):
        """How many values each group has; 0 is possible."""
        return np.diff([0, *self.ends(n2), n2])

    def sum(self, values, threads):
        """(n1, n2) to (n1, 1)."""
        partial = np.zeros((values.shape[0], threads), values.dtype)
        for start in range(0, values.shape[1], threads):
            chunk = values[:, start : start + threads]
            partial[:, : chunk.shape[1]] += chunk
        return self.tree(partial)

    def tree(self, partial):
        """(n1, any number) to (n1, 1), halving."""
        while partial.shape[1] > 1:
            half = (partial.shape[1] + 1) // 2
            lower, upper = partial[:, :half].copy(), partial[:, half:]
            lower[:, : upper.shape[1]] += upper
            partial = lower
        return partial

    def group_sums(self, values):
        """(n1, n2) to (n1, groups)."""
        return np.hstack([self.sum(group, self.threads) for group in np.split(values, self.ends(values.shape[1]), 1)])

    def row_sum(self, values):
        return self.tree(self.group_sums(values))

    def column_sum(self, values):
        return self.sum(np.ascontiguousarray(values.T), self.column_threads)[:, 0]

    # statistics

    def welford(self, x):
        U = self.U
        mean, m2, count = (np.zeros((x.shape[0], self.threads), U) for _ in range(3))
        for start in range(0, x.shape[1], self.threads):
            chunk = x[:, start : start + self.threads]
            here = slice(0, chunk.shape[1])
            count[:, here] += U(1)
            delta = chunk - mean[:, here]
            mean[:, here] += delta / count[:, here]
            m2[:, here] += delta * (chunk - mean[:, here])
        while mean.shape[1] > 1:
            left, right = zip(*(self.sides(part) for part in (mean, m2, count)), strict=True)
            mean, m2, count = self.chan(*left, *right)
        return mean, self.variance_of(m2, count)

    def sides(self, partial):
        """What a level of merges has on the left, and on the right."""
        half = partial.shape[1] // 2
        return partial[:, :half], partial[:, half:]

    def chan(self, mean_a, m2_a, count_a, mean_b, m2_b, count_b):
        count = count_a + count_b
        with np.errstate(invalid="ignore"):
            share = np.where(count > 0, count_b / count, self.U(0))
        delta = mean_b - mean_a
        return mean_a + delta * share, m2_a + m2_b + delta * (delta * (count_a * share)), count

    def variance_of(self, m2, count):
        return m2 / count

    def divided(self, total, count):
        count = self.U(count)
        return total * (1 / count) if self.reciprocal else total / count

    def two_pass(self, x):
        n2 = x.shape[1]
        mean = self.divided(self.row_sum(x), n2)
        deviation = x - mean
        return mean, self.divided(self.row_sum(deviation * deviation), n2)

    def grouped(self, x):
        n2 = x.shape[1]
        counts, sums = self.counts(n2), self.group_sums(x)
        means = self.divided(sums, np.maximum(counts, 1))
        mean = self.divided(self.tree(sums), n2)
        squares = self.within(x, counts, means) + self.between(self.U(counts), means - mean)
        return mean, self.divided(self.tree(squares), n2)

    def within(self, x, counts, means):
        deviation = x - np.repeat(means, counts, axis=1)
        return self.group_sums(deviation * deviation)

    def between(self, counts, delta):
        """By the count first: an empty group's 0 must meet `delta` before its square overflows."""
        return counts * delta * delta

    def moments(self, x):
        if self.rms:
            return None, self.divided(self.row_sum(x * x), x.shape[1])
        return getattr(self, self.statistics)(x)

    def invvar(self, variance, eps):
        if self.fast_root:  # rsqrtf, 2 ulp off
            right = 1 / np.sqrt((variance + self.U(eps)).astype(np.longdouble))
            return (right * (1 + 3 * np.longdouble(np.finfo(self.U).eps) / 2)).astype(self.U)
        return self.U(1) / np.sqrt(variance + self.U(eps))

    # whole kernels

    def forward(self, x, weight, bias, eps):
        with np.errstate(all="ignore"):
            x, weight, bias = self.load(x), self.load(weight), self.load(bias)
            mean, variance = self.moments(x)
            invvar = self.invvar(variance, eps)
            y = (x if self.rms else x - mean) * invvar
            y = y if weight is None else y * weight
            y = y if bias is None else y + bias
            return Forward(stored(y, self.output), None if self.rms else mean[:, 0], invvar[:, 0])

    def clamp(self, weight, eps):
        eps = self.U(eps)
        return np.where(weight >= 0, np.maximum(weight, eps), np.minimum(weight, -eps))

    def backward(self, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient):
        with np.errstate(all="ignore"):
            dy, saved, weight, bias = (self.load(v) for v in (grad_output, saved, weight, bias))
            invvar = invvar[:, None]
            g = true_g = dy if weight is None else dy * weight
            if memory_efficient:
                shifted = saved if bias is None else saved - bias
                xhat, terms2 = shifted, dy * shifted
                if weight is not None:
                    xhat, g = shifted / self.clamp(weight, eps), dy * self.clamp(weight, eps)
            else:
                xhat = (saved if self.rms else saved - mean[:, None]) * invvar
                terms2 = g * xhat
            n = self.U(saved.shape[1])
            sum1, sum2 = (self.U(0) if self.rms else self.row_sum(true_g)), self.row_sum(terms2)
            if self.means:
                grad_input = (g - (sum1 * (1 / n) + xhat * (sum2 * (1 / n)))) * invvar
            else:
                grad_input = (n * g - sum1 - xhat * sum2) * (invvar / n)
            return Backward(
                stored(grad_input, self.input),
                None if weight is None else stored(self.column_sum(dy * xhat), self.parameter),
                None if bias is None else stored(self.column_sum(dy), self.parameter),
            )
