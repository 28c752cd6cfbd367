"""The verdict on a layer: do the two paths differ, why, and is anything beyond its bound?

Called by `normlab.compare`, on the numbers that `normlab.compare.passes` measured.
"""

from dataclasses import dataclass

import numpy as np

from normlab.compare.measure import Error
from normlab.compare.passes import Backward
from normlab.compare.traffic import Layer

AS_GOOD = 2.0  # recomputing is "as good" up to this factor of the saved input's error


@dataclass(frozen=True)
class Verdict:
    """`kind`: "as_good", "worse", "not_finite" or "bound_exceeded"; `sentence` says it in words and numbers."""

    kind: str
    sentence: str


def reason(layer: Layer, at_risk: np.ndarray, dtype: str) -> str:
    """Why recomputing from this layer's output may be worse, by its channels at risk. at_risk: (n2,), bool."""
    gamma = np.abs(layer.weight.astype(np.float64))
    bias = np.zeros_like(gamma) if layer.bias is None else np.abs(layer.bias.astype(np.float64))
    clamped = at_risk & (gamma < layer.eps)  # the kernel divides by eps instead
    drowned = at_risk & ~clamped & (gamma < bias)  # what the output holds beside the bias is mostly rounding
    small = clamped | drowned
    why = []
    if small.any():
        largest = gamma[small].max()
        details = [f"|gamma| up to {scientific(largest)}" if largest else "gamma = 0"]
        details += [f"{clamped.sum()} below eps"] * bool(largest and clamped.any())
        details += [f"{drowned.sum()} below the bias"] * bool(drowned.any())
        larger = gamma[gamma > largest]
        following = f"; the next is {scientific(larger.min())}" if larger.size else ""
        why.append(
            f"{small.sum()} of {gamma.size} weights are too small to divide by ({', '.join(details)}{following})"
        )
    if (at_risk & ~small).any():
        why.append(f"{dtype} rounds the output of {(at_risk & ~small).sum()} of {gamma.size} channels too coarsely")
    return ", and ".join(why) or f"no single weight is to blame, but the output's rounding to {dtype}"


def judge(output: Error, saved: Backward, recomputed: Backward, roundoff: float, reason: str) -> Verdict:
    """Weigh the two paths against each other, and everything against its bound.

    Args:
        output: the forward's error.
        saved, recomputed: the two backwards'.
        roundoff: unit roundoff of the dtype; errors below it are not told apart.
        reason: why recomputing may be worse, to be quoted if it is.
    """
    weighed = _not_finite(saved, recomputed) or _weigh(saved, recomputed, roundoff, reason)
    broken = [
        f"{name} ({path}) is off by {error.bound_ratio:.3g} times its bound"
        for path, errors in (
            ("forward", {"output": output}),
            ("saved input", saved.gradients),
            ("recomputed", recomputed.gradients),
        )
        for name, error in errors.items()
        if not error.bound_ratio <= 1
    ]
    if broken:
        return Verdict(
            "bound_exceeded",
            f"BOUND EXCEEDED: {'; '.join(broken)}. A kernel or a bound is wrong. Besides, {weighed.sentence}",
        )
    return weighed


def _not_finite(saved: Backward, recomputed: Backward) -> Verdict | None:
    found = [
        f"{path} gives NaN or infinity in {error.not_finite:,} of {error.size:,} values of {name}"
        for path, backward in (("recomputing", recomputed), ("saving the input", saved))
        for name, error in backward.gradients.items()
        if error.not_finite
    ]
    return Verdict("not_finite", "; ".join(found)) if found else None


def _weigh(saved: Backward, recomputed: Backward, roundoff: float, reason: str) -> Verdict:
    factors = {name: _factor(recomputed.gradients[name], error, roundoff) for name, error in saved.gradients.items()}
    worst = max(factors, key=lambda name: factors[name])
    if factors[worst] <= AS_GOOD:
        return Verdict("as_good", "recomputing is as good as saving")
    here, there = recomputed.gradients[worst], saved.gradients[worst]
    if np.isinf(here.relative):
        here_off, there_off = scientific(here.largest), scientific(there.largest)
        return Verdict(
            "worse", f"where 0 is right, recomputing gives {here_off} in {worst}, saving {there_off}: {reason}"
        )
    here_off, there_off = scientific(here.relative), scientific(there.relative)
    return Verdict("worse", f"recomputing is off by {here_off} in {worst}, saving by {there_off}: {reason}")


def _factor(recomputed: Error, saved: Error, roundoff: float) -> float:
    """How many times worse; by the largest error where the truth is 0 and both are wrong."""
    if np.isinf(saved.relative):
        return recomputed.largest / saved.largest
    return recomputed.relative / max(saved.relative, roundoff)


def scientific(value: float) -> str:
    """Two digits and an exponent, short.

    >>> scientific(0.02497), scientific(1), scientific(0), scientific(float("nan"))
    ('2.5e-2', '1.0', '0', 'NaN')
    """
    if np.isnan(value):
        return "NaN"
    if value == 0 or np.isinf(value):
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}" if int(exponent) else digits
