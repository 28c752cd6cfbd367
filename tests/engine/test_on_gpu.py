"""Launching on a real GPU: graphs, streams, threads, several GPUs, errors, warm starts, the host's time."""

import ctypes
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from normlab import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from normlab.engine import (
    cuda,
    device_empty,
    device_of,
    float32,
    gpu_available,
    launch,
    multiprocessors,
    occupancy,
    resources,
    to_device,
    to_host,
)
from normlab.engine.compile.signatures import kinds_of_types
from normlab.engine.launching.driver import driver
from normlab.engine.launching.functions import function
from normlab.kernels import LADDERS

pytestmark = pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
COLUMNS = 1000
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def draw(*shape, dtype=torch.float32, device="cuda"):
    return torch.randn(*shape, device=device).to(dtype)


def assert_equal(results, others):
    for one, other in zip(results, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


# ---- CUDA graphs ----


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_graph_replays_what_was_captured_on_what_is_in_its_inputs(direction):
    for step in [step.name for step in LADDERS[direction]]:
        x, grad, weight, bias = draw(7, COLUMNS), draw(7, COLUMNS), draw(COLUMNS), draw(COLUMNS)
        _, mean, invvar = layer_norm_forward(x, COLUMNS)

        def call(x=x, grad=grad, weight=weight, bias=bias, mean=mean, invvar=invvar, step=step):
            if direction == "forward":
                return *layer_norm_forward(x, COLUMNS, weight, bias, step=step), *rms_norm_forward(
                    x, COLUMNS, weight, step=step
                )
            return *layer_norm_backward(grad, x, mean, invvar, COLUMNS, weight, bias, step=step), *rms_norm_backward(
                grad, x, invvar, COLUMNS, weight, step=step
            )

        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = call()
        for _ in range(3):
            for tensor in (x, grad, weight, bias):
                tensor.copy_(torch.randn_like(tensor))
            graph.replay()
            if "atomics" in step:  # whose sums depend on the order of the blocks
                for one, other in zip(results, call(), strict=True):
                    torch.testing.assert_close(one, other)
            else:
                assert_equal(results, call())


FIRST_CALL_IN_A_GRAPH = """
import torch
from normlab import layer_norm_backward, layer_norm_forward
x, grad, weight = (torch.randn(*shape, device="cuda") for shape in ((7, 1000), (7, 1000), (1000,)))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output, mean, invvar = layer_norm_forward(x, 1000, weight)
    gradients = layer_norm_backward(grad, x, mean, invvar, 1000, weight)
x.normal_()
graph.replay()
want = layer_norm_forward(x, 1000, weight)
torch.testing.assert_close((output, mean, invvar), want)
torch.testing.assert_close(gradients[:2], layer_norm_backward(grad, x, *want[1:], 1000, weight)[:2])
torch.testing.assert_close(output, torch.nn.functional.layer_norm(x, (1000,), weight), rtol=1e-4, atol=1e-4)
print("right")
"""


def in_a_new_process(code, folder, *arguments):
    environment = os.environ | {"NORMLAB_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_first_call_of_a_process_may_be_in_a_capture(tmp_path):
    for _ in ("cold", "warm"):
        assert in_a_new_process(FIRST_CALL_IN_A_GRAPH, tmp_path) == ["right"]


# ---- warm starts ----

FIRST_CALLS = """
import sys
import torch
from normlab import layer_norm_backward, layer_norm_forward
from normlab.engine.compile import offline
if sys.argv[1] == "warm":
    offline.compile_cubin = None
x, grad, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((7, 1000), (7, 1000), (1000,), (1000,)))
output, mean, invvar = layer_norm_forward(x, 1000, weight, bias)
layer_norm_backward(grad, x, mean, invvar, 1000, weight, bias)
torch.cuda.synchronize()
print("done")
"""


def test_a_warm_start_compiles_nothing(tmp_path):
    assert in_a_new_process(FIRST_CALLS, tmp_path, "cold") == ["done"]
    assert list(Path(tmp_path).glob("*.cubin"))
    assert in_a_new_process(FIRST_CALLS, tmp_path, "warm") == ["done"]


# ---- streams, threads, GPUs ----


def test_replays_are_queued_on_the_current_stream():
    x, weight, bias = draw(2000, 4096), draw(4096), draw(4096)
    layer_norm_forward(x, 4096, weight, bias)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    inputs, outputs = [], []
    for number, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            own = x.clone()
            torch.cuda._sleep(20_000_000)
            own.mul_(number + 1).add_(number)  # the norm must come after this
            outputs.append(layer_norm_forward(own, 4096, weight, bias)[0])
            outputs[-1].mul_(2)  # and before this
            inputs.append(own)
    torch.cuda.synchronize()
    for own, output in zip(inputs, outputs, strict=True):
        assert_equal([output], [2 * layer_norm_forward(own, 4096, weight, bias)[0]])


def test_threads_do_not_mix_their_tensors():
    def work(seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(300):
                x = torch.randn(8, 512, device="cuda", generator=generator)
                output, mean, invvar = layer_norm_forward(x, 512)
                grad_input = layer_norm_backward(x, x, mean, invvar, 512)[0]
                want = torch.nn.functional.layer_norm(x, (512,))
                assert torch.allclose(output, want, atol=1e-4)
                assert torch.allclose(mean, x.mean(1), atol=1e-5)
                assert grad_input.isfinite().all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


def test_a_thread_s_first_act_on_the_gpu_may_be_a_launch():
    x, y = to_device(np.arange(8.0)), device_empty((8,), np.float64)
    errors = []

    def work():
        try:
            launch(double, 1, 8, x, y)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    np.testing.assert_array_equal(to_host(y), 2 * np.arange(8.0))


@TWO_GPUS
def test_each_gpu_computes_what_lies_on_it_whichever_is_current():
    for _ in range(3):
        for index in (1, 0):
            for current in (0, 1):
                x, weight = draw(9, COLUMNS, device=f"cuda:{index}"), draw(COLUMNS, device=f"cuda:{index}")
                with torch.cuda.device(current):
                    output, mean, invvar = layer_norm_forward(x, COLUMNS, weight)
                    gradients = layer_norm_backward(x, x, mean, invvar, COLUMNS, weight)
                    assert torch.cuda.current_device() == current
                    assert draw(3).device.index == current
                assert {tensor.device.index for tensor in (output, mean, invvar, *gradients[:2])} == {index}
                want = torch.nn.functional.layer_norm(x, (COLUMNS,), weight)
                torch.testing.assert_close(output, want, rtol=1e-4, atol=1e-4)


@TWO_GPUS
def test_tensors_on_two_gpus_are_refused():
    with pytest.raises(
        ValueError, match="all arrays must be on one device, but x is on cuda:0 and weight is on cuda:1"
    ):
        layer_norm_forward(draw(2, 8), 8, draw(8, device="cuda:1"))


# ---- configurations ----


@pytest.mark.parametrize(
    ("block", "options", "text"),
    [
        (2048, {}, r"could not launch double\[1, 2048\], shared_bytes=0, cluster=1: CUDA_ERROR_INVALID_VALUE \(\w+"),
        (
            32,
            {"shared_bytes": 300_000},
            r"double 300000 bytes of dynamic shared memory a block: CUDA_ERROR_INVALID_VALUE",
        ),
    ],
)
def test_what_the_driver_refuses_names_kernel_and_configuration(block, options, text):
    x = to_device(np.zeros(4))
    with pytest.raises(RuntimeError, match=text):
        launch(double, 1, block, x, x, **options)
    launch(double, 1, 32, x, x)  # the refusal leaves nothing behind


@cuda.jit
def sum_of_many(x, y):
    buffer = cuda.shared.array(64, float32)
    buffer[cuda.threadIdx.x % 64] = x[cuda.grid(1)]
    cuda.syncthreads()
    total = float32(0)
    for j in range(64):
        total += buffer[j] * x[j + 64 * cuda.threadIdx.x]
    y[cuda.grid(1)] = total


def test_resources_and_occupancy_are_the_driver_s():
    cc = driver().compute_capability(0)
    types = ((np.float32, 1), (np.float32, 1))
    found = resources(sum_of_many, types, cc)
    handle = ctypes.c_void_p(function(driver(), sum_of_many, kinds_of_types(types), 0).handle)
    number = ctypes.c_int()

    def told(call, *args):
        with driver().current(0):
            assert call(ctypes.byref(number), *args) == 0
        return number.value

    library = driver().library
    for value, attribute in ((found.registers, 4), (found.shared_bytes, 1), (found.local_bytes, 3)):
        assert value == told(library.cuFuncGetAttribute, attribute, handle)
    for threads in (32, 96, 256, 640, 1024):
        for dynamic in (0, 5000, 40_000):
            call = library.cuOccupancyMaxActiveBlocksPerMultiprocessor
            blocks = told(call, handle, threads, ctypes.c_size_t(dynamic))
            assert occupancy(found.registers, found.shared_bytes + dynamic, threads, cc).blocks == blocks


def test_the_gpu_s_multiprocessors_and_an_address_s_gpu_are_torch_s():
    x = draw(4)
    view = device_empty((4,), np.float32)
    assert multiprocessors(view) == torch.cuda.get_device_properties(0).multi_processor_count
    assert device_of(view.pointer) == device_of(x.data_ptr()) == 0
    with pytest.raises(ValueError, match="the driver could not tell whose the address 0x10 is: CUDA_ERROR_INVALID"):
        device_of(16)
