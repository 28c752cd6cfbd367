"""The driver's numbers and structures against those of cuda-bindings, and its contexts."""

import ctypes

import pytest
from engine.fake_driver import FakeLibrary

from normlab.engine.launching import driver as ours
from normlab.engine.launching.driver import Driver, DriverError

theirs = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings has no wheels for this platform")


@pytest.mark.parametrize(
    ("number", "enum", "name"),
    [
        (ours.COMPUTE_CAPABILITY[0], "CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"),
        (ours.COMPUTE_CAPABILITY[1], "CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR"),
        (ours.MULTIPROCESSORS, "CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"),
        (ours.DEVICE_ORDINAL, "CUpointer_attribute", "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"),
        (ours.MAX_DYNAMIC_SHARED_BYTES, "CUfunction_attribute", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"),
        (ours.NON_PORTABLE_CLUSTER_SIZE, "CUfunction_attribute", "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"),
        (ours.COOPERATIVE, "CUlaunchAttributeID", "CU_LAUNCH_ATTRIBUTE_COOPERATIVE"),
        (ours.CLUSTER_DIMENSION, "CUlaunchAttributeID", "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"),
        (
            ours.PROGRAMMATIC_STREAM_SERIALIZATION,
            "CUlaunchAttributeID",
            "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
        ),
        (ours.RELAXED, "CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_RELAXED"),
    ],
)
def test_numbers_are_those_of_cuda_h(number, enum, name):
    assert number == getattr(getattr(theirs, enum), name)


def test_structures_are_those_of_cuda_h():
    assert ctypes.sizeof(ours.LaunchAttribute) == theirs.sizeof(theirs.CUlaunchAttribute)
    assert ctypes.sizeof(ours.LaunchConfig) == theirs.sizeof(theirs.CUlaunchConfig)
    config = theirs.CUlaunchConfig()
    for field, value in [
        ("gridDimX", 2), ("gridDimY", 3), ("gridDimZ", 4), ("blockDimX", 5), ("blockDimY", 6), ("blockDimZ", 7),
        ("sharedMemBytes", 8), ("hStream", 9),
    ]:  # fmt: skip
        setattr(config, field, value)
    attribute = theirs.CUlaunchAttribute()
    attribute.id = theirs.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 10, 11, 12
    config.attrs, config.numAttrs = [attribute], 1
    same = ours.LaunchConfig.from_address(config.getPtr())
    assert (tuple(same.grid), tuple(same.block), same.shared_bytes, same.stream) == ((2, 3, 4), (5, 6, 7), 8, 9)
    assert (same.attribute_count, same.attributes[0].id) == (1, ours.CLUSTER_DIMENSION)
    assert tuple(same.attributes[0].value[:3]) == (10, 11, 12)


def test_a_context_is_current_for_a_while_and_the_one_before_is_restored():
    library = FakeLibrary(devices=2)
    driver = Driver(library)
    with driver.current(1):
        assert library.stack() == [1001]
        with driver.current(0):
            assert library.stack() == [1001, 1000]
        with pytest.raises(ZeroDivisionError), driver.current(0):
            raise ZeroDivisionError
        assert library.stack() == [1001]
    assert library.stack() == []


def test_a_refusal_says_what_it_is_about_and_the_driver_s_reason():
    driver = Driver(FakeLibrary())
    text = r"the driver could not give k 300000 bytes: CUDA_ERROR_INVALID_VALUE \(invalid argument\)"
    with pytest.raises(DriverError, match=text) as caught:
        driver.set_attribute("give k 300000 bytes", 7, ours.MAX_DYNAMIC_SHARED_BYTES, 300_000)
    assert caught.value.code == 1
