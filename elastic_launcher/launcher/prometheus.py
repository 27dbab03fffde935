"""The Prometheus metrics of a running job, from the state that the launcher shows; docs/events.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_launcher.host.prometheus import PREFIX
from elastic_launcher.report.state import JobState


class JobCollector(Collector):
    """Serves a job's metrics, by its state after the events so far."""

    def __init__(self, state: Callable[[], JobState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics; what is not known yet is left out."""
        state = self._state()
        for name, help, value in (
            ("step", "Optimizer steps done.", state.step),
            ("total_steps", "Optimizer steps of the whole training.", state.total_steps),
            ("epoch", "Epochs done.", state.epoch),
            ("samples", "Samples used.", state.samples),
            ("loss", "Loss of the last progress.", state.loss),
            ("samples_per_second", "Speed of the training.", state.samples_per_second),
            ("remaining_seconds", "Rest of the training at its present speed.", state.seconds_left),
            ("world_size", "Ranks that train now.", state.world_size),
            ("generation", "Number of the present generation.", state.generation),
            ("resizes", "How often the job has changed its size.", state.resizes),
            ("stragglers", "Ranks that are slow for long.", len(state.stragglers)),
            ("global_batch", "Samples of a step, with an adaptive batch.", state.adaptive.get("batch")),
            ("lr_factor", "What learning rates are multiplied by.", state.adaptive.get("lr_factor")),
            ("noise_scale", "The gradient noise scale, in samples.", state.adaptive.get("noise_scale")),
            ("efficiency", "What a sample is worth at this batch.", state.adaptive.get("efficiency")),
            ("waiting", "1 while the job waits for quota or for nodes.", int(bool(state.waits_for))),
        ):
            if (number := _number(value)) is not None:
                yield GaugeMetricFamily(PREFIX + name, help, number)
        yield _by("nodes", "Nodes in each phase.", "phase", _phases(state))
        yield _by("hint_gpus", "The quota hint in force.", "kind", state.quota)
        yield _by("logged", "Last values of job.log.", "name", state.logged)


def _phases(state: JobState) -> dict[str, int]:
    phases = [node.phase for node in state.nodes.values() if node.is_there]
    return {phase: phases.count(phase) for phase in ("starting", "warm", "training", "leaving")}


def _by(name: str, help: str, label: str, values: dict[str, int] | dict[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, help, labels=[label])
    for key, value in values.items():
        if (number := _number(value)) is not None:
            family.add_metric([_text(key)], number)
    return family


def _number(value: object) -> float | None:
    """Returns a value as Prometheus has it; None for what is no number, or a larger one."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _text(name: str) -> str:
    """Returns a name in characters that UTF-8 has: a script's own may come from the name of a file."""
    return name.encode(errors="backslashreplace").decode()
