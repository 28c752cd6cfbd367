"""Compare the cost model (`normlab.kernels.cost`) with records of what was measured."""

from collections.abc import Iterable
from math import log
from typing import Any, NamedTuple

import numpy as np

from normlab.bench.contenders import OURS, RECOMPUTED
from normlab.host.checks import step_of
from normlab.kernels import Device, Plan, Problem
from normlab.kernels.cost import FITTED, Constants, predict

SAVED = {OURS: "input", RECOMPUTED: "output"}


class Timed(NamedTuple):
    """A plan that was timed: its row of the record, its operands, the GPU, and the µs that it took."""

    row: dict[str, Any]
    plan: Plan
    operands: Any
    device: Device
    us: float


def timed(record: dict[str, Any]) -> list[Timed]:
    """Return the plans of a record's rows as they are made today, with the times of the record.

    The plans of earlier kernels are left out, of which the model knows only the least time.
    """
    device = device_of(record)
    found = []
    for row in record["rows"]:
        for name, saved in SAVED.items():
            if row["contenders"].get(name, {}).get("status") == "ok":
                asked = {key: row[key] for key in ("direction", "norm", "n1", "n2", "dtype")}
                operands = Problem(**asked, saved=saved).described()
                plan = plan_of(operands, row["direction"], device)
                cost = predict(plan, operands, device)
                if cost is not None and cost.in_flight is not None:
                    found.append(Timed(row, plan, operands, device, row["contenders"][name]["median_us"]))
    return found


def device_of(record: dict[str, Any]) -> Device:
    """Return the GPU that a record was measured on."""
    return Device.named("h200" if "H200" in record["gpu"] else "h100")


def plan_of(operands: Any, direction: str, device: Device) -> Plan:
    """Return the best step's plan."""
    step: Any = step_of(direction, None)
    return step.plan(operands, device)


def errors(some: Iterable[Timed], constants: Constants = FITTED) -> list[float]:
    """Return |log(predicted / measured)| of each, which is 0.1 where one is 1.1 times the other."""
    costs = ((one, predict(one.plan, one.operands, one.device, constants=constants)) for one in some)
    return [abs(log(cost.microseconds / one.us)) for one, cost in costs if cost is not None]


def median_and_tail(found: list[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile of errors."""
    middle, tail = np.percentile(found, [50, 90])
    return float(middle), float(tail)
