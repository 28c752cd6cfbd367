"""Norms of heads whose rows lie apart in memory: the bits of contiguous ones, without a copy."""

from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
import torch
from counting import COPIED, LOADED, counted

from normlab import head_rms_norm_backward, head_rms_norm_forward, rms_norm_backward, rms_norm_forward
from normlab.engine import using
from normlab.host import add_norm
from normlab.host.strided import strided_rows
from normlab.kernels.backward.short_rows import plan as tiles
from normlab.kernels.forward import short_rows as tiles_forward
from normlab.stages.row_map import RowMap, place_finder

EPS = 1e-6
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


def fused(heads, others, columns, dtype, tokens=(2, 3)):
    """A view of the first heads of a fused tensor, and a gradient and a weight for them."""
    rng = np.random.default_rng(heads * columns)
    memory = rng.normal(size=(*tokens, (heads + others) * columns)).astype(DTYPES[dtype])
    x = memory[..., columns * others :].reshape(*tokens, heads, columns)
    assert np.shares_memory(x, memory)
    return x, rng.normal(size=x.shape).astype(x.dtype), rng.normal(size=columns).astype(x.dtype)


def plain(x, grad, weight):
    """The plain norm of a contiguous copy, and its gradients."""
    copy = np.ascontiguousarray(x)
    # tiles have other bits
    with (
        patch.object(tiles_forward, "layout_for", lambda *how: None),
        patch.object(tiles, "layout_for", lambda *how: None),
    ):
        output, invvar = rms_norm_forward(copy, x.shape[-1], weight, eps=EPS)
        return output, invvar, *rms_norm_backward(grad, copy, invvar, x.shape[-1], weight, eps=EPS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "others", "columns"), [(4, 3, 64), (2, 1, 128), (3, 8, 96), (1, 2, 256), (5, 1, 40)])
def test_heads_are_read_where_they_lie_and_have_the_plain_norm_s_bits(heads, others, columns, dtype):
    x, grad, weight = fused(heads, others, columns, dtype)
    output, invvar = head_rms_norm_forward(x, weight, eps=EPS)
    gradients = head_rms_norm_backward(grad, x, invvar, weight, eps=EPS)
    rung = type(add_norm.FORWARD)
    with using("simulator"), patch.object(rung, "run", autospec=True, side_effect=rung.run) as run:
        head_rms_norm_forward(x, weight, eps=EPS)
        head_rms_norm_backward(grad, x, invvar, weight, eps=EPS)
    read = [call.args[3] for call in run.call_args_list]
    assert [problem.row_map for problem in read] == [RowMap(heads, heads + others)] * 2
    assert np.shares_memory(read[0].x, x)
    assert np.shares_memory(read[1].saved, x)
    for got, want in zip((output, invvar, *gradients), plain(x, grad, weight), strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(("dtype", "columns"), [("bfloat16", 33), ("float64", 64), ("bfloat16", 33_000)])
def test_what_the_fast_kernels_refuse_is_copied_and_right(dtype, columns):
    x, grad, weight = fused(2, 1, columns, dtype, tokens=(1, 2))
    output, invvar = head_rms_norm_forward(x, weight, eps=EPS)
    results = output, invvar, *head_rms_norm_backward(grad, x, invvar, weight, eps=EPS)
    for got, want in zip(results, plain(x, grad, weight), strict=True):
        np.testing.assert_array_equal(got.shape, want.shape)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-2, atol=1e-2)


def test_an_offset_goes_with_heads_that_lie_apart():
    x, grad, weight = fused(4, 2, 64, "float32")
    output, invvar = head_rms_norm_forward(x, weight, eps=EPS, offset=1.0)
    results = output, invvar, *head_rms_norm_backward(grad, x, invvar, weight, eps=EPS, offset=1.0)
    for got, want in zip(results, plain(x, grad, weight + np.float32(1)), strict=True):
        assert got.tobytes() == want.tobytes()


def test_of_a_fused_tensor_only_the_heads_are_read_each_once():
    x, grad, _ = fused(4, 8, 64, "bfloat16")
    forward, backward = counted(lambda: head_rms_norm_backward(grad, x, head_rms_norm_forward(x)[1]))
    sectors = x.nbytes // 32
    assert forward[LOADED.format("sectors")] == sectors
    assert backward[COPIED.format("sectors")] == 2 * sectors


MEMORY = np.arange(2 * 3 * 8 * 16, dtype=np.float32).reshape(2, 3, 8, 16)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("view", "row_map"),
    [
        (lambda x: x[:, :, 2:5], RowMap(3, 8)),
        (lambda x: x[:, :, :2], RowMap(2, 8)),
        (lambda x: x[:1, :, :2], RowMap(2, 8)),
        (lambda x: x[:, :1, :2], RowMap(2, 24)),
        (lambda x: x[0, :, 2:5], RowMap(3, 8)),
        (lambda x: x, None),  # contiguous
        (lambda x: x[:, :2, :2], None),  # two distances from token to token
        (lambda x: x[:, :, :2, :8], None),  # a head's rows are longer than it
        (lambda x: x[:, :, ::2], None),
        (lambda x: x[..., ::2], None),
        (lambda x: x[:, :, 0], None),
        (lambda x: x[:, :0, :2], None),
        (lambda x: x.reshape(-1)[: 7 * 100].reshape(7, 100)[:, :48].reshape(7, 3, 16), None),  # 6.25 rows apart
    ],
)
def test_the_map_finds_each_row_or_there_is_none(kind, view, row_map):
    x = view(kind(MEMORY))
    memory, found = strided_rows(x)
    assert found == row_map
    if row_map is None:
        assert memory is x
        return
    rows = x.reshape(-1, x.shape[-1])
    place_of = place_finder(row_map).py_func
    assert all((memory[place_of(row)] == rows[row]).all() for row in range(len(rows)))
