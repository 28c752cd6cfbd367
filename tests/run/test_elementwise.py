"""`vectorize` and `guvectorize` for the cuda target: broadcasting, types, where results are, errors."""

import pickle

import numba
import numpy as np
import pytest


@pytest.fixture
def multiply(cuda):
    @numba.vectorize(["float32(float32, float32)", "int64(int64, int64)"], target="cuda")
    def multiply(a, b):
        return a * b

    return multiply


def test_arguments_broadcast(multiply):
    a, b = np.arange(6).reshape(2, 1, 3), np.arange(4).reshape(4, 1)
    assert (multiply(a, b) == a * b).all()
    assert multiply(3, np.arange(3)).tolist() == [0, 3, 6]
    assert multiply(np.int64(3), np.int64(4)).tolist() == [12]


def test_results_are_where_the_arguments_are(cuda, multiply):
    host = np.arange(4)
    device = cuda.to_device(host)
    assert isinstance(multiply(host, host), np.ndarray)
    assert multiply(device, host).copy_to_host().tolist() == [0, 1, 4, 9]
    out = np.zeros(4, np.int64)
    assert multiply(device, device, out=out) is out
    assert out[3] == 9
    on_device = cuda.device_array((2, 4), np.int64)
    multiply(host, host, out=on_device[1], stream=cuda.stream())
    assert on_device[1].copy_to_host().tolist() == [0, 1, 4, 9]
    columns = cuda.to_device(np.zeros((4, 2), np.int64))
    multiply(host, host, out=columns[:, 1])
    assert columns.copy_to_host().tolist() == [[0, 0], [0, 1], [0, 4], [0, 9]]


def test_types_are_exact_and_scalars_are_free(multiply):
    assert multiply(np.ones(2, np.float32), 2.5).dtype == np.float32
    with pytest.raises(TypeError, match=r"No matching version.*Given: float64, float64"):
        multiply(np.ones(2), np.ones(2))
    with pytest.raises(TypeError, match="ambiguous"):
        multiply(1.5, 2.5)
    with pytest.raises(ValueError, match="output shape mismatch"):
        multiply(np.arange(2), np.arange(2), out=np.zeros(3, np.int64))
    with pytest.raises(TypeError, match="out has dtype float64, the result int64"):
        multiply(np.arange(2), np.arange(2), out=np.zeros(2))


def test_numba_infers_a_result_type_that_is_not_declared(cuda):
    @cuda.jit(device=True)
    def square(a):
        return a * a

    @numba.vectorize(["(int16, int16)", "(float32, float32)", "(complex64, float32)"], target="cuda")
    def mix(a, b):
        return square(a) + b

    for a, b, kind in (("int16", "int16", "int64"), ("float32", "float32", "float32"), ("complex64", "float32", None)):
        made = mix(np.full(3, 300, a), np.full(3, 7, b))
        assert made.tolist() == [90_007] * 3
        assert made.dtype == (kind or "complex64")


def test_a_ufunc_of_a_function_is_pickled_with_its_code(cuda):
    plus = numba.vectorize(["int64(int64)", "float64(float64)"], target="cuda")(lambda a: a + 1)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(plus))))
    for kind in (np.int64, np.float64):
        made = again(np.arange(3, dtype=kind))
        assert (made.tolist(), made.dtype) == ([1, 2, 3], kind)


def test_reduce_leaves_its_argument_alone(cuda, multiply):
    host = np.arange(1, 8)
    device = cuda.to_device(host)
    assert multiply.reduce(device) == multiply.reduce(host) == 5040
    assert device.copy_to_host().tolist() == host.tolist()
    with pytest.raises(TypeError, match="empty array"):
        multiply.reduce(host[:0])
    with pytest.raises(TypeError, match="one-dimensional"):
        multiply.reduce(np.ones((2, 2), np.int64))


def test_vectorize_says_what_it_cannot(cuda):
    with pytest.raises(TypeError, match="caching is not supported"):
        numba.vectorize(["float32(float32)"], target="cuda", cache=True)(lambda a: a)
    with pytest.warns(RuntimeWarning, match="nopython kwarg for cuda target is redundant"):
        numba.vectorize(["float32(float32)"], target="cuda", nopython=True)(lambda a: a)
    with pytest.raises(KeyError, match="fastmath"):
        numba.vectorize(["float32(float32)"], target="cuda", fastmath=True)(lambda a: a)


