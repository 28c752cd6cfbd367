"""Device arrays: memory of their own, with Numba's rules for copies and views."""

import numba
import numpy as np
import pytest

from normlab.run.memory import DeviceArray
from normlab.run.poison import poisoned, unwritten


def test_host_and_device_share_no_memory(cuda):
    host = np.arange(4)
    device = cuda.to_device(host)
    host[0] = 9
    back = device.copy_to_host()
    back[1] = 9
    assert list(device.copy_to_host()) == [0, 1, 2, 3]
    assert cuda.to_device(device) is device
    other = cuda.to_device(np.zeros(4, int))
    other.copy_to_device(device)
    device[0] = 5
    assert list(other.copy_to_host()) == [0, 1, 2, 3]
    assert cuda.to_device(host, to=other) is other
    assert other[0] == 9


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_fresh_floats_are_nan(cuda, dtype):
    assert np.isnan(cuda.device_array((3, 2), dtype).copy_to_host()).all()
    assert np.isnan(cuda.pinned_array(3, dtype)).all()


def test_fresh_integers_are_garbage(cuda):
    assert cuda.device_array(2, np.int32)[0] == 0x5A5A5A5A
    assert cuda.device_array_like(np.zeros((2, 3), np.uint8))[1, 2] == 0x5A


def test_unwritten_elements_are_known_by_content():
    memory = poisoned((4, 3), np.dtype(np.float32))
    assert unwritten(memory)[0] is memory
    memory[1] = np.nan
    memory[3, 2] = 0
    assert [part.size for part in unwritten(memory)] == [3, 5]
    assert np.shares_memory(unwritten(memory)[1], memory[2])
    rows = poisoned((4, 6), np.dtype(np.int32))[::2, ::2]
    rows[1, 1] = 0
    assert [part.shape for part in unwritten(rows)] == [(3,), (1,), (1,)]
    assert all(np.shares_memory(part, rows) for part in unwritten(rows))
    columns = poisoned((4, 3), np.dtype(np.float64)).T
    columns[0] = 1
    assert sum(part.size for part in unwritten(columns)) == 8
    small = poisoned((4,), np.dtype(np.uint8))
    small[0] = 1
    assert unwritten(small) == []  # 0x5a is a value like any other
    assert unwritten(np.zeros(0)) == []
    record = poisoned((2,), np.dtype([("a", np.int64), ("b", np.int64)]))
    record["b"] = 0
    assert unwritten(record) == []


def test_slices_are_views_and_elements_are_copies(cuda):
    device = cuda.to_device(np.arange(12.0).reshape(3, 4))
    device[1:, ::2][0, 1] = 50
    assert device[1, 2] == 50
    assert isinstance(device[1, 2], np.float64)
    assert isinstance(device[1], DeviceArray)
    device[0] = np.float32(7)
    device[2, 1:3] = cuda.to_device(np.array([1.0, 2.0]))
    assert device.copy_to_host().tolist() == [[7, 7, 7, 7], [4, 5, 50, 7], [8, 1, 2, 11]]
    assert [part.shape for part in device.ravel().split(5)] == [(5,), (5,), (2,)]
    with pytest.raises(ValueError, match="Can't assign 2-D array to 1-D self"):
        device[0] = np.zeros((1, 4))
    for key in ([0, 1], np.ones(3, bool), None, True):
        with pytest.raises(NotImplementedError, match="indexed by ints, slices"):
            device[key]
        with pytest.raises(NotImplementedError, match="indexed by ints, slices"):
            device[key] = 1
    with pytest.raises(IndexError):
        device[3]


def test_views_of_other_shapes_share_memory_and_the_transpose_does_not(cuda):
    device = cuda.to_device(np.arange(6, dtype=np.int32).reshape(2, 3))
    device.reshape(3, 2)[2, 1] = 60
    device.ravel()[0] = 10
    device.reshape((1, 6)).squeeze()[1] = 20
    device.view(np.uint8)[0, 8] = 30
    assert device.copy_to_host().tolist() == [[10, 20, 30], [3, 4, 60]]
    transpose = device.T
    transpose[0, 0] = 0
    assert transpose.shape == (3, 2)
    assert device[0, 0] == 10
    for needs_copy in (lambda: device[:, :2].ravel(), lambda: device[:, 1:].reshape(4)):
        with pytest.raises(NotImplementedError, match="operation requires copying"):
            needs_copy()
    with pytest.raises(NotImplementedError, match="non-2D"):
        device.ravel().T  # noqa: B018


def test_attributes_are_numpy_s(cuda):
    host = np.asfortranarray(np.zeros((2, 3), np.int16))
    device = cuda.to_device(host)
    for name in ("shape", "strides", "dtype", "ndim", "size", "nbytes"):
        assert getattr(device, name) == getattr(host, name)
    assert (len(device), device.alloc_size) == (2, 12)
    assert device.flags["F_CONTIGUOUS"]
    assert not device.is_c_contiguous()
    assert numba.typeof(device) == numba.int16[::1, :]
    assert cuda.device_array_like(device).strides == host.strides
    assert np.asarray(device).sum() == 0
    assert cuda.device_array((3, 4), strides=(64, 8))[1].strides == (8,)
    assert cuda.device_array((0, 4)).copy_to_host().shape == (0, 4)


