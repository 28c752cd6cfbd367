"""The CUDA array interface, in both directions, and PyTorch's tensors on the CPU as memory of the simulated GPU."""

import subprocess
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from normlab.run.memory import Allocation, DeviceArray


def foreign(array):
    """Return an object that has nothing but the interface of a device array, as another library's array would."""
    return SimpleNamespace(__cuda_array_interface__=array.__cuda_array_interface__, kept=array)


@pytest.fixture
def add(cuda):
    @cuda.jit
    def add(x, value):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] += value

    return add


@pytest.mark.parametrize("part", [slice(None), slice(2, 7), slice(None, None, 3), slice(None, None, -2)])
def test_an_interface_is_a_view_of_the_same_memory(cuda, add, part):
    host = np.arange(10.0)
    device = cuda.to_device(host)
    view = cuda.as_cuda_array(foreign(device[part]))
    assert isinstance(view, DeviceArray)
    assert [view[i] for i in range(len(view))] == host[part].tolist()
    add[1, 32](foreign(device[part]), 100)
    host[part] += 100
    assert device.copy_to_host().tolist() == host.tolist()


def test_columns_of_a_fortran_ordered_matrix_are_found(cuda):
    host = np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4))
    device = cuda.to_device(host)
    view = cuda.from_cuda_array_interface(device[:, 1:3].__cuda_array_interface__)
    assert view.is_f_contiguous()
    assert view.copy_to_host().tolist() == host[:, 1:3].tolist()


def test_a_view_keeps_the_memory_and_knows_that_it_is_fresh(cuda):
    view = cuda.as_cuda_array(foreign(cuda.device_array(1000)))
    assert view.allocation.fresh
    before = Allocation.in_use
    assert np.isnan(view.copy_to_host()).all()
    del view
    assert before - Allocation.in_use == 8000


def test_shared_memory_has_the_interface_too(cuda, add):
    for shared in (cuda.mapped_array(4, stream=cuda.stream()), cuda.managed_array(4)):
        shared[:] = 1
        add[1, 4](foreign(shared[1:]), 2)
        assert shared.tolist() == [1, 3, 3, 3]
    interface = cuda.mapped_array(4, stream=cuda.external_stream(77)).__cuda_array_interface__
    assert interface["stream"] == 77


def test_ufuncs_take_and_fill_foreign_arrays(cuda):
    @cuda.vectorize(["float64(float64, float64)"], target="cuda")
    def plus(a, b):
        return a + b

    x, out = cuda.to_device(np.arange(4.0)), cuda.device_array(4)
    assert plus(foreign(x), 1).copy_to_host().tolist() == [1, 2, 3, 4]
    assert isinstance(plus(x, 2, out=foreign(out)), DeviceArray)
    assert out.copy_to_host().tolist() == [2, 3, 4, 5]


def test_addresses_outside_simulated_memory_are_refused(cuda):
    interface = cuda.to_device(np.zeros(3)).__cuda_array_interface__
    with pytest.raises(ValueError, match="no array of normlab run is at the address 0x10: a GPU's memory is not"):
        cuda.from_cuda_array_interface({**interface, "data": (0x10, False)})
    device = cuda.to_device(np.zeros(3))
    with pytest.raises((ValueError, TypeError), match="buffer"):
        cuda.from_cuda_array_interface({**device.__cuda_array_interface__, "shape": (4,)})
    with pytest.raises(NotImplementedError, match="Masked arrays"):
        cuda.from_cuda_array_interface({**device.__cuda_array_interface__, "mask": device})
    with pytest.raises(TypeError, match="doesn't implement the cuda array interface"):
        cuda.as_cuda_array(np.zeros(3))
    assert not cuda.is_cuda_array(np.zeros(3))
    assert cuda.as_cuda_array(foreign(cuda.device_array(0))).shape == (0,)


PROGRAM = """
from numba import cuda
import numpy as np
array = cuda.to_device(np.arange(4, dtype=np.float32))
import torch
tensor = torch.as_tensor(array)
tensor[0] = 7
print(tensor.tolist(), array.copy_to_host().tolist(), torch.tensor(array, dtype=torch.int64).tolist())
"""


@pytest.mark.parametrize("first", ["", "import torch\n", "import importlib.util\nimportlib.util.find_spec('torch')\n"])
def test_torch_takes_a_device_array_whenever_it_is_imported(tmp_path, first):
    pytest.importorskip("torch")
    script = tmp_path / "program.py"
    script.write_text(first + PROGRAM)
    command = [sys.executable, "-m", "normlab.cli", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[7.0, 1.0, 2.0, 3.0] [7.0, 1.0, 2.0, 3.0] [7, 1, 2, 3]\n", done.stderr


def test_device_arrays_of_bfloat16_and_mapped_ones_are_tensors_too(cuda):
    torch = pytest.importorskip("torch")
    narrow = torch.asarray(cuda.to_device(np.arange(3, dtype=ml_dtypes.bfloat16)))
    assert (narrow.dtype, narrow.tolist()) == (torch.bfloat16, [0, 1, 2])
    mapped = cuda.mapped_array(3)
    torch.as_tensor(mapped)[:] = 2
    assert mapped.tolist() == [2, 2, 2]


def test_pytorchs_functions_keep_the_names_of_their_arguments(cuda):
    torch = pytest.importorskip("torch")
    for data in (cuda.to_device(np.arange(3)), [0, 1, 2]):
        for tensor in (torch.asarray(obj=data), torch.as_tensor(data=data), torch.tensor(data=data)):
            assert tensor.tolist() == [0, 1, 2]


def test_tensors_on_the_cpu_are_memory_of_the_simulated_gpu(cuda, add):
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.int16, torch.bfloat16):
        tensor = torch.arange(6, dtype=kind)
        add[1, 32](tensor[::2], 10)
        assert tensor.tolist() == [10, 1, 12, 3, 14, 5]
        add[1, 32](cuda.as_cuda_array(tensor), 1)
        assert tensor.tolist() == [11, 2, 13, 4, 15, 6]
    copied = cuda.to_device(torch.zeros(3))
    copied[0] = 1
    assert copied.copy_to_host().tolist() == [1, 0, 0]
    with pytest.raises(RuntimeError, match=r"use var.detach\(\)"):
        add[1, 32](torch.zeros(3, requires_grad=True), 1)
