# %% [markdown]
# # 17. What a transformer block really asks of a norm
#
# **Aim.** Make one kernel of an addition and the norm after it, forward and backward, and count the bytes that this
# saves. Then meet what else today's models ask of a norm: 1 + w, heads inside a larger array, a gate.
#
# **Before.** Tutorials [6](06_forward.ipynb) and [7](07_backward.ipynb): RMSNorm, and the gradient of a norm. The section
# on what is kept also needs the beginning of [9](09_recompute.ipynb), and PyTorch.
#
# **Time.** 35 minutes.

# %%
import math

import matplotlib.pyplot as plt
import ml_dtypes  # bfloat16 for NumPy
import numpy as np

import normlab
from normlab import oracle
from normlab.engine import cuda, float32, launch, use_gpu
from normlab.learn import lesson
from normlab.sim import sanitize, trace
from normlab.stages import block_sum, warp_sum_butterfly

lesson.begin()
f32 = np.float32
rng = np.random.default_rng(0)

# %% [markdown]
# ## A norm does not stand alone
#
# So far a norm had one array in and one array out. Look at where it stands in a model. A transformer has a residual
# stream, which runs from the first layer to the last, and many *branches*: attention, MLP, attention, MLP, and so on. (One
# attention and one MLP together are often called a block. Here a block stays a group of threads.) Each branch normalises
# a copy of the stream, works on it, and adds its result to the stream. With f for the branch's work:
#
# ```python
# y = norm(stream)       # normalise a copy
# x = f(y)               # attention or MLP
# stream = stream + x    # add the result
# ```
#
# Then the next branch comes, with the same three lines. Now cut the chain at another place: begin with an addition, and
# end with the norm after it.

# %%
figure, ax = plt.subplots(figsize=(9, 2.9), layout="constrained")
ax.axis("off")
ax.set(xlim=(0, 12.2), ylim=(-0.35, 3.5))
for left in (2.05, 7.05):
    ax.add_patch(plt.Rectangle((left, 0.0), 2.3, 3.1, facecolor="#fdeee6", edgecolor="#c8401a", linestyle="--"))
    ax.text(left + 1.15, 3.22, "one kernel", ha="center", color="#c8401a")
for left, bottom, text in (
    (0.1, 0.3, "attention"), (2.35, 2.05, "+"), (3.1, 0.3, "norm"), (5.1, 0.3, "MLP"),
    (7.35, 2.05, "+"), (8.1, 0.3, "norm"), (10.1, 0.3, "attention"),
):  # fmt: skip
    wide = {"+": 0.6, "norm": 1.05}.get(text, 1.5)
    ax.add_patch(plt.Rectangle((left, bottom), wide, 0.75, facecolor="#dfe5ec", edgecolor="grey"))
    ax.text(left + wide / 2, bottom + 0.37, text, ha="center", va="center")
arrow = {"arrowstyle": "->", "color": "#1b4f8a", "linewidth": 1.6}
for begin, end in (
    ((0.1, 2.42), (2.35, 2.42)), ((2.95, 2.42), (7.35, 2.42)), ((7.95, 2.42), (12.1, 2.42)),
    ((1.6, 0.67), (2.65, 2.05)), ((3.62, 2.42), (3.62, 1.05)), ((4.15, 0.67), (5.1, 0.67)),
    ((6.6, 0.67), (7.65, 2.05)), ((8.62, 2.42), (8.62, 1.05)), ((9.15, 0.67), (10.1, 0.67)),
):  # fmt: skip
    ax.annotate("", xy=end, xytext=begin, arrowprops=arrow)
for place, text in ((1.1, "residual"), (5.7, "new residual"), (10.8, "new residual")):
    ax.text(place, 2.55, text, ha="center", fontsize=9)
for place, height, text in ((1.93, 1.35, "x"), (4.62, 0.8, "y"), (6.93, 1.35, "x"), (9.62, 0.8, "y")):
    ax.text(place, height, text, ha="center", fontsize=9)
