"""Replace `cuda.jit`, in all its forms, with a decorator that makes simulated kernels."""

import warnings
from inspect import signature
from types import FunctionType
from typing import Any

from normlab.run.kernel import Kernel
from normlab.run.launcher import Launcher
from normlab.run.numba_host import OPTIONS, InvalidConfigWarning, config
from normlab.run.signatures import Signature, casts, closest, signatures_of
from normlab.sim import register_twin

DEBUG_AND_OPT = (  # Numba's words
    "debug=True with opt=True is not supported by CUDA. This may result in a crash - set debug=False or opt=False."
)


def jit(launcher: Launcher, func_or_sig: Any = None, device: bool = False, **options: Any) -> Any:
    """Return a kernel or a decorator, as `cuda.jit` does; options that only concern a compiler change nothing.

    Raises:
        NotImplementedError: for `link` and `boundscheck`.
        KeyError: Numba does not have the option.
        ValueError: `launch_bounds` has more than three numbers, or there is no such `shared_memory_carveout`.
    """
    if unknown := options.keys() - OPTIONS:
        raise KeyError(f"Unrecognized options: {unknown}. Known options are {sorted(OPTIONS)}")
    for option in ("link", "boundscheck"):
        if options.get(option):
            raise NotImplementedError(f"cuda.jit({option}=…): normlab run interprets kernels and cannot do that")
    debug, opt = options.get("debug"), options.get("opt")
    if (config.CUDA_DEBUGINFO_DEFAULT if debug is None else debug) and (config.OPT != 0 if opt is None else opt):
        warnings.warn(InvalidConfigWarning(DEBUG_AND_OPT), stacklevel=2)
    bounds, carveout = options.get("launch_bounds"), options.get("shared_memory_carveout")
    if isinstance(bounds, tuple) and len(bounds) > 3:
        raise ValueError(f"Got {len(bounds)} launch bounds: there are threads, blocks and blocks per cluster")
    if isinstance(carveout, str) and carveout.lower() not in ("default", "maxl1", "maxshared"):
        raise ValueError(f"Invalid carveout value: {carveout}: it is 'default', 'MaxL1', 'MaxShared' or a percentage")
    if isinstance(carveout, int) and not -1 <= carveout <= 100:
        raise ValueError(f"shared_memory_carveout is {carveout}, and must be between -1 and 100")
    if isinstance(options.get("inline"), bool):  # deprecated, and Numba takes it as these words
        options["inline"] = "always" if options["inline"] else "never"
    options["device"] = device
    signatures = signatures_of(func_or_sig)
    if func_or_sig is None or signatures is not None:
        return lambda function: _decorated(function, launcher, options, signatures or [])
    return _decorated(func_or_sig, launcher, options, [])


def _decorated(function: Any, launcher: Launcher, options: dict[str, Any], signatures: list[Signature]) -> Kernel:
    """Return the kernel of a decorated function. Raise TypeError if it is not a Python function."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType):
        raise TypeError(f"cuda.jit decorates a Python function, not a {type(function).__name__}")
    kernel = Kernel(function, launcher, options, signatures)
    if options["device"] and signatures:
        kernel.called = _converting(kernel, signatures)
        register_twin(kernel, kernel.called)
    return kernel


def _converting(kernel: Kernel, signatures: list[Signature]) -> Kernel:
    """Return a device function that calls `kernel` with arguments and result in the types of the best signature."""
    function: Any = Kernel(kernel.py_func, kernel.launcher, kernel.targetoptions, [])
    declared = list(map(casts, signatures))
    parameters = signature(kernel.py_func)

    def converted(*arguments, **named):
        if named:  # the casts are listed by position
            arguments = parameters.bind(*arguments, **named).args
        argument_casts, result_cast = declared[closest(signatures, arguments) if len(declared) > 1 else 0]
        pairs = zip(argument_casts, arguments, strict=True)
        result = function(*[value if cast is None else cast(value) for cast, value in pairs])
        return result if result_cast is None else result_cast(result)

    return Kernel(converted, kernel.launcher, kernel.targetoptions, [])
