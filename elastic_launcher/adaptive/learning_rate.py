"""Rules that adapt learning rates to a global batch other than the base batch.

A rule returns the factor by which the learning rate of a parameter group is multiplied for one optimizer step. For the
base batch the factors are exactly 1, but for LEGW's, which has the warm-up of the base batch in it.

| Rule | Factor | Source |
|---|---|---|
| `adascale` | the gain r | Johnson et al., AdaScale SGD, 2020, §3 |
| `adam` | √r | AdaScale's gain under the square root that Adam's normalized updates ask for |
| `linear` | S | Goyal et al., Accurate, Large Minibatch SGD, 2017, §2.1 |
| `sqrt` | √S | Krizhevsky, One weird trick, 2014, §5 |
| `legw:EPOCHS` | √S, reached linearly in S·EPOCHS epochs | You et al., Large-Batch Training for LSTM, 2019, §3 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat, TypeAlias

Formula: TypeAlias = Callable[[float, float, float], SupportsFloat]
"""Maps the scale, the gain of a parameter group and the statistical epochs to a factor: see `Rule.factors`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with a name.

    Attributes:
        name: What errors call it.
        formula: Returns the factor.
    """

    name: str
    formula: Formula

    def factors(self, scale: float, gains: Sequence[float], epochs: float) -> tuple[float, ...]:
        """Returns the factors of a step's learning rates, one for each parameter group.

        Args:
            scale: The global batch over the base batch.
            gains: How many steps of the base batch the step is worth, for each parameter group.
            epochs: Statistical epochs at the end of the step, so that a warm-up does not begin with a factor of 0.

        Raises:
            ValueError: If the rule returns something other than a finite number above 0.
        """
        return tuple(self._factor(scale, gain, epochs) for gain in gains)

    def _factor(self, scale: float, gain: float, epochs: float) -> float:
        returned = self.formula(scale, gain, epochs)
        try:
            factor = float(returned)
        except (TypeError, ValueError):
            factor = math.nan
        if isinstance(returned, str | bytes | bool) or not (math.isfinite(factor) and factor > 0):
            raise ValueError(
                f"the learning-rate rule {self.name} returned {returned!r} for scale {scale:g}, gain {gain:g} and "
                f"{epochs:g} statistical epochs; it must return a finite number above 0"
            )
        return factor


def _adascale(scale: float, gain: float, epochs: float) -> float:
    return gain


def _adam(scale: float, gain: float, epochs: float) -> float:
    return math.sqrt(gain)


def _linear(scale: float, gain: float, epochs: float) -> float:
    return scale


def _sqrt(scale: float, gain: float, epochs: float) -> float:
    return math.sqrt(scale)


_FORMULAS: dict[str, Formula] = {"adascale": _adascale, "adam": _adam, "linear": _linear, "sqrt": _sqrt}


def legw(warmup_epochs: float) -> Rule:
    """Returns the rule LEGW (linear-epoch gradual warm-up), which replaces a warm-up of the script.

    Args:
        warmup_epochs: Epochs of the base batch's warm-up; 0 for none. They are counted as statistical epochs.

    Raises:
        ValueError: If it is not a finite number, 0 or more.
    """
    if not (math.isfinite(warmup_epochs) and warmup_epochs >= 0):
        raise ValueError(f"legw has {warmup_epochs!r} epochs of warm-up; it must be a finite number, 0 or more")

    def formula(scale: float, gain: float, epochs: float) -> float:
        warmup = warmup_epochs * scale
        return math.sqrt(scale) * (epochs / warmup if epochs < warmup else 1.0)

    return Rule(f"legw:{warmup_epochs:g}", formula)


def rule_of(rule: str | Rule | Formula | None, optimizer: str) -> Rule:
    """Returns the rule that a script or an option names.

    Args:
        rule: A name, a rule, a function of scale, gain and statistical epochs, or None for the optimizer's default:
            ``adam`` for optimizers of Adam's family, else ``adascale``.
        optimizer: The name of the optimizer's class.

    Raises:
        ValueError: If there is no such rule.
    """
    if rule is None:
        rule = "adam" if "adam" in optimizer.lower() else "adascale"
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        if not callable(rule):
            raise ValueError(f"the learning-rate rule {rule!r} is neither a name nor a function")
        return Rule(getattr(rule, "__name__", type(rule).__name__), rule)
    name, colon, epochs = rule.partition(":")
    if name == "legw":
        try:
            return legw(float(epochs))
        except ValueError:
            raise ValueError(f"the learning-rate rule {rule!r} needs the epochs of its warm-up: legw:5, for example")
    if colon or name not in _FORMULAS:
        raise ValueError(f"there is no learning-rate rule {rule!r}; there are {', '.join(_FORMULAS)} and legw:EPOCHS")
    return Rule(name, _FORMULAS[name])
