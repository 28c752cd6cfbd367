# %% [markdown]
# # 10. Testing kernels: oracle, bounds, properties, mutants, sanitizer
#
# **Aim.** Write tests that notice. See five ways in which a test passes a wrong kernel, and what to do instead.
#
# **Before.** Tutorials [2](02_moments.ipynb) to [6](06_forward.ipynb).
#
# **Time.** 35 minutes.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from normlab import oracle
from normlab.engine import cast, cuda, float32, launch, load, store, using
from normlab.learn import lesson
from normlab.sim import sanitize, simulate
from normlab.stages import block_sum, chan_merge, warp_sum_butterfly, welford_step

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## 1. "allclose" says yes
#
# Here is a wrong LayerNorm: it divides by n − 1 instead of n. And here is a test as one finds it in many repositories.


# %%
def layer_norm_wrong(x, eps=1e-5):
    mean = x.mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=1, ddof=1, keepdims=True) + eps)


x = np.random.default_rng(0).normal(size=(8, 768)).astype(f32)
right = oracle.layer_norm(x, 768).output
np.testing.assert_allclose(layer_norm_wrong(x), right, atol=1e-2, rtol=1e-2)
print("passed. Largest error:", np.abs(layer_norm_wrong(x) - right).max())

# %% [markdown]
# The tolerance 1e-2 is popular because half precision needs something like that. But it does not come from anywhere.
# The error of ddof=1 is 1/(2n) of each value, 0.0007 for n = 768: it hides behind the tolerance.
#
# There is worse. This test compares as many do, and gets a result full of NaN:

# %%
got = np.full_like(right, np.nan)
failed = np.abs(got - right).max() > 1e-2
print("the test fails:", failed)

# %% [markdown]
# Every comparison with NaN is False. So "error > tolerance" is False, and the test passes. Write it the other way
# round, `assert error <= tolerance`: that is False, too, and so the assertion fails. As it should.
#
# ## 2. A bound instead of a tolerance
#
# How wrong may a correct kernel be? That can be *derived*, for each element, before the kernel runs.
#
# One operation on float32 gives the exact result times (1 + δ) with |δ| ≤ u = 2⁻²⁴. A value that goes through k
# operations is off by a factor of at most 1 + γ_k, where γ_k = k u / (1 − k u) (Higham 2002, chapter 3; this γ is not a
# norm's weight).
#
# A sum of n numbers: each goes through at most D additions, where D is n − 1 for a chain and ⌈log₂ n⌉ for a tree. So
#
# $$ |\text{error of the sum}| \le \gamma_D \sum_i |x_i| $$
#
# No constant is left to be chosen. Hold it against reality:


# %%
def tree(values):
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return values[0]


u = 2.0**-24
sizes = 2 ** np.arange(2, 19)
figure, ax = plt.subplots()
for name, adding, depth in (
    ("chain", lambda values: np.cumsum(values)[-1], lambda n: n - 1),
    ("tree", tree, lambda n: math.log2(n)),
):
    ratios = []
    for n in sizes:
        values = np.random.default_rng(n).normal(size=n).astype(f32)
        error = abs(float(adding(values)) - values.sum(dtype=np.float64))
        k = depth(n)
        ratios.append(error / (k * u / (1 - k * u) * np.abs(values.astype(np.float64)).sum()))
    ax.loglog(sizes, np.maximum(ratios, 1e-7), "o-", label=name)
ax.axhline(1, color="black", linewidth=0.8)
ax.set(xlabel="values", ylabel="error / bound", title="A correct sum stays below 1", ylim=(5e-8, 3))
ax.legend()
plt.show()

# %% [markdown]
# Each line is divided by its own bound. The tree is above the chain because its bound is so much smaller, and not because
# its errors are larger.
#
# The bound is for the worst input and the worst luck; usually roundings cancel, and the sum uses a small part. So is
# the bound too loose to notice mistakes? Look at the wrong LayerNorm again. The oracle takes a description of how a
# kernel adds, and gives a bound for each element. Say that 128 threads add up a row: 768 / 128 = 6 terms in each thread,
# then 5 + 2 levels of merges (tutorial 6):

# %%
arithmetic = oracle.Arithmetic(row_terms=6, row_merges=7, column_terms=1, column_merges=0, statistics="two_pass")
bound = oracle.layer_norm_bound(x, 768, None, None, 1e-5, arithmetic).output
print("bound, typically:", np.median(bound))
try:
    oracle.assert_within(layer_norm_wrong(x), right, bound, "output")
except AssertionError as error:
    print(error)

