"""The position of the training."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from elastic_launcher.torch.rng import derive


@dataclass(frozen=True, slots=True)
class Position:
    """The step that comes next. `Session.move_to` replaces it as a whole, since other threads read it.

    Attributes:
        epoch: Counted from 0 within its phase.
        step_in_epoch: Of the next step, counted from 0 within its loop, which is the epoch's only one as a rule.
        step: Optimizer steps done over the whole training.
        samples: Samples that these steps used.
        calls: `backward` calls of the next step that are already reduced and applied (more than 0 only between two of
            them); what is reduced and not applied yet is done again with the step.
        operations: What all ranks have done together so far: reductions, and sums over ranks.
        phase: Which `job.epochs` of the script it is, counted from 0.
        loop: Which training loop of its epoch it is, counted from 0.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    samples: int = 0
    calls: int = 0
    operations: int = 0
    phase: int = 0
    loop: int = 0

    def numbers(self) -> list[int]:
        """Returns the position as whole numbers, for a peer."""
        return list(astuple(self))

    def mark(self) -> int:
        """Returns a number by which ranks can compare whether they are at the same step."""
        return derive(self.phase, self.epoch, self.loop, self.step_in_epoch)

    def order(self, later: int = 0) -> int:
        """Returns what the order of samples derives from, beside the loader's seed: the epoch's number, or another one
        for each further loop of an epoch and for each further phase.

        ``later`` is of the same loop that many epochs later.
        """
        epoch = self.epoch + later
        return derive(self.phase, epoch, self.loop) if self.phase or self.loop else epoch

    def at(self, phase: int, epoch: int, loop: int = 0) -> Position:
        """Returns this position at the beginning of a loop."""
        return replace(self, phase=phase, epoch=epoch, loop=loop, step_in_epoch=0)

    def after_step(self, samples: int) -> Position:
        """Returns the position after the step, which used so many samples."""
        return replace(
            self,
            step=self.step + 1,
            step_in_epoch=self.step_in_epoch + 1,
            samples=self.samples + samples,
            calls=0,
        )

    @property
    def where(self) -> tuple[int, int, int]:
        """Phase, epoch and loop: a later one is greater."""
        return self.phase, self.epoch, self.loop