plt.show()

# %% [markdown]
# An addition, then a norm: this pair occurs once for each branch. It has two inputs, x and the residual, and
# two outputs:
#
# $$ s = x + \text{residual}, \qquad y_j = s_j\, r\, \gamma_j, \qquad r = \frac{1}{\sqrt{\frac1n \sum_j s_j^2 + \varepsilon}} $$
#
# y goes into the branch. s goes past the branch, and is the residual of the next addition. In code s is called
# `new_residual`. (This is RMSNorm, which most models of today have. With LayerNorm everything below is the same, and a
# mean is subtracted, too.)
#
# ## Two kernels
#
# First the plain way: a kernel that adds, and a kernel that normalises. A block of 128 threads takes a row, and the
# rows have up to 512 columns. So a thread has at most four elements, and can keep them in **registers**, its fastest
# memory: `cuda.local.array(4, float32)` is four numbers of a thread's own. (Tutorial 6 read a row twice instead.)

# %%
THREADS, KEPT = 128, 4


@cuda.jit
def add(x, residual, new_residual):
    row = cuda.blockIdx.x
    for column in range(cuda.threadIdx.x, x.shape[1], THREADS):
        new_residual[row, column] = x[row, column] + residual[row, column]


@cuda.jit
def rms_norm(s, weight, eps, output, invvar):
    buffer = cuda.shared.array((2, 4), float32)
    mine = cuda.local.array(KEPT, float32)
    row = cuda.blockIdx.x
    square_sum = float32(0)
    for k in range(KEPT):
        column = cuda.threadIdx.x + k * THREADS
        if column < s.shape[1]:
            mine[k] = s[row, column]
            square_sum += mine[k] * mine[k]
    square_sum = block_sum(warp_sum_butterfly(square_sum), buffer)
    r = float32(1) / math.sqrt(square_sum / float32(s.shape[1]) + eps)
    for k in range(KEPT):
        column = cuda.threadIdx.x + k * THREADS
        if column < s.shape[1]:
            output[row, column] = mine[k] * r * weight[column]
    if cuda.threadIdx.x == 0:
        invvar[row] = r  # the backward will need it


def arrays(*names, n1=4, n2=512):
    """Arrays of an (n1, n2) problem by their names; results are NaN, so that what a kernel forgets shows."""
    shapes = {"weight": n2, "invvar": n1}
    results = {"new_residual", "output", "invvar", "grad", "through_norm"}
    drawn = (rng.normal(size=shapes.get(name, (n1, n2))).astype(f32) for name in names)
    return [np.full_like(one, np.nan) if name in results else one for name, one in zip(names, drawn, strict=True)]


x, residual, weight, new_residual, output, invvar = arrays(
    "x", "residual", "weight", "new_residual", "output", "invvar"
)
eps = f32(1e-6)
counted_add = trace(add)[4, THREADS](x, residual, new_residual)
counted_norm = trace(rms_norm)[4, THREADS](new_residual, weight, eps, output, invvar)
truth = oracle.add_rms_norm(x, residual, weight, float(eps))
print("largest error of y:", np.abs(output - truth.output).max())

# %% [markdown]
# ## Count the bytes
#
# Both kernels do a few operations for each element, and no more. So on a GPU their time is the time of their bytes, and
# bytes can be counted. `trace` knows how often each element of an array was loaded and stored:


# %%
def moved(counted, **arrays):
    """Return the loads and the stores of each array, "read x" or "write s", in whole matrices of the size of x."""
    found = {}
    for name, letter in arrays.items():
        for word, stores in (("read", False), ("write", True)):
            times = float(counted.array(name).counted(stores).sum() / (4 * 512))
            if times:
                found[f"{word} {letter}"] = times
    return found


plain = moved(counted_add, x="x", residual="residual", new_residual="s")
plain |= moved(counted_norm, s="s", output="y")
print(plain, "sum:", sum(plain.values()))

