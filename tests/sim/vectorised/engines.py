"""Compare what both engines make of a launch: memory, errors and traces."""

import numpy as np

from normlab.sim import SimulationError, simulate, trace
from normlab.sim.machine.scheduler import TURN

VECTORISED = "the vectorised engine ran"


def outcomes(kernel, configuration, *arguments, **options):
    """Return for each engine what it says of a launch, or the error, and the bits of the arrays afterwards."""
    found = []
    for which in ("auto", "scheduler"):
        given = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
        try:
            said = simulate(kernel, engine=which, explain=True, **options)[configuration](*given)
        except Exception as error:
            said = type(error), str(error), tuple(getattr(error, "__notes__", ()))
        found.append((said, [bits_of(one) for one in given if isinstance(one, np.ndarray)]))
    return found


def bits_of(array):
    """Return an array's bytes; of a NaN, no operation tells the sign or the payload, and NumPy does not keep them."""
    if array.dtype.names:
        return b"".join(bits_of(array[name]) for name in array.dtype.names)
    parts = np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array
    return (np.where(np.isnan(parts), parts.dtype.type(np.nan), parts) if parts.dtype.kind == "f" else parts).tobytes()


def agree(kernel, configuration, *arguments, **options):
    """Assert that both engines do the same; return what the first says of itself, or the error."""
    (said, first), (other, second) = outcomes(kernel, configuration, *arguments, **options)
    assert first == second
    assert isinstance(said, str) or said == other
    return said


def told(counted):
    """Return all that a trace holds, as data that compare equal if the traces show the same."""
    heat = [(one.name, one.space, one.shape, one.counted(False).tolist(), one.counted(True).tolist())
            for one in counted.heat]  # fmt: skip
    kept, flows = counted._kept.items(), counted.flows
    atomics = [memory.requests for (_, operation), memory in counted.counts.memory.items() if operation == "atom"]
    if sum(atomics) < TURN:
        requests, moves = [(key, one.first, one.worst, one.all) for key, one in kept], flows.flows
    else:  # the scheduler's threads may give way after so many atomics: the same requests, in another order
        requests = sorted((str(key), sorted(map(by_lane, one.all or ()))) for key, one in kept)
        moves = sorted(flows.flows, key=str)
    return counted.as_dict(), heat, requests, flows.threads, moves, flows.barriers


def by_lane(request):
    """Return a request's block, warp, and lanes with addresses, in the order of the lanes."""
    return request.block, request.warp, sorted(zip(request.lanes, request.addresses, strict=True))


def traced(kernel, configuration, arguments, engine, keep=(), **options):
    """Return what a trace by an engine holds, and the arrays' bytes after it; or the error."""
    given = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    try:
        found = told(trace(kernel, keep=keep, engine=engine, **options)[configuration](*given))
    except Exception as error:
        return type(error), str(error)
    return found, [one.tobytes() for one in given if isinstance(one, np.ndarray)]


def lines_of(kernel):
    """Return the numbers of a kernel's lines."""
    code = getattr(kernel, "py_func", kernel).__code__
    return range(code.co_firstlineno, max(line or 0 for *_, line in code.co_lines()) + 1)


def compared(kernel, configuration, *arguments, keep=None, **options):
    """Assert that both engines make the same trace of a launch; return what it says if it gives up."""
    keep = lines_of(kernel) if keep is None else keep
    one = traced(kernel, configuration, arguments, "vectorised", keep, **options)
    if one[0] is SimulationError and "the vectorised engine gives up" in one[1]:
        return one[1]
    other = traced(kernel, configuration, arguments, "scheduler", keep, **options)
    names = "metrics", "heat", "requests", "threads of flows", "flows", "barriers of flows"
    if not isinstance(one[0], tuple) or not isinstance(other[0], tuple):
        assert one == other
    for name, mine, theirs in zip(names, one[0], other[0], strict=True):
        assert mine == theirs, name
    return VECTORISED
