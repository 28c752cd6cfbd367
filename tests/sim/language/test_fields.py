"""A field of a record or a named tuple may have the name of an attribute of arrays or of `cuda`: it keeps its value."""

import functools
from collections import namedtuple
from types import ModuleType

import numpy as np
import pytest
from numba import cuda, from_dtype

from normlab.sim import sanitize, simulate, trace

THREADS = 16
# Names that an array, a record of NumPy or `cuda` has, too.
NAMES = ("size", "ndim", "shape", "laneid", "warpsize", "x", "z", "real", "imag", "T", "dtype", "flags", "itemsize")
PLAIN = np.dtype([("id", np.int32), *((name, np.float32) for name in NAMES)], align=True)
NESTED = np.dtype([("id", np.int32), ("size", np.float32), ("shape", np.float32, 2), ("inner", PLAIN)], align=True)
SHARED = from_dtype(NESTED)
# NumPy's arrays have these attributes, and Numba's only the last two.
COLUMNS = np.dtype([(name, np.float32) for name in ("data", "base", "put", "round", "trace", "itemsize", "min")])
MADE = np.dtype([("warpsize", np.float32)], align=True)


Box = namedtuple("Box", "size shape inner")
Inner = namedtuple("Inner", "ndim")
BOX = Box(1.25, (2.5, 3), Inner(0.5))
constants = ModuleType("constants")
constants.size = 3.5


@cuda.jit(device=True)
def doubled(record):
    return record.size * 2


@cuda.jit
def of_plain(p, out):
    i = cuda.grid(1)
    r = p[i]
    p[i].dtype = r.dtype + 1
    out[i, 0] = p[i].size * 2.0
    out[i, 1] = (r.ndim + 1) / 3
    shape = r.shape
    out[i, 2] = shape * shape + 1
    out[i, 3] = p[i].laneid * 2 + r.warpsize // 2
    out[i, 4] = r.x * 3 + r.z - p[i].real * r.imag
    out[i, 5] = r.T * 5 - p[i].flags
    out[i, 6] = p[i].itemsize + r.dtype
    out[i, 7] = doubled(r)
    out[i, 8] = -r.size // 2
    out[i, 9] = cuda.laneid * r.x + out.size
    n, m = out.shape
    out[i, 10] = r.x * out.shape[0] + r.x * m + n


@cuda.jit
def of_nested(p, out):
    i = cuda.grid(1)
    tile = cuda.shared.array(THREADS, SHARED)
    mine = cuda.local.array(2, SHARED)
    tile[i] = p[i]
    mine[1] = tile[i]
    out[i, 0] = tile[i].size * 2 + mine[1].size
    out[i, 1] = p[i].inner.size * 3 + mine[1].inner.ndim
    out[i, 2] = tile[i].shape[0] * 2.0 + p[i].shape[1]
    first, second = p[i].shape
    out[i, 3] = first * second * 3
    made = cuda.local.array(1, MADE)
    made[0].warpsize = p[i].size
    out[i, 4] = made[0].warpsize * 3 + mine.size


@cuda.jit
def of_tuples(box, out):
    i = cuda.grid(1)
    size = box.size
    out[i, 0] = box.size * 2.0 + size * i
    out[i, 1] = box.shape[0] * 2.0 + box.shape[1]
    out[i, 2] = box.inner.ndim * 2.0 + BOX.inner.ndim * 4.0
    out[i, 3] = constants.size * 2.0 + BOX.size * i


@cuda.jit
def by_columns(p, out):
    i = cuda.grid(1)
    out[i] = p.data[i] * 2 + p.base[i] + p.put[i]
    p.round[i] = p.trace[i]
    cuda.atomic.add(p.base, i, 1)


@cuda.jit
def by_attributes(p, out):
    i = cuda.grid(1)
    out[i] = p.itemsize


@cuda.jit
def by_a_method(p, out):
    i = cuda.grid(1)
    out[i] = p.min[i]


def filled(dtype, seed=0):
    """Return an array of records in which every float32 is a number with a fraction."""
    records = np.zeros(THREADS, dtype)
    floats = records.view(np.float32).reshape(THREADS, -1)
    floats[:] = np.random.default_rng(seed).normal(size=floats.shape).astype(np.float32) * 8
    return records


