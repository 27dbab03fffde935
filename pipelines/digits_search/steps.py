"""The search's own steps: which trials there are, which part of the quota is a trial's, and which one was best."""

from kfp import dsl
from kfp.dsl import Metrics, Output

BASE_IMAGE = "python:3.11"


@dsl.component(base_image=BASE_IMAGE)
def trials(rates: list[str]) -> list[str]:
    """Says which trials there are: a loop's own list is not there inside the loop on a backend.

    Args:
        rates: The learning rates, each one once.

    Returns:
        The same.
    """
    if len(set(rates)) < len(rates):
        raise ValueError(f"rates are {rates}: a trial is known by its rate, so give each one once")
    return rates


@dsl.component(base_image=BASE_IMAGE)
def divide(rate: str, rates: list[str]) -> str:
    """Says which part of the quota is a trial's own.

    Args:
        rate: Its learning rate.
        rates: The learning rates of all trials.

    Returns:
        Its part, as 1/3.
    """
    return f"{rates.index(rate) + 1}/{len(rates)}"


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
