# %% [markdown]
# # 16. A row that lives on four machines
#
# **Aim.** Normalise rows whose columns lie on several processes: find out what they must tell each other, in which order
# to merge it, and what the backward needs.
#
# **Before.** Tutorials [3](03_chan.ipynb) and [7](07_backward.ipynb); PyTorch, for the processes.
#
# **Time.** 25 minutes.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from normlab import oracle
from normlab.distributed import sharded_layer_norm
from normlab.learn import lesson
from normlab.learn.ranks import on_ranks
from normlab.oracle.merging import tree

lesson.begin()
f32 = np.float32

# %% [markdown]
# ## Why would a row be cut?
#
# A large model does not fit on one GPU. **Tensor parallelism** cuts its matrices: of a hidden dimension of 8,192, each of
# four GPUs has 2,048 columns. The matrix products are made for that. A LayerNorm is not: its mean and variance go over
# the whole row.
#
# A process of such a program is called a **rank**. Ranks talk by **collectives**, which all of them call together. In an
# **all-gather** each rank gives a message, and each gets the messages of all. In an **all-reduce** each gives numbers, and
# each gets their sums.
#
# The plain way: all-gather x, normalise whole rows, keep the own columns. It is right, and it sends every number of x. We
# want to send a few numbers a row.
#
# Here is one row of 20 columns, cut unevenly: the ranks have 3, 9, 6 and 2 columns.

# %%
rng = np.random.default_rng(4)
sizes = 3, 9, 6, 2
row = (rng.normal(size=20) + np.repeat([0, 4, -2, 9], sizes)).astype(f32)
parts = np.split(row, np.cumsum(sizes)[:-1])

figure, ax = plt.subplots(figsize=(9, 2.6), layout="constrained")
first = 0
for rank, part in enumerate(parts):
    columns = np.arange(first, first + len(part))
    ax.plot(columns, part, "o", color=f"C{rank}", label=f"rank {rank}")
    ax.hlines(part.mean(), columns[0] - 0.4, columns[-1] + 0.4, color=f"C{rank}")
    first += len(part)
ax.axhline(row.mean(), color="black", linestyle=":", label="mean of the row")
ax.axhline(np.mean([part.mean() for part in parts]), color="black", linestyle="--", label="mean of the ranks' means")
ax.set(xlabel="column", xticks=range(20), title="One row on four ranks; bars: each rank's own mean")
ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## Two ways that fail
#
# **Average the means.** The picture shows it: the mean of the ranks' means is not the row's mean, because the ranks have
# different numbers of columns. With even parts the mean would be right; the average of the *variances* would be wrong all
# the same. It leaves out how far apart the means are.
#
# **Add up x and x².** Each rank sends Σx and Σx², and the variance is E[x²] − E[x]². This is exact on paper. Tutorial 2
# showed what happens in float32 if the mean is large:


# %%
def by_sums_of_squares(parts):
    """The variance from all ranks' sums, in float32."""
    n = f32(sum(map(len, parts)))
    total = sum((part.sum(dtype=f32) for part in parts), f32(0))
    squares = sum(((part * part).sum(dtype=f32) for part in parts), f32(0))
    return squares / n - (total / n) ** 2


far = (rng.normal(size=4096) + 10_000).astype(f32)
far_parts = np.split(far, [500, 2500, 4000])
print("variance:", far.astype(float).var(), " by sums of squares:", by_sums_of_squares(far_parts))

# %% [markdown]
# ## What works: count, mean, m2
#
# It is tutorial 3 again. There, two *threads* merged their groups; here, two *machines* do. Each rank sends the count of
# its columns, their mean, and m2, the sum of squared deviations from this mean. Two parts become one by Chan's formula:
#
# $$ n = n_a + n_b, \qquad \delta = \bar b - \bar a, \qquad \bar x = \bar a + \delta\,\frac{n_b}{n}, \qquad
#    M = M_a + M_b + \delta^2\,\frac{n_a n_b}{n} $$


# %%
def moments(part):
    """Return (count, mean, m2) of one rank's columns, in float32."""
    if not len(part):
        return f32(0), f32(0), f32(0)
    mean = part.mean(dtype=f32)
    return f32(len(part)), mean, ((part - mean) ** 2).sum(dtype=f32)


def chan(a, b):
    """Merge two parts. An empty part changes nothing."""
    (count_a, mean_a, m2_a), (count_b, mean_b, m2_b) = a, b
    count = count_a + count_b
    if not count:
        return a
    delta, share = mean_b - mean_a, count_b / count
    return count, mean_a + delta * share, m2_a + m2_b + delta * (delta * (count_a * share))


