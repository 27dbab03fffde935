"""How far a training has come when batch sizes change: statistical progress."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training has come, in samples of the base batch: each sample counts for as much as it is worth.

    With the base batch in every step this is the number of samples, exactly.

    Attributes:
        samples: Samples so far.
    """

    samples: float = 0.0

    def after(self, samples: int, gain: float, scale: float) -> Progress:
        """Returns the progress after a step.

        Args:
            samples: Samples of the step: the last one of an epoch may have fewer than the global batch.
            gain: How many steps of the base batch a full step is worth.
            scale: The global batch over the base batch.
        """
        return Progress(self.samples + samples * (gain / scale))

    def epochs(self, epoch_samples: int) -> float:
        """Returns the statistical epochs.

        Args:
            epoch_samples: Samples that the steps of an epoch take: the data set's, or fewer with ``drop_last``.
        """
        return self.samples / epoch_samples


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """The statistical progress of one phase of a training: of the first training loop of each of its epochs.

    Attributes:
        phase: Its number; -1 for none.
        epoch_samples: Samples of an epoch.
        progress: So far.
        left: Up to which epoch it is counted what the script has left out: the rest of a loop, or all of an epoch.
    """

    phase: int = -1
    epoch_samples: int = 1
    progress: Progress = field(default_factory=Progress)
    left: int = 0

    @property
    def epochs(self) -> float:
        """Statistical epochs so far."""
        return self.progress.epochs(self.epoch_samples)

    def resized(self, epoch_samples: int) -> PhaseProgress:
        """Returns as many epochs of another number of samples: the data set has changed between two runs of a job."""
        if epoch_samples == self.epoch_samples:
            return self
        samples = self.progress.samples * (epoch_samples / self.epoch_samples)
        return replace(self, epoch_samples=epoch_samples, progress=Progress(samples))
