"""The values of an adaptive batch for whoever watches: progress reports, and TensorBoard."""

from __future__ import annotations

import math

from elastic_launcher.adaptive.goodput import gain
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.step.learning_rate import mean_factor
from elastic_launcher.torch.step.step_times import known_noise


def adaptive_values(session: Session) -> dict[str, float]:
    """Returns the values now, by name: ``batch``, ``lr_factor``, ``noise_scale``, ``efficiency``.

    The last two are left out before the noise is known, and the noise scale where it has no bound. Empty for a fixed
    batch.
    """
    if session.autoscaling is None:
        return {}
    base, batch = session.schedule.batch_size(0), session.global_batch_size
    values: dict[str, float] = {"batch": batch, "lr_factor": mean_factor(session)}
    noise = known_noise(session)
    if noise is not None:
        if math.isfinite(noise_scale := noise.noise_scale(base)):
            values["noise_scale"] = noise_scale
        values["efficiency"] = gain(noise.variance, noise.square, batch / base) / (batch / base)
    return values
