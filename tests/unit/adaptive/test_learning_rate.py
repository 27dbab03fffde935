"""Learning-rate rules equal their published formulas, and what is no factor is refused by the rule's name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.goodput import gain
from elastic_launcher.adaptive.learning_rate import Rule, legw, rule_of

NAMES = ["adascale", "adam", "linear", "sqrt", "legw:0"]

# Johnson et al., AdaScale SGD, 2020, §3: r = (σ² + μ²) / (σ²/S + μ²), by hand for (σ², μ², S).
ADASCALE = [
    (0.0, 1.0, 8.0, 1.0),  # no noise: a larger batch gains nothing
    (1.0, 0.0, 8.0, 8.0),  # only noise: the rule is linear
    (1.0, 1.0, 2.0, 4 / 3),
    (1.0, 1.0, 4.0, 8 / 5),
    (3.0, 1.0, 4.0, 16 / 7),
    (8.0, 2.0, 16.0, 4.0),
]

# You et al., 2019, Table 2: ResNet-50 on ImageNet. Batch, logarithm to base 2 of the learning rate, epochs of warm-up.
LEGW = [
    (1024, 2.5, 0.3125),
    (2048, 3.0, 0.625),
    (4096, 3.5, 1.25),
    (8192, 4.0, 2.5),
    (16384, 4.5, 5.0),
    (32768, 5.0, 10.0),
]


def factor(rule: Any, scale: float, gained: float = 1.0, epochs: float = 100.0) -> float:
    (found,) = rule_of(rule, "SGD").factors(scale, [gained], epochs)
    return found


@pytest.mark.parametrize(("variance", "square", "scale", "ratio"), ADASCALE)
def test_adascale_is_the_gain_ratio(variance: float, square: float, scale: float, ratio: float) -> None:
    gained = gain(variance, square, scale)
    assert factor("adascale", scale, gained) == pytest.approx(ratio, rel=1e-15)
    assert factor("adam", scale, gained) == pytest.approx(math.sqrt(ratio), rel=1e-15)


@pytest.mark.parametrize(("scale", "linear", "root"), [(1, 1, 1), (4, 4, 2), (31.25, 31.25, 5.5901699437494745)])
def test_linear_and_square_root_scaling(scale: float, linear: float, root: float) -> None:
    assert factor("linear", scale) == linear
    assert factor("sqrt", scale) == root


@pytest.mark.parametrize(("batch_size", "log_rate", "warmup"), LEGW)
def test_legw_scales_rates_and_warm_ups_as_published(batch_size: int, log_rate: float, warmup: float) -> None:
    base, base_log_rate, base_warmup = LEGW[0]
    rule, scale, rate = legw(base_warmup), batch_size / base, 2.0**log_rate
    assert 2.0**base_log_rate * factor(rule, scale, epochs=warmup) == pytest.approx(rate, rel=1e-12)
    assert 2.0**base_log_rate * factor(rule, scale, epochs=90.0) == pytest.approx(rate, rel=1e-12)
    for part in (0.01, 0.5, 0.99):
        assert 2.0**base_log_rate * factor(rule, scale, epochs=part * warmup) == pytest.approx(part * rate, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_base_batch_has_exactly_its_own_learning_rate(name: str) -> None:
    assert rule_of(name, "SGD").factors(512 / 512, [gain(3.7, 0.2, 1.0)] * 3, 0.1) == (1.0, 1.0, 1.0)


def test_each_parameter_group_has_the_factor_of_its_own_gain() -> None:
    assert rule_of("adascale", "SGD").factors(4.0, [1.0, 2.0, 4.0], 1.0) == (1.0, 2.0, 4.0)
    assert rule_of("linear", "SGD").factors(4.0, [1.0, 2.0, 4.0], 1.0) == (4.0, 4.0, 4.0)


@given(st.floats(1.0, 1e4), st.floats(0.0, 1.0), st.floats(1e-3, 1e3))
def test_factors_are_between_that_of_the_base_batch_and_the_linear_rule(
    scale: float, part: float, epochs: float
) -> None:
    gained = scale**part
    for name in NAMES:
        assert 1.0 <= factor(name, scale, gained, epochs) <= scale * (1 + 1e-12)
    assert 0.0 < factor("legw:5", scale, gained, epochs) <= math.sqrt(scale)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [("SGD", "adascale"), ("RMSprop", "adascale"), ("Adam", "adam"), ("AdamW", "adam"), ("FusedAdam", "adam")],
)
def test_the_optimizer_says_which_rule_is_the_default(optimizer: str, name: str) -> None:
    assert rule_of(None, optimizer).name == name
    assert rule_of("sqrt", optimizer).name == "sqrt"


def test_a_function_is_a_rule_and_gets_scale_gain_and_epochs() -> None:
    def mine(scale: float, gained: float, epochs: float) -> Any:
        return np.float32(scale + 10 * gained + 100 * epochs)

    assert rule_of(mine, "SGD").name == "mine"
    assert factor(mine, 2.0, 1.5, 0.25) == 42.0


@pytest.mark.parametrize("returned", [math.nan, math.inf, 0.0, -1.0, None, "2", True, [1.0]])
def test_what_is_no_factor_is_refused_by_the_name_of_the_rule(returned: Any) -> None:
    rule = Rule("mine", lambda scale, gained, epochs: returned)
    with pytest.raises(ValueError, match="the learning-rate rule mine returned .* for scale 4, gain 2 and 3 stat"):
        rule.factors(4.0, [2.0], 3.0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("adagrad", "no learning-rate rule 'adagrad'; there are adascale, adam, linear, sqrt and legw:EPOCHS"),
        ("linear:3", "no learning-rate rule 'linear:3'"),
        ("", "no learning-rate rule ''"),
        ("legw", "'legw' needs the epochs of its warm-up: legw:5"),
        ("legw:soon", "'legw:soon' needs the epochs"),
        ("legw:-1", "'legw:-1' needs the epochs"),
        ("legw:nan", "'legw:nan' needs the epochs"),
        (3, "the learning-rate rule 3 is neither a name nor a function"),
    ],
)
def test_rules_that_there_are_not_are_refused(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule_of(rule, "SGD")


def test_legw_refuses_a_warm_up_below_0() -> None:
    with pytest.raises(ValueError, match="legw has -1 epochs of warm-up"):
        legw(-1)