count, mean, m2 = tree([moments(part) for part in far_parts], chan)
print("variance:", far.astype(float).var(), " by Chan's merge:   ", m2 / count)

# %% [markdown]
# `tree` merges neighbours: ranks 0 and 1, ranks 2 and 3, then the two results.
#
# ## On four processes
#
# `on_ranks(4, function)` starts four processes on this machine and runs the function on each. They form a group of
# torch.distributed (by its CPU library, *gloo*). The function below is the whole forward: moments of the own columns, one
# all-gather, the merge, the own columns of the output.


# %%
def forward(parts, eps=1e-5):
    mine = parts[dist.get_rank()]
    message = torch.tensor(moments(mine))
    messages = [torch.empty(3) for _ in parts]
    dist.all_gather(messages, message)
    count, mean, m2 = tree([tuple(one.numpy()) for one in messages], chan)
    return (mine - mean) / np.sqrt(m2 / count + f32(eps)), mean.tobytes() + m2.tobytes()


found = on_ranks(4, forward, parts)
output = np.concatenate([part for part, _ in found])
print("largest error:", np.abs(output - oracle.layer_norm(row[None], 20).output[0]).max())
print("different bits of the statistics on the ranks:", len({bits for _, bits in found}) - 1)

# %% [markdown]
# <details><summary><b>Question.</b> All ranks compute the same merge. Why not let one of them do it, and send the result?
# </summary>
#
# That would be a second message, and all others would wait for it. The merge is a few additions; a message takes
# microseconds.
# </details>
#
# ## Why not an all-reduce?
#
# Sums could be added on the way: that is what an all-reduce is for. But who adds what, and in which order, is up to the
# network. Float additions in another order give other bits:

# %%
a, b, c = f32(1e8), f32(-1e8), f32(1)
print("(a + b) + c =", (a + b) + c, "   a + (b + c) =", a + (b + c))

# %% [markdown]
# With an all-gather every rank has the same numbers, and adds them in the same order. So all ranks hold the same bits, today
# and tomorrow. This matters: if two ranks disagree on the variance of a row by one bit, the parts of the row no longer fit
# together, and a replayed training step is another step.
#
# ## The backward needs two sums
#
# From tutorial 7, with g = dy γ and N columns in the whole row:
#
# $$ \frac{\partial L}{\partial x_j} = r\,\Bigl(g_j - \frac1N\sum_k g_k - \hat x_j\,\frac1N\sum_k g_k \hat x_k\Bigr) $$
#
# Each rank knows its own g and x̂. Two sums a row go over the whole row: Σ g and Σ g x̂. So the backward is once more: own
# sums, one all-gather, additions in the order of ranks, own columns of the gradient. The gradients of γ and β belong to
# columns, so they need no message at all.


# %%
def backward(parts, grads, eps=1e-5):
    mine, g = parts[dist.get_rank()], grads[dist.get_rank()]
    messages = [torch.empty(3) for _ in parts]
    dist.all_gather(messages, torch.tensor(moments(mine)))
    count, mean, m2 = tree([tuple(one.numpy()) for one in messages], chan)
    scale = 1 / np.sqrt(m2 / count + f32(eps))
    xhat = (mine - mean) * scale

    messages = [torch.empty(2) for _ in parts]
    dist.all_gather(messages, torch.tensor([g.sum(), (g * xhat).sum()]))
    mean_g, mean_gx = sum(one.numpy() for one in messages) / count
    return (g - mean_g - xhat * mean_gx) * scale


grad = rng.normal(size=20).astype(f32)
got = np.concatenate(on_ranks(4, backward, parts, np.split(grad, np.cumsum(sizes)[:-1])))
truth = oracle.layer_norm_backward(grad[None], row[None], 20)
print("largest error of grad_input:", np.abs(got - truth.grad_input[0]).max())

# %% [markdown]
# ## normlab.distributed
#
# `sharded_layer_norm` is this with gradients, half types, weights and checks. On GPUs, kernels compute the moments, merge the
# messages (`normlab/kernels/ranks.py`) and write the output. Try it, with a rank that has no column:


# %%
def of_the_library(parts, weights, grads):
    rank = dist.get_rank()
    x, weight = (torch.tensor(one[rank]).requires_grad_() for one in (parts, weights))
    y = sharded_layer_norm(x[None], weight)
    y.backward(torch.tensor(grads[rank])[None])
    return y[0].detach().numpy(), x.grad.numpy(), weight.grad.numpy()