# %% [markdown]
# Five matrices. (The weight is one row, which every block reads again. It stays in the caches, and we leave it out.) One
# of the five is a waste: the first kernel writes s, and the second reads it back. In between, s lies in global memory: in
# a real model s has tens or hundreds of megabytes, more than the caches hold.
#
# ## One kernel
#
# The block that adds a row could go on and normalise it, because it has the sums in its registers. The kernel is
# `rms_norm` again. Only the line that loads `mine[k]` has become two: add, and store the sum.


# %%
@cuda.jit
def add_rms_norm(x, residual, weight, eps, new_residual, output, invvar):
    buffer = cuda.shared.array((2, 4), float32)
    mine = cuda.local.array(KEPT, float32)
    row = cuda.blockIdx.x
    square_sum = float32(0)
    for k in range(KEPT):
        column = cuda.threadIdx.x + k * THREADS
        if column < x.shape[1]:
            mine[k] = x[row, column] + residual[row, column]
            new_residual[row, column] = mine[k]
            square_sum += mine[k] * mine[k]
    square_sum = block_sum(warp_sum_butterfly(square_sum), buffer)
    r = float32(1) / math.sqrt(square_sum / float32(x.shape[1]) + eps)
    for k in range(KEPT):
        column = cuda.threadIdx.x + k * THREADS
        if column < x.shape[1]:
            output[row, column] = mine[k] * r * weight[column]
    if cuda.threadIdx.x == 0:
        invvar[row] = r


new_residual, output, invvar = arrays("new_residual", "output", "invvar")
counted = trace(add_rms_norm)[4, THREADS](x, residual, weight, eps, new_residual, output, invvar)
fused = moved(counted, x="x", residual="residual", new_residual="s", output="y")
print(fused, "sum:", sum(fused.values()))
print("largest error of y:", np.abs(output - truth.output).max())
print("s is the same to the last bit:", np.array_equal(new_residual, truth.new_residual))


# %%
def draw_moved(title, **ways):
    """A bar for each way, a piece for each matrix that it reads or writes; the ones that a fused kernel spares in red."""
    _, ax = plt.subplots(figsize=(9, 0.9 + 0.5 * len(ways)), layout="constrained")
    spared = set(ways["two kernels"]) - set(ways["one kernel"])
    for place, pieces in enumerate(ways.values()):
        left = 0
        for piece, size in pieces.items():
            colour = "#c8401a" if piece in spared else "#9cc3e6" if piece.startswith("read") else "#1b4f8a"
            ax.barh(place, size, left=left, color=colour, edgecolor="white")
            ink = "black" if colour == "#9cc3e6" else "white"
            ax.text(left + size / 2, place, piece, ha="center", va="center", fontsize=8, color=ink)
            left += size
    ax.set_yticks(range(len(ways)), list(ways))
    ax.invert_yaxis()
    ax.set(xlabel="matrices moved", title=title)
    plt.show()


draw_moved("Forward", **{"two kernels": plain, "one kernel": fused})

# %% [markdown]
# Four in place of five. The kernel still *writes* s, because the next addition needs it. Only the reading back (red) is
# spared.
#
# A compiler such as torch.compile makes such a kernel by itself, if it sees the addition and the norm in one graph. A norm
# from a library is one node of the graph, and the compiler cannot look into it. So a fast norm of a library may lose to the
# compiler's slower norm, by the fifth matrix. That is why libraries of norms have a function for the pair. normlab's is
# `add_rms_norm`.
#
# <details><summary><b>Question.</b> Could one kernel do the branch's last matrix product, the addition and the norm,
# and spare x, too?</summary>
#
# A norm needs the whole row before it can write anything. A block of a matrix product has a tile, such as 128 columns of
# a row of 4,096. So 32 blocks would have to exchange their sums, and wait for each other, before they write.
# </details>
#
# ## A rounded stream
#
# In training the stream is often bfloat16. Then s is rounded when it is stored, and there are two different numbers: the
# sum in the register, and the rounded sum in memory. Which one should the kernel normalise?