WORLDS = {
    "scheduler": functools.partial(simulate, engine="scheduler"),
    "vectorised": functools.partial(simulate, engine="vectorised"),
    "checked": functools.partial(simulate, check=True, engine="scheduler"),
    "checked at once": functools.partial(simulate, check=True, engine="vectorised"),
    "sanitize": sanitize,
    "trace": trace,
}
ONE_BY_ONE = [world for world in WORLDS if world not in ("vectorised", "checked at once")]


@pytest.mark.parametrize("world", WORLDS)
def test_a_field_keeps_its_value_whatever_attribute_has_its_name(world):
    p, out = filled(PLAIN), np.zeros((THREADS, 11))
    v = {name: p[name].astype(np.float64) for name in NAMES}
    WORLDS[world](of_plain)[1, THREADS](p, out)
    p["dtype"], stored = (v["dtype"] + 1).astype(np.float32), p["dtype"].tolist()
    assert stored == p["dtype"].tolist()
    expected = [
        *(
            v["size"] * 2,
            (v["ndim"] + 1) / 3,
            np.float64(p["shape"] * p["shape"]) + 1,
            v["laneid"] * 2 + v["warpsize"] // 2,
        ),
        *(v["x"] * 3 + v["z"] - np.float64(p["real"] * p["imag"]), v["T"] * 5 - v["flags"]),
        *(p["itemsize"] + p["dtype"], v["size"] * 2, -v["size"] // 2),
        np.arange(THREADS) * v["x"] + out.size,
        v["x"] * THREADS + v["x"] * 11 + THREADS,
    ]
    assert out.T.tolist() == [column.tolist() for column in expected]


@pytest.mark.parametrize("world", ONE_BY_ONE)
def test_a_field_of_records_in_records_and_in_the_kernels_own_arrays_keeps_its_value(world):
    p, out = filled(NESTED), np.zeros((THREADS, 5))
    size, shape, inner = p["size"].astype(np.float64), p["shape"].astype(np.float64), p["inner"]
    WORLDS[world](of_nested)[1, THREADS](p, out)
    expected = [
        size * 2 + size,
        inner["size"].astype(np.float64) * 3 + inner["ndim"],
        shape[:, 0] * 2 + shape[:, 1],
        (p["shape"][:, 0] * p["shape"][:, 1]).astype(np.float64) * 3,
        size * 3 + 2,
    ]
    assert out.T.tolist() == [column.tolist() for column in expected]


@pytest.mark.parametrize("world", ["scheduler", "sanitize", "trace"])
def test_a_field_of_a_record_that_is_an_argument_keeps_its_value(world):
    one, out = filled(NESTED)[0, ...], np.zeros(1)

    def of_one(one, out):
        out[0] = one.size * 2 + one.inner.warpsize

    WORLDS[world](of_one)[1, 1](one, out)
    assert out[0] == np.float64(one["size"]) * 2 + one["inner"]["warpsize"]


@pytest.mark.parametrize("world", WORLDS)
def test_the_column_of_a_field_is_found_unless_numbas_arrays_have_an_attribute_of_its_name(world):
    p, out = filled(COLUMNS), np.zeros(THREADS)
    before = p.copy()
    WORLDS[world](by_columns)[1, THREADS](p, out)
    total = before["data"].astype(np.float64) * 2 + before["base"] + before["put"]
    assert out.tolist() == total.tolist()
    assert p["round"].tolist() == before["trace"].tolist()
    assert p["base"].tolist() == (before["base"] + np.float32(1)).tolist()


def test_no_engine_takes_an_attribute_of_arrays_for_a_field():
    p, out = filled(COLUMNS), np.zeros(THREADS)
    simulate(by_attributes)[1, THREADS](p, out)
    assert (out == p.itemsize).all()
    with pytest.raises(TypeError, match="subscriptable"):
        simulate(by_a_method)[1, THREADS](p, out)


@pytest.mark.parametrize("world", WORLDS)
def test_a_field_of_a_named_tuple_and_a_constant_of_a_module_keep_their_values(world):
    i, out = np.arange(THREADS), np.zeros((THREADS, 4))
    WORLDS[world](of_tuples)[1, THREADS](BOX, out)
    assert (out == np.stack([2.5 + 1.25 * i, 8 + 0 * i, 3 + 0 * i, 7 + 1.25 * i], 1)).all()