cuts = [3, 3, 14]  # rank 1 has nothing
weight = rng.normal(size=20).astype(f32)
found = on_ranks(4, of_the_library, *(np.split(one, cuts) for one in (row, weight, grad)))
output, grad_input, grad_weight = (np.concatenate(one) for one in zip(*found, strict=True))
truth = oracle.layer_norm(row[None], 20, weight)
gradients = oracle.layer_norm_backward(grad[None], row[None], 20, weight)
for name, got, want in (
    ("output", output, truth.output),
    ("grad_input", grad_input, gradients.grad_input),
    ("grad_weight", grad_weight, gradients.grad_weight),
):
    print(f"largest error of {name}: {np.abs(got - want).max():.1e}")

# %% [markdown]
# How much is sent? Count it for 4,096 rows of 8,192 columns in bfloat16, on P ranks. Gathering sends each rank's columns,
# 2 bytes each, forward (x) and backward (dy). The merge sends two floats a row each time, and one count.

# %%
rows, columns = 4096, 8192
for ranks in (2, 4, 16, 1024):
    gathered = 2 * rows * (columns // ranks) * 2
    merged = (2 * rows + 1) * 4 + 2 * rows * 4
    print(
        f"{ranks:5} ranks: each sends {gathered:12,} bytes to gather, {merged:8,} to merge, {gathered / merged:7.1f} times"
    )

# %% [markdown]
# The message does not shrink with more ranks, and each rank receives P − 1 of them. With 1,024 ranks a rank has 8 columns of
# a row, and the two floats are half as many bytes as the columns. So rows are cut over few ranks, those of one machine.
#
# <details><summary><b>Question.</b> With P ranks, each receives P − 1 messages. How could it receive less?</summary>
#
# Let each rank merge a share of the *rows*: it receives the others' messages for these rows only, and sends their merged
# statistics to all. Then the bytes no longer grow with P. But these are two messages, one after the other; for few ranks
# the second one costs more time than the bytes that it saves.
# </details>
#
# ## What does a merge cost in digits?
#
# Each merge rounds. In a tree a number goes through ⌈log₂ P⌉ merges. Merging one rank after the other, the first rank's number
# goes through P − 1. Simulate both in float32, up to 1,024 ranks, and measure the error of the mean in units of its last
# place:

# %%
from functools import reduce

counts = 2 ** np.arange(1, 11)
errors = {"in a tree": [], "one after the other": []}
for ranks in counts:
    worst = dict.fromkeys(errors, 0.0)
    for seed in range(20):
        x = (np.random.default_rng(seed).normal(size=(ranks, 16)) + 1000).astype(f32)
        messages = [moments(part) for part in x]
        exact = np.average([float(mean) for _, mean, _ in messages])  # of the messages: only the merge is judged
        for name, merged in (("in a tree", tree(messages, chan)), ("one after the other", reduce(chan, messages))):
            worst[name] = max(worst[name], abs(float(merged[1]) - exact) / np.spacing(f32(exact)))
    for name, error in worst.items():
        errors[name].append(error)

figure, ax = plt.subplots(layout="constrained")
for name, found in errors.items():
    ax.plot(counts, found, "o-", label=name)
ax.set(xscale="log", xlabel="ranks", ylabel="ulp", title="Largest error of the merged mean, 20 rows")
ax.set_xticks(counts, [str(count) for count in counts])
ax.minorticks_off()
ax.legend()
plt.show()

# %% [markdown]
# The tree keeps the error near one unit. That is why `normlab.distributed` merges in a tree, though on four ranks it hardly
# matters.
#
# ## What you have seen
#
# - Means of parts cannot be averaged, and sums of squares cancel. Count, mean and m2 merge without loss.
# - One all-gather forward, one backward, two floats a row each.
# - The same messages in the same order: the same bits on all ranks.
#
# ## Exercise
#
# The merge as a kernel is exercise 32 (`normlab course check 32`). And a question: LayerNorm sends a mean and an m2 a row
# forward, and two sums backward. How many floats a row does RMSNorm send in both passes together, without the count?

# %%
from normlab import course

floats_of_rms_norm = None  # your answer

course.check(floats_of_rms_norm, "floats_of_rms_norm")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Two. It subtracts no mean. Forward it needs Σ x², backward Σ g x̂: one float each.
#
# ```python
# course.check(2, "floats_of_rms_norm")
# ```
# </details>
#
# Next: [17. What a transformer block really asks of a norm](17_block.ipynb). Or read `normlab/distributed/rows.py`, which is this
# notebook for PyTorch.