# %%
bf16 = ml_dtypes.bfloat16
stream = (rng.normal(size=512) + 8).astype(bf16)
small = rng.normal(size=512).astype(bf16)
unrounded = small.astype(f32) + stream.astype(f32)
stored = unrounded.astype(bf16).astype(f32)


def normalised(s):
    return s / np.sqrt((s * s).mean() + 1e-6)


print("largest difference of the two norms:", f"{np.abs(normalised(unrounded) - normalised(stored)).max():.1e}")

# %% [markdown]
# The difference is as large as a rounding of s. Two reasons speak for the rounded sum:
#
# - The backward gets the stored s, and computes x̂ from it. If the forward has normalised another number, the two do not
#   belong to the same function.
# - Two kernels, one after the other, normalise the stored s. A model should not change its results when it is fused.
#
# So a kernel for bfloat16 rounds `mine[k]` before it squares it. (In float32, as above, the sum is what is stored.)
#
# ## The backward: gradients from two sides
#
# Now the way back. L is the loss. The pair has two outputs, so two gradients arrive:
#
# - dy comes back from the branch: how L changes with y.
# - ds comes back along the stream: how L changes with s, if y is held fixed.
#
# A change of s reaches L in two ways. One way goes through y. Tutorial 7 has derived it: with g_i = dy_i γ_i and x̂ = s r, it
# is r (g_j − x̂_j mean(g x̂)). The other way goes past the norm, because s itself goes on. The chain rule adds up both:
#
# $$ \frac{\partial L}{\partial s_j} = r \left( g_j - \hat x_j\, \overline{g \hat x} \right) + ds_j $$
#
# The first term is the part *through* the norm, the second the part *past* it.
#
# And x and the residual? If x_j or residual_j moves by h, then s_j moves by h. So the gradient of x is the gradient of s,
# and so is the gradient of the residual: one array for both. The addition has nothing to compute, and needs nothing saved.
#
# Check the formula: move each s_j a little, and see how L changes. For this, take an L that has just the gradients dy and
# ds: L = Σ dy_j y_j + Σ ds_j s_j.

# %%
n = 12
s, gamma, dy, ds = rng.normal(size=(4, n))


def loss(s):
    return dy @ (gamma * normalised(s)) + ds @ s


r = 1 / np.sqrt((s * s).mean() + 1e-6)
xhat, g = s * r, dy * gamma
derived = r * (g - xhat * (g * xhat).mean()) + ds
h = 1e-6
measured = np.array([(loss(s + h * e) - loss(s - h * e)) / (2 * h) for e in np.eye(n)])
print("largest difference:", f"{np.abs(derived - measured).max():.1e}")

# %% [markdown]
# How large are the two parts? Here is a toy model: 24 branches, each of them a random matrix, and 256 columns. Go back
# from the end, and look at both parts in each pair. The grey line is a mistake: it leaves ds out.

# %%
depth, n = 24, 256
matrices = rng.normal(size=(depth, n, n)) / np.sqrt(n)
s, states = rng.normal(size=n), []
for matrix in matrices:
    states.append(s)
    s = s + matrix @ normalised(s)


def through_norm(s, dy):
    """Return the part through an RMSNorm without a weight."""
    r = 1 / np.sqrt((s * s).mean() + 1e-6)
    return r * (dy - s * r * (dy * s * r).mean())


at_end = rng.normal(size=n)
past, through, forgotten = [], [], []
ds, only_through = at_end, at_end
for matrix, s in zip(reversed(matrices), reversed(states), strict=True):
    part = through_norm(s, matrix.T @ ds)  # back through the branch, then through its norm
    past.append(np.linalg.norm(ds))
    through.append(np.linalg.norm(part))
    only_through = through_norm(s, matrix.T @ only_through)
    forgotten.append(np.linalg.norm(only_through))
    ds = ds + part

