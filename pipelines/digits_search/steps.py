"""The search's own steps: what a trial tries, and which one was best."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Metrics, Output

BASE_IMAGE = "python:3.11"


@dsl.component(base_image=BASE_IMAGE)
def suggest(trial: str, rates: list[str]) -> NamedTuple("Trial", [("rate", str), ("share", str)]):
    """Says what a trial tries, and which part of the quota is its own.

    Args:
        trial: Its number, from 1.
        rates: The learning rates of all trials.

    Returns:
        rate: Its learning rate.
        share: Its part, as 1/3.
    """
    return rates[int(trial) - 1], f"{trial}/{len(rates)}"


@dsl.component(base_image=BASE_IMAGE)
def best(rates: list[str], accuracies: list[float], metrics: Output[Metrics]) -> str:
    """Says which learning rate was best.

    Args:
        rates: The learning rates of all trials.
        accuracies: The accuracy of each, in the same order.
        metrics: The accuracy of each.

    Returns:
        The best learning rate.
    """
    for rate, accuracy in zip(rates, accuracies, strict=True):
        metrics.log_metric(f"accuracy at {rate}", accuracy)
    return rates[accuracies.index(max(accuracies))]
