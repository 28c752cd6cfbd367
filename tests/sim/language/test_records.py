"""Fields of records load and store integers as arrays do, however a kernel reaches them and whatever runs it."""

import functools

import numpy as np
import pytest
from numba import cuda, from_dtype

from normlab.sim import sanitize, simulate, trace

INNER = np.dtype([("a", "u1"), ("real", "i4")], align=True)
POINT = np.dtype([("s", "u1"), ("n", "i4"), ("u", "u8"), ("v", "i2", 3), ("inner", INNER), ("w", INNER, 2)], align=True)
FLAT = np.dtype([(name, POINT[name]) for name in ("s", "n", "u", "v")], align=True)
Flat, Point = from_dtype(FLAT), from_dtype(POINT)
THREADS = 16


def points(dtype):
    """Return records whose sums and products do not fit their own types."""
    made = np.zeros(THREADS, dtype)
    made["s"], made["n"], made["u"], made["v"] = 200, 2**31 - 1 - np.arange(THREADS), 2**64 - 1, 30000
    if dtype is POINT:
        made["inner"], made["w"]["a"], made["w"]["real"] = (255, -(2**31)), 250, 70000
    return made


@cuda.jit(device=True)
def total(point):
    return point.s + point["s"] + point.n


@cuda.jit
def loads(p, out):
    i = cuda.grid(1)
    point = p[i]
    s = point.s
    out[i, 0] = s * s - 2 * p.n[i] + p["n"][i]
    out[i, 1] = total(p[i]) + point.v[0] * p.v[i, 1] * p["v"][i, 2]
    out[i, 2] = p[i].u + 1
    out[i, 3] = p[i].s - p[i].n if i else -p[i].s


@cuda.jit
def stores(p, out):
    i = cuda.grid(1)
    shared, local = cuda.shared.array(THREADS, Flat), cuda.local.array(1, Flat)
    p[i].s += i * 7
    p[i].n += 2 + i
    p[i]["u"] = -i
    p.v[i, 0] = 40000
    p["v"][i, 1] *= 2
    cuda.atomic.add(p.n, i, 2**31 - 1)
    cuda.atomic.max(p["u"], i, 2**63)
    local[0] = p[i]
    local[0].s = 511
    shared[i] = local[0]
    shared[i].n = 2**40 + i
    cuda.syncthreads()
    out[i, 0] = shared[THREADS - 1 - i].n * shared[THREADS - 1 - i].s


@cuda.jit
def nested(p, out):
    i = cuda.grid(1)
    point = p[i]
    out[i, 0] = point.inner.a + p.inner.a[i] + p["inner"]["a"][i]
    out[i, 1] = p[i].inner.real - p[i].w[1].real * p.w[i, 0].real
    out[i, 2] = p[1:][i - 1].s * p[:][i]["w"][0].a if i else p[i].s + p[i].w[1].a
    p[i].inner.a = -1 - i
    p[i].w[1].real = 2**31 + i
    local = cuda.local.array(1, Point)
    local[0] = p[i]
    local[0].inner.a += local[0].w[0].a
    p[i] = local[0]


def right(kernel, p):
    """Return the records and the results after a kernel, each number computed without bounds and then wrapped."""
    out, i, n = np.zeros((THREADS, 4), np.int64), np.arange(THREADS), p["n"].astype(np.int64)
    if kernel is loads:
        out[:, 0], out[:, 1], out[:, 3] = 200 * 200 - n, 400 + n + 30000**3, np.where(i, 200 - n, 256 - 200)
    elif kernel is stores:
        p["s"], p["n"] = 200 + i * 7, n + 2 + i + 2**31 - 1
        p["u"] = np.maximum((-i).astype(np.uint64), np.uint64(2**63))
        p["v"][:, 0], p["v"][:, 1] = 40000 - 2**16, 60000 - 2**16
        out[:, 0] = (THREADS - 1 - i) * 255
    else:
        out[:, 0], out[:, 1], out[:, 2] = 3 * 255, -(2**31) - 70000**2, np.where(i, 200 * 250, 450)
        p["inner"]["a"], p["w"]["real"][:, 1] = 255 - i + 250, -(2**31) + i
    return p, out


WORLDS = {
    "simulate": simulate,
    "scheduler": functools.partial(simulate, engine="scheduler"),
    "vectorised": functools.partial(simulate, engine="vectorised"),
    "checked": functools.partial(simulate, check=True),
    "sanitize": sanitize,
    "sanitize one by one": functools.partial(sanitize, engine="scheduler"),
    "trace": trace,
}


@pytest.mark.parametrize("kernel", [loads, stores, nested], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("world", WORLDS)
def test_fields_compute_and_wrap_as_elements_of_arrays(world, kernel):
    if world == "vectorised" and kernel is nested:
        pytest.skip("records in records are the scheduler's")
    dtype = POINT if kernel is nested else FLAT
    p, out = points(dtype), np.zeros((THREADS, 4), np.int64)
    result = WORLDS[world](kernel)[1, THREADS](p, out)
    records, numbers = right(kernel, points(dtype))
    assert out.tolist() == numbers.tolist()
    assert p.tobytes() == records.tobytes()
    assert not getattr(result, "findings", ())


@cuda.jit
def of_one_record(point, out):
    i = cuda.grid(1)
    out[i, 0] = point.s * point["s"] + point.v[i % 3]
    if i == 0:
        point.n += 1
        point["u"] = -1


@pytest.mark.parametrize("world", ["simulate", "sanitize", "sanitize one by one", "trace"])
def test_a_record_is_an_argument(world):
    # `normlab run` makes an array without axes of a record; to Numba's check the array would be no record.
    p, out = points(FLAT), np.zeros((THREADS, 4), np.int64)
    result = WORLDS[world](of_one_record)[1, THREADS](p[0, ...], out)
    assert (out[:, 0] == 200 * 200 + 30000).all()
    assert (p["n"][0], p["u"][0]) == (-(2**31), 2**64 - 1)
    assert not getattr(result, "findings", ())