def test_copies_refuse_what_numba_refuses(cuda):
    device = cuda.to_device(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        cuda.to_device(np.zeros((4, 6))[:, ::2])
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        cuda.to_device(np.zeros((4, 6))[:, ::2], copy=False)
    assert cuda.to_device(np.broadcast_to(np.arange(3.0), (2, 3)))[1, 2] == 2
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        device[:, 1].copy_to_device(np.zeros(3))
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        device[0] = np.zeros(8)[::2]
    with pytest.raises(ValueError, match="must be C-contiguous"):
        device[:, :2].view(np.float32)
    with pytest.raises(TypeError, match="incompatible dtype: float64 vs"):
        device.copy_to_device(np.zeros((3, 4), np.float32))
    with pytest.raises(TypeError, match="incompatible dtype"):
        device.copy_to_host(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"incompatible shape: \(3, 4\) vs. \(4, 3\)"):
        device.copy_to_host(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="incompatible strides"):
        device.copy_to_host(np.zeros((3, 4), order="F"))
    with pytest.raises(NotImplementedError, match="negative strides"):
        device[::-1].copy_to_host()
    with pytest.raises(TypeError, match="shape must be an integer"):
        cuda.device_array(2.5)
    with pytest.raises(ValueError, match="C/F order"):
        cuda.device_array(2, order="A")


def test_what_a_device_array_lacks_is_named(cuda):
    device = cuda.to_device(np.zeros(3))
    with pytest.raises(AttributeError, match="in no GPU's memory"):
        device.__dlpack__  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'sum'"):
        device.sum()


def test_an_array_has_an_address_in_simulated_memory(cuda):
    device = cuda.to_device(np.arange(6.0))
    assert device[2:].gpu_data.device_pointer - device.gpu_data.device_pointer == 16
    assert device.view(np.int64).gpu_data == device.gpu_data
    assert DeviceArray((0, 2), (16, 8), np.float64, gpu_data=device[:0].gpu_data).shape == (0, 2)
    assert device[2:].device_ctypes_pointer.value == device[2:].gpu_data.device_ctypes_pointer.value


def test_records(cuda):
    kind = np.dtype([("x", np.float32), ("n", np.int64)], align=True)
    device = cuda.to_device(np.zeros(3, kind))

    @cuda.jit
    def fill(records, one):
        i = cuda.grid(1)
        records[i].x = i
        records[i]["n"] = one["n"] + i

    device[0]["n"] = 10
    fill[1, 3](device, device[0])
    assert device[2]["x"] == 2
    assert device.copy_to_host()["n"].tolist() == [10, 11, 12]
    with pytest.raises(TypeError, match="from one record"):
        device["x"]
    with pytest.raises(TypeError, match="from one record"):
        device["x"] = 1


def test_mapped_and_managed_memory_is_shared(cuda):
    @cuda.jit
    def double(x):
        x[cuda.grid(1)] *= 2

    host = np.arange(4.0)
    for shared in (cuda.mapped_array(4), cuda.managed_array(4), cuda.mapped_array_like(host)):
        shared[:] = host
        double[1, 4](shared)
        assert shared.tolist() == [0, 2, 4, 6]
        assert shared.copy_to_host().tolist() == [0, 2, 4, 6]
    with cuda.mapped(host) as device:
        double[1, 4](device)
    assert host.tolist() == [0, 2, 4, 6]


def test_a_like_array_has_the_order_of_axes_and_no_gaps(cuda):
    view = np.zeros((6, 4, 8), np.float64, order="F")[::2, :, :5].transpose(1, 0, 2)
    for like in (cuda.device_array_like, cuda.mapped_array_like, cuda.pinned_array_like):
        assert like(view).strides == np.empty_like(view).strides
        assert like(np.zeros((2, 3), order="F")).strides == (8, 16)
    assert cuda.device_array_like(cuda.device_array_like(view)).strides == np.empty_like(view).strides


def test_broadcast_arrays_keep_their_layout_and_copy_their_core(cuda):
    core = np.arange(6).reshape(2, 3)
    broad = np.broadcast_to(core[:, None], (2, 4, 3))
    device = cuda.to_device(broad)
    assert device.strides == broad.strides
    assert device.copy_to_host().tolist() == broad.tolist()
    device.copy_to_device(np.broadcast_to(np.asfortranarray(core + 1)[:, None], (2, 4, 3)))
    assert device.copy_to_host().tolist() == (broad + 1).tolist()
    with pytest.raises(ValueError, match=r"incompatible shape: \(2, 3\) vs. \(3,\)"):
        cuda.to_device(core).copy_to_device(np.broadcast_to(np.arange(3), (2, 3)))
    assert numba.typeof(cuda.to_device(np.broadcast_to(np.ones(1), (10,)))).layout == "A"


def test_device_arrays_of_other_orders_are_not_copied(cuda):
    device = cuda.to_device(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"incompatible strides: \(24, 8\) vs. \(8, 16\)"):
        device.copy_to_device(cuda.to_device(np.zeros((2, 3), order="F")))
    with pytest.raises(NotImplementedError, match="requires copying"):
        cuda.to_device(np.arange(6))[::2].ravel()
