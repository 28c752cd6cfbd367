"""Let steps plan for another GPU than the one that they run on."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from normlab.kernels.plan import Device

SHARED_BYTES = {(8, 0): 163 * 1024, (9, 0): 227 * 1024}  # of a block, CUDA C++ Programming Guide


def of(capability: tuple[int, int], multiprocessors: int = 132) -> Device:
    """A GPU of a compute capability."""
    return Device(multiprocessors, capability, SHARED_BYTES.get(capability, 99 * 1024))


def _plans() -> Any:
    """The module of plans as it is now: tests of mutants import it afresh."""
    return import_module("normlab.kernels.plan")


def plan_for(monkeypatch, **facts: Any) -> None:
    """Let the GPU that computes on any array have these facts."""
    device = _plans().Device
    own = device.of
    monkeypatch.setattr(device, "of", staticmethod(lambda array: replace(own(array), **facts)))


def many_rows(monkeypatch) -> None:
    """Let the pipelined backward plan as for many rows: without blocks for the columns."""
    step = import_module("normlab.kernels.backward.step_3_pipelined")
    monkeypatch.setattr(step, "few", lambda *args: False)


def find_room_for(monkeypatch, number: int) -> None:
    """Let the GPU have room for so many clusters at a time, whatever the kernel."""
    monkeypatch.setattr(_plans(), "resident_clusters", lambda *args, **options: number)