figure, ax = plt.subplots(figsize=(8, 3.2), layout="constrained")
places = np.arange(depth, 0, -1)
ax.semilogy(places, past, "o-", color="#1b4f8a", markersize=4, label="ds: past the norm")
ax.semilogy(places, through, "s-", color="#c8401a", markersize=4, label="through the norm")
ax.semilogy(places, forgotten, "x:", color="grey", label="what arrives if ds is left out")
ax.set(
    xlabel="pair (24 is the last)", ylabel="length of the gradient", title="From the end of the model to its beginning"
)
ax.invert_xaxis()
ax.legend(fontsize=8)
plt.show()

# %% [markdown]
# Read it from left to right, as the backward goes. The part past the norm does not fade: each pair hands on all that it
# has got, and adds its own part. That is what a residual stream is for. Without ds the gradient shrinks from pair to pair.
#
# ## One kernel again
#
# Two kernels would be the norm's backward, and then an addition. In one kernel, ds is one more array, added in the last
# lines. With `None` for ds the compiler leaves them out, as in tutorial 6, and the kernel is the plain norm's backward. (The
# weight's gradient is a sum down the columns. It needs dy and x̂ only, so the addition does not change it: [tutorial
# 8](08_columns.ipynb).)


# %%
@cuda.jit
def backward(grad_output, grad_residual, s, weight, invvar, grad):
    """grad_residual is ds, or None. All but weight (n2,) and invvar (n1,) are (n1, n2)."""
    buffer = cuda.shared.array((2, 4), float32)
    gs = cuda.local.array(KEPT, float32)
    xhats = cuda.local.array(KEPT, float32)
    row = cuda.blockIdx.x
    r = invvar[row]
    sum_gx = float32(0)
    for k in range(KEPT):
        column = cuda.threadIdx.x + k * THREADS
        if column < s.shape[1]:
            gs[k] = grad_output[row, column] * weight[column]
            xhats[k] = s[row, column] * r
            sum_gx += gs[k] * xhats[k]
    mean_gx = block_sum(warp_sum_butterfly(sum_gx), buffer) / float32(s.shape[1])
    for k in range(KEPT):
        column = cuda.threadIdx.x + k * THREADS
        if column < s.shape[1]:
            value = r * (gs[k] - xhats[k] * mean_gx)
            if grad_residual is not None:
                value += grad_residual[row, column]
            grad[row, column] = value


grad_output, grad_residual, through, grad = arrays("grad_output", "grad_residual", "through_norm", "grad")
given = new_residual, weight, invvar
counted = trace(backward)[4, THREADS](grad_output, None, *given, through)
plain = moved(counted, grad_output="dy", s="s", grad="through norm")
counted = trace(add)[4, THREADS](through, grad_residual, grad)
plain |= moved(counted, x="through norm", residual="ds", new_residual="sum")
by_two = grad.copy()
counted = trace(backward)[4, THREADS](grad_output, grad_residual, *given, grad)
fused = moved(counted, grad_output="dy", s="s", grad_residual="ds", grad="sum")

truth = oracle.add_rms_norm_backward(grad_output, grad_residual, new_residual, weight, float(eps)).grad_input
print("largest error by two kernels:", np.abs(by_two - truth).max(), " by one:", np.abs(grad - truth).max())
print(sanitize(backward)[4, THREADS](grad_output, grad_residual, *given, grad))
draw_moved("Backward", **{"two kernels": plain, "one kernel": fused})

# %% [markdown]
# Four in place of six. The first kernel's result is neither written nor read back.
#
# <details><summary><b>Question.</b> After the last norm of a model nothing reads s any more. What is its ds?</summary>
#
# 0, and reading a matrix of zeros would be a waste. So the kernel takes None for it.
# </details>
#
# <details><summary><b>Question.</b> Backward the fused kernel spares two matrices, forward only one. Why?</summary>
#
# Forward, s is a result that other layers need, so it has to be written. Backward, the part through the norm is needed by
# nothing but the sum. So it is neither written nor read.
# </details>
#
# ## 1 + w
#
# Gemma's norms have γ = 1 + w, and what they learn and store is w. On paper that is the same norm. In practice it differs:
#
# - Training often pulls weights a little towards 0 in each step (weight decay). Where w is 0, γ is 1, and x̂ stays as it is.
#   A γ that is stored itself would be pulled towards 0, which switches its column off.
# - Floats are denser near 0 than near 1. bfloat16 has a number close to 0.0003, but none close to 1.0003:

