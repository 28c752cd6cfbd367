"""What a kernel checks, knows and is warned of: limits, signatures, the grid's group, members of enums, pickling."""

import enum
import pickle
import warnings

import numba
import numpy as np
import pytest


def test_limits_of_a_kernel_are_checked(cuda):
    bounded = cuda.jit(lambda: None, launch_bounds=(128, 2))
    bounded[1, 128]()
    bounded[1, (32, 2, 2)]()
    for block in (129, (32, 5)):
        with pytest.raises(Exception, match=r"CUDA_ERROR_INVALID_VALUE: a block has 1.. threads, and"):
            bounded[1, block]()
    with pytest.raises(ValueError, match="Got 4 launch bounds"):
        cuda.jit(launch_bounds=(1, 2, 3, 4))
    for carveout, words in ((-2, "must be between -1 and 100"), ("MaxL2", "Invalid carveout value: MaxL2")):
        with pytest.raises(ValueError, match=words):
            cuda.jit(shared_memory_carveout=carveout)
    cuda.jit(shared_memory_carveout="MaxL1")


@numba.cuda.jit(device=True)
def all_waiting():
    numba.cuda.cg.this_grid().sync()


def test_debug_with_opt_is_warned_of(cuda, monkeypatch):
    for options in ({"debug": True}, {"debug": True, "opt": 3}):
        with pytest.warns(Warning, match="debug=True with opt=True is not supported by CUDA"):
            cuda.jit(**options)
    with monkeypatch.context() as patched:
        patched.setattr(numba.cuda.config, "CUDA_DEBUGINFO_DEFAULT", 1)
        with pytest.warns(Warning, match="debug=True with opt=True"):
            cuda.jit()
        patched.setattr(numba.cuda.config, "OPT", 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cuda.jit()


def test_the_only_signature_reads_integers_of_the_other_sign(cuda):
    @cuda.jit("void(uint32[:])")
    def half(x):
        x[0] //= 2

    x = np.full(1, -2, np.int32)
    half[1, 1](x)
    assert x[0] == 2**31 - 1
    for other in (np.zeros(1, np.int64), np.zeros(1, np.float32)):
        with pytest.raises(TypeError, match="No matching definition"):
            half[1, 1](other)
    with pytest.raises(TypeError, match="No matching definition"):
        cuda.jit(["void(uint32[:])", "void(float32[:])"])(half.py_func)[1, 1](x)


def test_a_kernel_knows_whether_it_is_cooperative(cuda):
    kernel = cuda.jit(lambda: all_waiting())
    alone = cuda.jit(lambda: None)
    for each in (kernel, alone):
        each[1, 1]()
    assert [each.overloads[()].cooperative for each in (kernel, alone)] == [True, False]


def test_a_grid_that_waits_has_at_most_the_blocks_that_run_at_once(cuda):
    @cuda.jit(device=True)
    def wait():
        cuda.cg.this_grid().sync()

    @cuda.jit
    def waiting(x):  # through a closure
        wait()
        x[0] = 1

    @cuda.jit
    def not_waiting(x):
        x[0] = 1

    x = np.zeros(1)
    waiting[132 * 2, 1024](x)
    assert x[0] == 1
    x[0] = 0
    for grid, block, shared, most in ((265, 1024, 0, 264), ((200, 200), 32, 0, 4224), (400, 32, 100 * 1024, 264)):
        with pytest.raises(Exception, match=f"COOPERATIVE_LAUNCH_TOO_LARGE.* {np.prod(grid)} blocks .* {most} at once"):
            waiting[grid, block, 0, shared](x)
    assert x[0] == 0
    not_waiting[5000, 1](x)
    assert x[0] == 1


class Colour(enum.Enum):
    red, green = 1, 2


def test_a_kernel_compares_members_of_an_enum(cuda):
    @cuda.jit
    def compare(a, b, out):
        i = cuda.grid(1)
        if a == b and a is b:
            out[i] = 1 if a != Colour.red else 2

    for threads in (1, 32):  # one of each engine
        for a, b, expected in ((Colour.red, Colour.red, 2), (Colour.red, Colour.green, 0), (Colour.green,) * 2 + (1,)):
            out = np.zeros(threads)
            compare[1, threads](a, b, out)
            assert (out == expected).all()


def test_a_kernel_of_a_function_is_pickled_with_its_code(cuda):
    one = cuda.jit("int64(int64)", device=True)(lambda x: x + 1)
    for decorate in (cuda.jit, cuda.jit("void(int64[:])", launch_bounds=4)):

        @decorate
        def kernel(x):
            x[0] = one(4)

        x = np.zeros(1, np.int64)
        again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(kernel[1, 2]))))
        again(x)
        assert (x[0], again.griddim, again.blockdim) == (5, (1, 1, 1), (2, 1, 1))
        assert again.kernel.signatures == kernel.signatures or decorate is cuda.jit


def test_a_launch_may_add_a_cluster_along_x(cuda):
    from normlab.engine import cluster_rank

    @cuda.jit
    def ranks(x):
        if cuda.threadIdx.x == 0:
            x[cuda.blockIdx.x] = cluster_rank()

    x = np.zeros(4)
    ranks[4, 32, cuda.stream(), None, (2, 1, 1)](x)
    assert x.tolist() == [0, 1, 0, 1]
    ranks.configure(4, 32, cluster=4)(x)
    assert x.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="no multiple of the cluster's 2"):
        ranks[3, 32, 0, 0, 2]
    with pytest.raises(NotImplementedError, match="a cluster lies along x"):
        ranks[4, 32, 0, 0, (1, 2, 1)]
