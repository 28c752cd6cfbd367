"""Numba's compiler, rid of work whose results nobody uses: a compilation takes a tenth less.

Tests compile hundreds of kernels and, with them, thousands of device functions. The code is the same: 85 links of
`test_plans` and `test_ptx`, with these patches and without, gave equal PTX and equal logs.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def quick_numba() -> Iterator[None]:
    """Does nothing where Numba's CUDA target has not been imported."""
    with pytest.MonkeyPatch.context() as patch:
        if "numba.cuda.core.targetconfig" in sys.modules:
            _options_by_name(patch)
            _lifetimes_when_asked_for(patch)
            _arrays_operators_for_arrays(patch)
            _requirements_of_passes_once(patch)
        yield


def _options_by_name(patch: pytest.MonkeyPatch) -> None:
    """`TargetConfig.values` gets each option through a property of its own."""
    from numba.cuda.core.targetconfig import TargetConfig

    defaults = functools.cache(lambda kind: {name: option.default for name, option in kind.options.items()})
    patch.setattr(TargetConfig, "values", lambda config: defaults(type(config)) | config._values)


def _lifetimes_when_asked_for(patch: pytest.MonkeyPatch) -> None:
    """After every pass, which variables live where: only generators read that, and the last pass finds it anew."""
    from numba.cuda.core import postproc, transforms

    every_time = postproc.PostProcessor.run

    def run(self, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        code = self.func_ir
        if code.is_generator:
            every_time(self, emit_dels, extend_lifetimes)
            return
        code.blocks = transforms.canonicalize_cfg(code.blocks)
        code.variable_lifetime = postproc.VariableLifetime(code.blocks)
        code.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    patch.setattr(postproc.PostProcessor, "run", run)


def _arrays_operators_for_arrays(patch: pytest.MonkeyPatch) -> None:
    """NumPy's rules for an operator are looked up for numbers, too, and then dropped: no operand is an array."""
    from numba.cuda import types
    from numba.cuda.typing.npydecl import NumpyRulesArrayOperator

    of_arrays = NumpyRulesArrayOperator.generic

    def generic(self, args, kws):
        bare = (arg.type if isinstance(arg, types.Optional) else arg for arg in args)
        return of_arrays(self, args, kws) if any(isinstance(arg, types.ArrayCompatible) for arg in bare) else None

    patch.setattr(NumpyRulesArrayOperator, "generic", generic)


def _requirements_of_passes_once(patch: pytest.MonkeyPatch) -> None:
    """Which pass needs which: found anew for every function, though all go through the same passes."""
    from numba.cuda.core.compiler_machinery import PassManager

    anew, found = PassManager.dependency_analysis, {}

    def dependency_analysis(self):
        passes = tuple(kind for kind, _ in self.passes)
        if passes not in found:
            found[passes] = anew(self)
        return found[passes]

    patch.setattr(PassManager, "dependency_analysis", dependency_analysis)
