"""The search's own steps: which trials there are, which part of the quota is a trial's, and which one was best."""

from kfp import dsl
from kfp.dsl import Artifact, Input, Metrics, Output

BASE_IMAGE = "python:3.11"


@dsl.component(base_image=BASE_IMAGE)
def list_trials(rates: list[str], trials: Output[Artifact]):
    """Writes down which trials there are.

    A step inside the loop reads it as a file: a loop's own list is not there inside it on a backend, and under
    ``kfp.local`` each parameter of another step is replaced by the loop's item.

    Args:
        rates: The learning rates, each one once.
        trials: The same, as a JSON list.
    """
    import json

    if len(set(rates)) < len(rates):
        raise ValueError(f"rates are {rates}: a trial is known by its rate, so give each one once")
    with open(trials.path, "w") as file:
        json.dump(rates, file)


@dsl.component(base_image=BASE_IMAGE)
def divide(rate: str, trials: Input[Artifact]) -> str:
    """Says which part of the quota is a trial's own.

    Args:
        rate: Its learning rate.
        trials: The learning rates of all trials, as a JSON list.

    Returns:
        Its part, as 1/3.
    """
    import json

    with open(trials.path) as file:
        rates = json.load(file)
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
