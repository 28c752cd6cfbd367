"""A library with the calls of libcuda that the engine makes, on a machine without a GPU.

Its device memory is the host's, and its "machine code" the name of a kernel, which a launch simulates on the arrays
that the packed arguments describe: so what a kernel would see on a GPU is what it sees here.
"""

# ruff: noqa: N802 - libcuda's names

import ctypes
import threading
from math import prod

import numpy as np

from normlab.engine.compile import cubins
from normlab.engine.compile.lengths import lengths_of
from normlab.engine.launching.driver import CLUSTER_DIMENSION, COMPUTE_CAPABILITY, MULTIPROCESSORS, Driver
from normlab.sim import simulate

INVALID_VALUE, INVALID_CONTEXT = 1, 201


class FakeLibrary:
    """Records every call in `calls`; `devices` GPUs, of compute capability `capability`."""

    def __init__(self, devices=1, capability=(9, 0)):
        self.devices, self.capability = devices, capability
        self.calls = []
        self.kernels = {}  # handle -> (kernel, the kinds of its arguments, the names of their lengths)
        self.local = threading.local()
        self.run = self.simulate
        self.before_reading = lambda: None  # called by every launch that is not refused, before it reads the arguments
        self.mode = 0

    # ---- the driver's calls -------------------------------------------------------------------------------------

    def cuInit(self, flags):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = self.devices
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        known = dict(zip(COMPUTE_CAPABILITY, self.capability, strict=True)) | {MULTIPROCESSORS: 132}
        value._obj.value = known[attribute]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1000 + device
        return 0

    def stack(self):
        if not hasattr(self.local, "contexts"):
            self.local.contexts = []
        return self.local.contexts

    def cuCtxGetCurrent(self, context):
        context._obj.value = self.stack()[-1] if self.stack() else None
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.stack().append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        context._obj.value = self.stack().pop()
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuModuleLoadData(self, module, image):
        self.calls.append(("load", self.stack()[-1], self.mode))
        module._obj.value = int(image)
        return 0

    def cuModuleGetFunction(self, function, module, name):
        function._obj.value = module.value + 100 * (self.stack()[-1] - 1000)
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append(("attribute", attribute, value))
        return INVALID_VALUE if value > 227 * 1024 else 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, blocks, function, threads, shared_bytes):
        blocks._obj.value = 1
        return 0

    def cuOccupancyMaxActiveClusters(self, clusters, function, config):
        clusters._obj.value = 132 // cluster_of(config._obj)
        return 0

    def cuGetErrorName(self, code, text):
        text._obj.value = {1: b"CUDA_ERROR_INVALID_VALUE", 201: b"CUDA_ERROR_INVALID_CONTEXT"}[code]
        return 0

    def cuGetErrorString(self, code, text):
        text._obj.value = b"invalid argument"
        return 0

    def cuPointerGetAttribute(self, value, attribute, pointer):
        value._obj.value = 0
        return 0

    def cuMemsetD8Async(self, pointer, byte, size, stream):
        if not self.stack():
            return INVALID_CONTEXT
        self.calls.append(("memset", pointer.value, size.value, stream.value))
        ctypes.memset(pointer.value, byte.value, size.value)
        return 0

    def cuLaunchKernelEx(self, config, function, addresses, extra):
        config = config._obj
        if not self.stack() or self.stack()[-1] != 1000 + function.value // 100:
            return INVALID_CONTEXT
        if prod(config.block) > 1024:
            return INVALID_VALUE
        cluster = cluster_of(config)
        self.calls.append(
            ("launch", tuple(config.grid), tuple(config.block), config.shared_bytes, config.stream, cluster)
        )
        kernel, kinds, lengths = self.kernels[function.value % 100]
        self.before_reading()
        self.run(kernel, config, arguments(kinds, lengths, addresses))
        return 0

    @staticmethod
    def simulate(kernel, config, args):
        cluster = cluster_of(config)
        simulate(kernel, cluster=cluster)[tuple(config.grid), tuple(config.block), 0, config.shared_bytes](*args)


def cluster_of(config):
    """Blocks of a cluster, as a launch's attributes say."""
    attributes = {one.id: one.value[0] for one in config.attributes[: config.attribute_count]}
    return attributes.get(CLUSTER_DIMENSION, 1)


def arguments(kinds, lengths, addresses):
    """The arguments that a launch's parameters are: arrays on the memory that they point to, scalars, None."""
    values, parameters, seen = [], iter(addresses), {}

    def number():
        return ctypes.c_int64.from_address(next(parameters)).value

    for kind, names in zip(kinds, lengths, strict=True):
        if isinstance(kind, tuple):
            dtype, dimensions, layout = kind
            pointer = number()
            shape = [seen[name] if name in seen else number() for name in names]
            seen |= {name: length for name, length in zip(names, shape, strict=True) if name is not None}
            steps = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(dimensions)]
            strides = steps if layout == "C" else [number() for _ in range(dimensions)]
            last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            memory = (ctypes.c_char * (last + dtype.itemsize)).from_address(pointer)
            values.append(np.ndarray(shape, dtype, memory, strides=strides))
        elif kind is None:
            values.append(None)
        else:
            values.append(
                np.ctypeslib.as_array((ctypes.c_char * kind.itemsize).from_address(next(parameters))).view(kind)[0]
            )
    assert not list(parameters)
    return values


def fake_driver(monkeypatch, **options):
    """Put a driver on a new FakeLibrary in the engine's place, with a "compiler" for it; returns the library."""
    from normlab.engine.launching import arrays, functions, launch

    library = FakeLibrary(**options)
    compiled = []

    def compile_nothing(kernel, kinds, cc):
        compiled.append((kernel.py_func.__name__, cc))
        number = len(library.kernels) + 1
        library.kernels[number] = kernel, kinds, lengths_of(kernel, kinds)
        return "entry", str(number).encode()

    driver = Driver(library)
    library.compiled = compiled
    for module in (arrays, launch):
        monkeypatch.setattr(module, "driver", lambda: driver)
    monkeypatch.setattr(cubins, "cubin", compile_nothing)
    monkeypatch.setattr(functions, "_functions", {})
    return library