@pytest.fixture
def matvec(cuda):
    @numba.guvectorize(["void(float32[:,:], float32[:], float32[:])"], "(m,n),(n)->(m)", target="cuda")
    def matvec(a, x, y):
        for i in range(a.shape[0]):
            y[i] = 0
            for j in range(a.shape[1]):
                y[i] += a[i, j] * x[j]

    return matvec


def test_guvectorize_loops_over_the_other_dimensions(cuda, matvec):
    a = np.arange(24, dtype=np.float32).reshape(2, 2, 2, 3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    want = np.einsum("abmn,bn->abm", a, x)
    assert (matvec(a, x) == want).all()
    assert (matvec(a.astype(np.float64), x) == want).all()  # cast down, as Numba does
    assert (matvec(cuda.to_device(a), x).copy_to_host() == want).all()
    out = np.zeros_like(want)
    assert matvec(a, x, out) is out
    assert (out == want).all()
    assert matvec(a, x, out=out) is out
    flat = np.zeros(want.size, np.float32)  # has as many elements, along other axes
    assert (matvec(a, x, flat) == want.ravel()).all()


def test_guvectorize_may_write_to_an_input_that_is_not_broadcast(cuda):
    @numba.guvectorize(["void(float32[:], float32[:])"], "(n)->(n)", target="cuda")
    def count(x, y):
        x[0] += 1
        y[0] = x[0]

    host = np.zeros((2, 1), np.float32)
    device = cuda.to_device(host)
    assert count(host).tolist() == count(device).copy_to_host().tolist() == [[1], [1]]
    assert (host.tolist(), device.copy_to_host().tolist()) == ([[0], [0]], [[1], [1]])  # a host array is copied


def test_guvectorize_checks_shapes_and_types(cuda, matvec):
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"arg #2: shape\[0\] mismatch"):
        matvec(a, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="arg #1: insufficient inner dimension"):
        matvec(a[0], a[0])
    with pytest.raises(TypeError, match=r"accepts 2 positional arguments .* Got 1"):
        matvec(a)
    with pytest.raises(TypeError, match=r"or 3 positional arguments .* Got 4 positional arguments"):
        matvec(a, a[0], a[0], a[0])
    with pytest.raises(ValueError, match="'out' as both positional and keyword"):
        matvec(a, a[0], a[0], out=a[0])
    with pytest.raises(TypeError, match="no matching signature for int8, int8"):
        matvec(a.astype(np.int8), a[0].astype(np.int8))
    with pytest.raises(TypeError, match="a device array cannot be cast"):
        matvec(cuda.to_device(a.astype(np.float64)), a[0])
    for options, words in (({"nopython": False}, "nopython flag must be True"), ({"quick": 1}, "supported: 'quick'")):
        with pytest.raises(TypeError, match=words):
            numba.guvectorize(["void(float32[:], float32[:])"], "(n)->(n)", target="cuda", **options)(lambda a, b: None)
    with pytest.raises(TypeError, match="specifies int32 return type"):
        numba.guvectorize(["int32(int32[:], int32[:])"], "(n)->(n)", target="cuda")(lambda a, b: None)
    with pytest.raises(NameError, match="undefined output symbols: k"):
        numba.guvectorize(["void(float32[:], float32[:])"], "(n)->(k)", target="cuda")(lambda a, b: None)
    with pytest.raises(ValueError, match="a layout looks like"):
        numba.guvectorize(["void(float32[:], float32[:])"], "(n)", target="cuda")(lambda a, b: None)
    for layout in ("(n)(k)->(n)", "((n))->()", "(3)->()", "(n-1)->()"):
        with pytest.raises(ValueError, match="names a dimension"):
            numba.guvectorize(["void(float32[:], float32[:])"], layout, target="cuda")(lambda a, b: None)
    for outs, had in (((), "no arrays"), ((None, None), "2 arrays")):
        with pytest.raises(ValueError, match=f"out has {had}, but the layout has 1 array"):
            matvec(a, a[0], out=outs)