# %% [markdown]
# `assert_within` also demands that NaNs and infinities are where they should be, and returns the largest error / bound.
# Write that ratio down: if it was 0.1 for a year, and is 0.9 today, something has changed.
#
# <details><summary><b>Question.</b> Why must the oracle know <em>how</em> the kernel adds?</summary>
#
# A chain of 4,096 terms may be off by 4,096 u, a tree of depth 12 by 12 u. If both get the chain's bound, then a tree
# with a mistake worth 1,000 u passes.
# </details>
#
# ## 3. Draw the inputs, and shrink what fails
#
# A kernel with a common mistake: it takes four elements a step, and forgets what is left over at the end of a row.


# %%
@cuda.jit
def row_sum_forgetful(x, total):
    """A block of 32 threads a row."""
    row = cuda.blockIdx.x
    value = cast(0, total)
    column = 4 * cuda.threadIdx.x
    while column + 4 <= x.shape[1]:
        for k in range(4):
            value += load(x, (row, column + k))
        column += 128
    value = warp_sum_butterfly(value)
    if cuda.threadIdx.x == 0:
        store(total, row, value)


def holds(n1, n2, seed):
    """Is the kernel right on this input?"""
    x = np.random.default_rng(seed).normal(size=(n1, n2)).astype(f32)
    total = np.full(n1, np.nan, f32)  # poison: what is not written shows
    launch(row_sum_forgetful, n1, 32, x, total)
    k = 4 * -(-n2 // 128) + 5
    bound = k * u / (1 - k * u) * np.abs(x).sum(axis=1, dtype=np.float64)
    return bool((np.abs(total - x.sum(axis=1, dtype=np.float64)) <= bound).all())


for n2 in (128, 256, 512, 768, 1024):
    print(f"n2 = {n2:4}: {holds(2, n2, 0)}")

# %% [markdown]
# All right! Real models have such widths, and tests are full of them. Now draw shapes instead of choosing them. And if
# one fails, look for a *smaller* one that still fails: that is what one wants to debug.

# %%
rng = np.random.default_rng(1)
for _ in range(20):
    case = tuple(int(n) for n in (rng.integers(1, 5), rng.integers(1, 300), rng.integers(100)))
    if not holds(*case):
        break
print("fails:", case)


def shrink(case):
    """Make one of the numbers smaller, the smallest first, as long as it still fails."""
    for place, least in enumerate((1, 1, 0)):
        for smaller in range(least, case[place]):
            attempt = (*case[:place], smaller, *case[place + 1 :])
            if not holds(*attempt):
                return shrink(attempt)
    return case


print("smallest that fails:", dict(zip(("n1", "n2", "seed"), shrink(case), strict=True)))

# %% [markdown]
# One row with one element. Now the mistake is obvious. The library [Hypothesis](https://hypothesis.readthedocs.io)
# draws and shrinks for you; normlab's tests use it everywhere.
#
# What to draw? Not just normal random numbers. Offsets (κ of tutorial 2), one huge feature, equal values, tiny values,
# infinities, NaN; γ = 0 and γ near ε; widths around 32, 128 and their multiples; no rows at all.
#
# **Properties** are another source of tests, and need no oracle. For a LayerNorm:
#
# - adding a constant to a row changes nothing (up to rounding);
# - shuffling the columns of x, γ and β shuffles the output;
# - a row's result does not depend on other rows, to the last bit.
#
# <details><summary><b>Question.</b> Scaling a row by 2 changes nothing in its output. True?</summary>
#
# Only if ε = 0: ε does not scale along. With variance 1 and ε = 10⁻⁵ the change is about 4 · 10⁻⁶, far above rounding.
# </details>
#
# ## 4. Who tests the tests? Mutants
#
# A test that cannot fail proves nothing. So put a mistake into the code on purpose, a **mutant**, and see whether the
# tests notice. Here are mutants of `chan_merge`, and six small tests.

# %%
original = lesson.source(chan_merge)
mutants = {
    "original": ("", ""),
    "share of the wrong group": ("share_b = count_b / count", "share_b = count_a / count"),
    "no care for empty groups": ("if count > 0:", "if count >= 0:"),
    "nothing between the groups": (" + delta * (delta * (count_a * share_b))", ""),
    "count of a forgotten": ("(count_a * share_b)", "share_b"),
    "delta squared first": ("delta * (delta * (count_a * share_b))", "(delta * delta) * (count_a * share_b)"),
    "a weighted average": ("mean_a + delta * share_b", "(count_a / count) * mean_a + share_b * mean_b"),
    "delta's sign, twice": ("delta * (delta * (count_a", "-delta * (-delta * (count_a"),
}


def made(old, new):
    """The merge with a piece of its text replaced, as a Python function."""
    assert old in original
    names = {"cuda": cuda, "float32": float32}
    exec(original.replace(old, new), names)
    return names["chan_merge"].py_func


def group(values):
    found = f32(0), f32(0), f32(0)
    for value in np.asarray(values, f32):
        found = welford_step.py_func(value, *found)
    return found


def close(got, values):
    """Within 1e-5 of NumPy's float64, mean, m2 and count; NaN is not."""
    values = np.asarray(values, np.float64)
    want = values.mean(), values.var() * len(values), len(values)
    return all(abs(one - other) <= 1e-5 * max(1, abs(other)) for one, other in zip(got, want, strict=True))


a, b = np.random.default_rng(2).normal(size=(2, 16))
b = b[:4] + 3
tests = {
    "halves": lambda merge: close(merge(*group(a[:8]), *group(a[8:])), a),
    "unequal groups": lambda merge: close(merge(*group(a), *group(b)), [*a, *b]),
    "one empty": lambda merge: close(merge(*group(a), *group([])), a),
    "both empty": lambda merge: merge(*group([]), *group([])) == (0, 0, 0),
    "huge, one empty": lambda merge: merge(f32(1e20), f32(0), f32(1), *group([])) == (f32(1e20), 0, 1),
    "equal means stay": lambda merge: all(
        merge(f32(0.1), f32(0), f32(n), f32(0.1), f32(0), f32(m))[0] == f32(0.1)
        for n in range(1, 9)
        for m in range(1, 9)
    ),
}
with np.errstate(all="ignore"):
    passed = np.array([[bool(test(made(*change))) for test in tests.values()] for change in mutants.values()])
figure, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
ax.imshow(passed, cmap="RdBu", vmin=-0.5, vmax=1.5, aspect="auto")
for row, line in enumerate(passed):
    for column, value in enumerate(line):
        ax.text(column, row, "passes" if value else "FAILS", ha="center", va="center", fontsize=8, color="white")
ax.set_xticks(range(len(tests)), list(tests), fontsize=8)
ax.set_yticks(range(len(mutants)), list(mutants), fontsize=8)
plt.show()

# %% [markdown]
# Read it by rows. A mutant whose row has a FAILS is caught. Look at "share of the wrong group": the test with two equal
# halves does *not* notice, because both shares are ½. A symmetric test is blind to asymmetric mistakes. Or "delta squared
# first": the same in algebra, but (10²⁰)² is too large for a float32, and infinity times an empty group's 0 is NaN.
#
# The last mutant passes everything. Is a test missing? No: (−δ)(−δ) = δ², so it is the same function. Such a mutant is
# called **equivalent**.
#
# Read it by columns, too. A column with few FAILS: does one need that test? "equal means stay" catches one mutant that
# no other test catches.
#
# normlab keeps a list of such mutations of its stages and kernels in `tests/test_mutants.py`; the suite must reject
# every one.
#
# ## 5. A right result proves nothing about order
#
# Tutorial 5 had it: a missing barrier often gives the right result. Tests look at results. So one needs something that
# looks at *order*.


# %%
@cuda.jit
def block_sums_of_rows(x, total):
    """A block takes several rows. Is something missing?"""
    buffer = cuda.shared.array(4, float32)
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    for row in range(x.shape[0]):
        value = warp_sum_butterfly(x[row, cuda.threadIdx.x])
        if lane == 0:
            buffer[warp] = value
        cuda.syncthreads()  # all four sums are there before they are added
        if cuda.threadIdx.x == 0:
            total[row] = buffer[0] + buffer[1] + buffer[2] + buffer[3]


x = np.random.default_rng(3).normal(size=(3, 128)).astype(f32)
for schedule in ("forward", "reverse", 1, 2, 3):
    total = np.full(3, np.nan, f32)
    simulate(block_sums_of_rows, schedule=schedule)[1, 128](x, total)
    print(f"order {schedule!r:9} right:", np.allclose(total, x.sum(axis=1), atol=1e-4))

# %% [markdown]
# Some orders give the right result. The sanitizer does not depend on luck:

# %%
print(sanitize(block_sums_of_rows)[1, 128](x, total))

# %% [markdown]
# What about NVIDIA's own tool, compute-sanitizer? normlab has a collection of <!--=planted-->68<!--=--> planted bugs. Both
# tools were tried on the first <!--=planted on a GPU-->55<!--=--> of them, compute-sanitizer on an H200:

# %%
import json
from importlib.resources import files

record = json.loads((files("normlab.bench") / "records" / "sanitizers_h200.json").read_text())
bugs = record["bugs"].values()
tools = ("racecheck", "memcheck", "initcheck", "synccheck")
kinds = sorted({bug["kind"] for bug in bugs})
found_by_nvidia = [
    sum(any(bug[tool]["verdict"] == "found" for tool in tools) for bug in bugs if bug["kind"] == kind) for kind in kinds
]
found_by_normlab = [sum(bug["normlab"]["verdict"] == "found" for bug in bugs if bug["kind"] == kind) for kind in kinds]
planted = [sum(bug["kind"] == kind for bug in bugs) for kind in kinds]
figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
places = np.arange(len(kinds))
ax.barh(places, planted, 0.8, color="#dfe5ec", label="planted")
ax.barh(places - 0.2, found_by_normlab, 0.35, color="#1b4f8a", label="normlab's sanitize")
ax.barh(places + 0.2, found_by_nvidia, 0.35, color="#c8401a", label="compute-sanitizer, any of its four tools (H200)")
ax.set_yticks(places, kinds)
ax.invert_yaxis()
ax.legend(fontsize=8)
plt.show()

# %% [markdown]
# (The collection is normlab's own, so take it as a list of what is possible, and not as a fair race. compute-sanitizer
# looks at memory as the hardware has it, and works on compiled code of any language.)
#
# <details><summary><b>Question.</b> Mend <code>block_sums_of_rows</code>. Where does the second barrier go, and what does it order?</summary>
#
# At the end of the loop's body: thread 0 has read this row's four sums before the next row's overwrite them. One could
# also take the stage
# <code>block_sum</code>, which begins with such a barrier.
# </details>
#
# ## 6. Test stages alone
#
# An error in a whole LayerNorm could come from anywhere. A stage can be tested alone, with a kernel that does nothing
# else. That is why normlab is built of stages:


# %%
@cuda.jit
def only_block_sum(x, total):
    buffer = cuda.shared.array((2, 32), float32)
    total[cuda.threadIdx.x] = block_sum(x[cuda.threadIdx.x], buffer)


for warps in (1, 2, 3, 5, 8, 31):  # also numbers that do not halve evenly
    x = np.zeros(32 * warps, f32)
    x[::32] = np.arange(1, warps + 1)  # the stage takes the values of each warp's lane 0
    total = np.full(32 * warps, np.nan, f32)
    launch(only_block_sum, 1, 32 * warps, x, total)
    assert (total == warps * (warps + 1) / 2).all(), warps
print("block_sum is right for all of them, in every thread")

# %% [markdown]
# ## Here
#
# What does watching cost? One launch, plain and under the sanitizer, which always runs in the simulator.

# %%
x, total = np.ones((3, 128), f32), np.zeros(3, f32)
print("plain:    ", lesson.timed(lambda: launch(block_sums_of_rows, 1, 128, x, total)))
with using("simulator"):
    print("sanitized:", lesson.timed(lambda: sanitize(block_sums_of_rows)[1, 128](x, total)))

# %% [markdown]
# ## What you have seen
#
# | trap | remedy |
# | --- | --- |
# | a tolerance from nowhere | a derived bound for each element, and the ratio written down |
# | NaN passes | assert `error <= bound`; poison outputs first |
# | nice shapes, nice numbers | drawn inputs, shrunk; properties |
# | tests that cannot fail | mutants |
# | right by luck | a sanitizer that looks at order |
#
# ## Exercise
#
# The course's exercise 20 is a racy kernel to be mended: `normlab course check 20`. And every check of the course is
# made of what you saw here. Before that: how many mutants does the test "unequal groups" catch? And think of a mutant that
# all six tests let pass; which seventh test catches it?

# %%
from normlab import course

caught_by_unequal_groups = None  # your answer: how many of the mutants does "unequal groups" catch?

course.check(caught_by_unequal_groups, "caught_by_unequal_groups")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Ask `passed`, which has a row for each mutant and a column for each test. As for a seventh test: each of the six has
# 20 values at most, so a merge that stops counting at 100 passes them all. A test with 300 values catches it.
#
# ```python
# column = list(tests).index("unequal groups")
# course.check(int((~passed[:, column]).sum()), "caught_by_unequal_groups")
#
#
# def many(merge):
#     values = np.random.default_rng(3).normal(size=300)
#     return close(merge(*group(values[:150]), *group(values[150:])), values)
#
#
# stops_counting = made("count_a + count_b", "min(count_a + count_b, float32(100))")
# print("six tests:", [bool(test(stops_counting)) for test in tests.values()], "seventh:", many(stops_counting))
# ```
# </details>
#
# Next: [11. The row kernel and the family](11_family.ipynb).