# %%
w = np.array([0.0003, -0.002, 0.004, 0.25], bf16)
print("w                     ", w.astype(f32))
print("1 + w, in bfloat16    ", (bf16(1) + w).astype(f32))
print("1 + w, in float32     ", f32(1) + w.astype(f32))

# %% [markdown]
# In bfloat16 the steps are 0.0078 above 1, and 0.0039 below. So the first w is lost, and the second and the third come out
# twice as large. Therefore the kernel loads w, turns it into a float32, and adds 1 there. That costs no bytes. In normlab it is
# `offset=1.0`.
#
# In the backward g = dy (1 + w). The gradient of w is that of γ, because γ moves by as much as w.
#
# ## Heads inside a larger array
#
# Attention cuts a token's queries and keys into **heads** of 64 to 256 columns. Qwen3 and Gemma 3 normalise each head by
# itself. So the norm has many short rows. And the rows of the queries do not lie together: one matrix product makes the
# queries, keys and values of a token, and leaves them side by side. NumPy can treat the queries as an array of their own
# without copying them. Such an array is called a **view**:

# %%
tokens, heads, kv_heads, head_dim = 6, 4, 2, 64
width = (heads + 2 * kv_heads) * head_dim
qkv = rng.normal(size=(tokens, width)).astype(f32)
query = qkv[:, : heads * head_dim].reshape(tokens, heads, head_dim)
print(
    "shares qkv's memory:", np.shares_memory(query, qkv), " strides in elements:", [one // 4 for one in query.strides]
)

figure, ax = plt.subplots(figsize=(9, 2.4), layout="constrained")
for token in range(tokens):
    for piece in range(heads + 2 * kv_heads):
        mine = piece < heads
        colour = ("#9cc3e6", "#1b4f8a")[(token + piece) % 2] if mine else "#eeeeee"
        ax.add_patch(plt.Rectangle((piece * head_dim, token), head_dim, 1, facecolor=colour, edgecolor="white"))
        text = f"head {piece}" if mine else "key" if piece < heads + kv_heads else "value"
        ink = "white" if colour == "#1b4f8a" else "black"
        ax.text((piece + 0.5) * head_dim, token + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
ax.set(xlim=(0, width), ylim=(tokens, 0), xlabel="column of qkv", ylabel="token", title="Rows of the norm in blue")
ax.set_xticks(range(0, width + 1, head_dim))
plt.show()

# %% [markdown]
# The strides say how far it is from one token to the next (512 elements), from head to head (64), and from column to column
# (1). So row number
# i of the norm is head i % 4 of token i // 4, and it begins at element
#
# > 512 · (i // 4) + 64 · (i % 4)
#
# A kernel made for a whole matrix expects row i at element 64 i. For it, the queries must be copied first. Count, in matrices
# of the queries' size:
#
# | | read | written | together |
# | --- | --: | --: | --: |
# | copy, then norm | 2 | 2 | 4 |
# | norm with the formula above | 1 | 1 | 2 |
#
# The formula costs two integer operations for each row. Neighbouring lanes still read neighbouring columns, so no sector is
# wasted. And for a row of 64, a block of 128 threads would be too much: one warp takes a head, with a sum by shuffles, and
# without shared memory or a barrier. You write this kernel in exercise 34. normlab's is `head_rms_norm`:

# %%
weight_of_heads = rng.normal(size=head_dim).astype(f32)
normed, _ = normlab.head_rms_norm_forward(query, weight_of_heads, eps=1e-6)
truth = oracle.rms_norm(query.copy(), head_dim, weight_of_heads, 1e-6).output
print("largest error:", np.abs(normed - truth).max(), " shape:", normed.shape)

# %% [markdown]
# <details><summary><b>Question.</b> Why is the output not written back into qkv, in place?</summary>
#
# The backward needs x̂, which comes from the queries as they were before the norm. Where no backward follows, the output may
# be written in place. That saves memory, but no time: as many bytes are moved.
# </details>
#
# ## A gate
#
# Mamba-2 and Qwen3-Next multiply the norm's result by a **gate**. Another matrix product makes an array z, of the shape of x.
# The function **silu** turns z into the gate: it is about z for large z, and about 0 for z far below 0.
#
# $$ y_j = \hat x_j\, \gamma_j \cdot \text{silu}(z_j), \qquad \text{silu}(z) = \frac{z}{1 + e^{-z}} $$
#
# Count the bytes as before. A kernel of its own for the gate reads the norm's result back, and writes another one. In the norm's
# kernel, z is one more matrix to read, and that is all.
#
# What is new is the exponential. On paper silu can be written in several ways. In float32 they differ. Here are three, with
# their errors:

# %%
z = np.linspace(-95, 95, 1001).astype(f32)
exact = z.astype(float) / (1 + np.exp(-z.astype(float)))
one, half = f32(1), f32(0.5)
with np.errstate(over="ignore", invalid="ignore"):
    ways = {
        "z / (1 + exp(−z))": z / (one + np.exp(-z)),
        "z (1 + tanh(z/2)) / 2": z * (one + np.tanh(z * half)) * half,
        "z exp(z) / (1 + exp(z))": z * np.exp(z) / (one + np.exp(z)),
    }
figure, axes = plt.subplots(1, 3, figsize=(11, 2.9), layout="constrained", sharey=True)
for ax, (name, values) in zip(axes, ways.items(), strict=True):
    error = np.abs(values - exact) / np.maximum(np.abs(exact), 1e-45)
    ax.semilogy(z, np.maximum(error, 1e-9), ".", markersize=2, rasterized=True)
    broken = ~np.isfinite(values)
    ax.plot(z[broken], np.full(broken.sum(), 1.0), "|", color="#c8401a", label="NaN")
    if broken.any():
        ax.legend(fontsize=8, loc="center")
    ax.set(title=name, xlabel="z", ylim=(1e-9, 10))
axes[0].set_ylabel("relative error")
plt.show()

# %% [markdown]
# - The first has seven right digits down to −88. Below −88.7 exp(−z) is infinite in float32, and z / ∞ is −0. The true
#   value is between −3 · 10⁻³⁷ and 0 there.
# - The second loses digits where z is far below 0: tanh(z/2) is close to −1, and 1 is added to it. Below −20 it is 0.
# - The third is ∞ / ∞ from 89 on, which is NaN. One such gate makes NaN of its token, and attention carries it to others.
#
# Exercise 35 asks for the kernel, and tries gates from −1,000 to 1,000.
#
# ## What is kept for the backward
#
# The backward above reads dy, ds, s, r and the weight. dy and ds arrive when it runs. r is one number per row. But s is a whole
# matrix, which must stay in memory from the forward until the backward. Does anything else keep s anyway? No: an addition needs
# nothing for its backward. What about y? The branch begins with a linear layer, which keeps y for the gradient of its weights.
#
# So tutorial 9 applies: let the norm keep y in place of s, and compute x̂ = y / γ from it. Count it as in tutorial 15, with
# PyTorch's hooks. `kept` adds up what an addition, a norm and a linear layer keep, each piece of memory once:

# %%
import torch

from normlab import nn
from normlab.studies.memory.saved import counting

hidden = 256
linear = torch.nn.Linear(hidden, hidden, bias=False)
gamma = torch.ones(hidden, requires_grad=True)


def kept(mode):
    """Return what autograd keeps for an addition, a norm and a linear layer, in matrices of the size of x."""
    x, residual = (torch.randn(2, 64, hidden, requires_grad=True) * 1).unbind()
    with counting([linear.weight, gamma]) as saved:
        y, s = nn.add_rms_norm(x, residual, gamma, memory_efficient=mode)
        (s + linear(y)).sum()
    return sum(saved.values()) / (64 * hidden * 4)


for mode in (False, True, "exact"):
    print(f"memory_efficient={mode!r:7} keeps {kept(mode):.3f} matrices")

# %% [markdown]
# One matrix less. (The thousandths are r.) The same as a table, with the two matrices by name:
#
# | `memory_efficient` | by the norm | by the linear layer | x̂ in the backward |
# | --- | --- | --- | --- |
# | False | s, r | y | s r |
# | True | r | y | y / γ, with γ pushed away from 0 |
# | "exact" | r, and x̂ of the columns at risk | y | y / γ, or the kept x̂ |
#
# (In the "exact" mode normlab's addition is a kernel of its own.) Tutorial 9 found two dangers for a column: a large
# β beside a small γ, and a γ close to 0. RMSNorm has no β. And γ = 1 + w is close to 0 only if w is close to −1, whereas training
# begins at w = 0. So `memory_efficient=True` is safer for Gemma's norms than for those of tutorial 9.
#
# For heads, keeping the output saves nothing. The next step of the model turns queries and keys by an angle that depends on the
# position, and attention keeps the turned ones. So nothing else keeps the norm's output. `head_rms_norm` keeps its input instead:
# the view, not a copy. (A view keeps the whole array in memory. Here that is qkv, whose values attention keeps anyway.)
#
# ## Here

# %%
n1, n2 = (65536, 512) if use_gpu() else (4, 512)
names = "x", "residual", "weight", "new_residual", "output", "invvar"
x, residual, weight, new_residual, output, invvar = lesson.on_device(*arrays(*names, n1=n1, n2=n2))


def two_kernels():
    launch(add, n1, THREADS, x, residual, new_residual)
    launch(rms_norm, n1, THREADS, new_residual, weight, eps, output, invvar)


def one_kernel():
    launch(add_rms_norm, n1, THREADS, x, residual, weight, eps, new_residual, output, invvar)


for name, way in (("two kernels", two_kernels), ("one kernel", one_kernel)):
    way()  # the first call compiles
    print(f"{name:11} {lesson.timed(way)}")

# %% [markdown]
# ## What you have seen
#
# - An addition and the norm after it are one operation, with two inputs and two outputs. One kernel moves 4 matrices forward
#   where two kernels move 5, and 4 backward where two kernels move 6.
# - The kernel normalises the rounded sum, because the backward and the next layers see only this one.
# - Backward, one gradient comes through the norm and one past it. Their sum is the gradient of both inputs.
# - 1 + w is computed in float32. A head is a row, with a formula for where it begins. silu is z / (1 + exp(−z)).
# - A norm that keeps y in place of s saves a matrix, because nothing else keeps s.
#
# ## Exercise
#
# The course's exercise 33 (add, then normalise: a stream of float16, in place, rows too long for four registers), exercise 34 (1 + w, for each
# head) and exercise 35 (a gate): `normlab course check 33` and so on. Before that, here: one attention and one MLP have two
# pairs. How many matrices fewer do these move in one step of training, forward and backward together, if one kernel does
# each pair?

# %%
from normlab import course

matrices_spared = None  # your answer

course.check(matrices_spared, "matrices_spared")

# %% [markdown]
# <details><summary><b>Solution.</b></summary>
#
# Six. A pair moves 5 − 4 = 1 less forward and 6 − 4 = 2 less backward, and there are two pairs.
#
# ```python
# course.check(2 * (1 + 2), "matrices_spared")
# ```
# </details>
#
# Back to the beginning: [1. Threads, warps, blocks](01_threads.ipynb). Or read `normlab/kernels/add_norm.py`, which says
# where the library's fastest steps add the residual.
