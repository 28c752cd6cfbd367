"""Judge a layer's three backwards: from the saved input, recomputed from the output, and exact.

The verdict says whether recomputing is worse than saving the input, and why; how far the exact path is off, and how
many bytes more it keeps; and whether an error exceeds its bound. `normlab.studies.compare` calls this file on the
errors that `normlab.studies.compare.passes` measured. An error is relative to the truth's norm (`measure.Error`).
"""

from dataclasses import dataclass

import numpy as np

from normlab.measure.numbers import scientific, size
from normlab.studies.compare.measure import Error
from normlab.studies.compare.passes import Backward
from normlab.studies.compare.traffic import Layer

AS_GOOD = 2.0  # recomputing is "as good" if its error is at most this factor times the saved input's error


@dataclass(frozen=True)
class Verdict:
    """A verdict: `kind` is "as_good", "worse", "not_finite" or "bound_exceeded", and `sentence` says it in words."""

    kind: str
    sentence: str


def reason(layer: Layer, at_risk: np.ndarray, dtype: str) -> str:
    """Return why recomputing from this layer's output may be worse.

    Recomputing divides (output - bias) by gamma, the weight. A small gamma enlarges the output's rounding error.

    Args:
        at_risk: (n2,), bool: the channels for which recomputing has a much larger error bound than saving the input.
        dtype: of the output.
    """
    gamma = np.abs(layer.weight.astype(np.float64))
    bias = np.zeros_like(gamma) if layer.bias is None else np.abs(layer.bias.astype(np.float64))
    clamped = at_risk & (gamma < layer.eps)  # the kernel divides by eps instead
    drowned = at_risk & ~clamped & (gamma < bias)  # output - bias is then mostly the output's rounding error
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


def judge(
    output: Error, saved: Backward, recomputed: Backward, exact: Backward, roundoff: float, reason: str
) -> Verdict:
    """Return the verdict on a layer: recomputing compared with saving, and every error compared with its bound.

    An error above its bound decides the verdict; else a value that is not finite; else the ratio of the two errors.

    Args:
        output: the forward's error.
        saved, recomputed, exact: the three backwards.
        roundoff: unit roundoff of the dtype. A saved input's error below it counts as this much.
        reason: why recomputing may be worse; the verdict quotes it if recomputing is worse.
    """
    weighed = _not_finite(saved, recomputed, exact) or _weigh(saved, recomputed, exact, roundoff, reason)
    broken = [
        f"{name} ({path}) is off by {error.bound_ratio:.3g} times its bound"
        for path, errors in (
            ("forward", {"output": output}),
            ("saved input", saved.gradients),
            ("recomputed", recomputed.gradients),
            ("exact", exact.gradients),
        )
        for name, error in errors.items()
        if not error.bound_ratio <= 1  # "not <=", so that a NaN counts as exceeded
    ]
    if broken:
        return Verdict(
            "bound_exceeded",
            f"BOUND EXCEEDED: {'; '.join(broken)}. A kernel or a bound is wrong. Besides, {weighed.sentence}",
        )
    return weighed


def short(verdict: Verdict, saved: Backward, recomputed: Backward, exact: Backward, roundoff: float) -> str:
    """Return the verdict in half a line: how much less accurate recomputing is, and what the exact path costs.

    Arguments as `judge`; an exceeded bound keeps its whole sentence, because nothing else matters then.
    """
    if verdict.kind == "bound_exceeded":
        return verdict.sentence
    if verdict.kind == "as_good":
        return f"recomputing is as accurate as saving, and keeps {size(saved.bytes_kept - recomputed.bytes_kept)} less"
    if verdict.kind == "not_finite":
        return f"recomputing gives NaN or infinity; exact {_price(exact, recomputed)}"
    worst = max(_factor(recomputed.gradients[name], error, roundoff) for name, error in saved.gradients.items())
    return f"recomputing is {_times(worst)} less accurate; exact {_price(exact, recomputed)}"


def _times(factor: float) -> str:
    """Return a factor in two digits.

    >>> _times(147_058.8), _times(2.345), _times(1.7e37), _times(float("inf"))
    ('150,000 times', '2.3 times', '1.7e37 times', 'infinitely')
    """
    if np.isinf(factor):
        return "infinitely"
    if factor >= 1e15:  # more digits than a float64 holds
        return f"{scientific(factor)} times"
    return f"{float(f'{factor:.2g}'):,.{0 if factor >= 10 else 1}f} times"


def _not_finite(saved: Backward, recomputed: Backward, exact: Backward) -> Verdict | None:
    """Return the verdict "not_finite" if a gradient has a NaN or infinity where the truth is a number, else None."""
    found = [
        f"{path} gives NaN or infinity in {error.not_finite:,} of {error.size:,} values of {name}"
        for path, backward in (("recomputing", recomputed), ("saving the input", saved), ("exact", exact))
        for name, error in backward.gradients.items()
        if error.not_finite
    ]
    lost = [name for name, error in recomputed.gradients.items() if error.not_finite]
    if lost and not exact.gradients[lost[0]].not_finite:
        off = scientific(exact.gradients[lost[0]].relative)
        found.append(f"exact is off by {off} in {lost[0]} and {_price(exact, recomputed)}")
    return Verdict("not_finite", "; ".join(found)) if found else None


def _weigh(saved: Backward, recomputed: Backward, exact: Backward, roundoff: float, reason: str) -> Verdict:
    """Return "as_good" or "worse", by the gradient for which recomputing is worst compared with saving."""
    factors = {name: _factor(recomputed.gradients[name], error, roundoff) for name, error in saved.gradients.items()}
    worst = max(factors, key=lambda name: factors[name])
    if factors[worst] <= AS_GOOD:
        return Verdict("as_good", "recomputing is as good as saving")
    errors = [backward.gradients[worst] for backward in (recomputed, saved, exact)]
    if np.isinf(errors[0].relative):  # the truth is 0 everywhere, so only absolute errors say anything
        here, there, instead = (scientific(error.largest) for error in errors)
        found = (
            f"where 0 is right, recomputing gives {here} in {worst}, saving {there}: {reason}; exact gives {instead}"
        )
    else:
        here, there, instead = (scientific(error.relative) for error in errors)
        found = f"recomputing is off by {here} in {worst}, saving by {there}: {reason}; exact is off by {instead}"
    return Verdict("worse", f"{found} and {_price(exact, recomputed)}")


def _price(exact: Backward, recomputed: Backward) -> str:
    """Return how many bytes more the exact path keeps than recomputing, as the end of a sentence."""
    return f"keeps {size(exact.bytes_kept - recomputed.bytes_kept)} more"


def _factor(recomputed: Error, saved: Error, roundoff: float) -> float:
    """Return how many times as large as the saved input's error the recomputed error is.

    The saved input's relative error is infinite if the truth is 0 everywhere. Compare the largest errors then.
    """
    if np.isinf(saved.relative):
        return recomputed.largest / saved.largest
    return recomputed.relative / max(saved.relative, roundoff)
