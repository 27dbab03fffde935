"""Where the training stands."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_launcher.torch.rng import derive


@dataclass(slots=True)
class Position:
    """Which step comes next.

    Attributes:
        epoch: Counted from 0.
        step_in_epoch: Of the next step, counted from 0.
        step: Optimizer steps done over the whole training.
        samples: Samples that these steps used.
        calls: `backward` calls of the next step that are already reduced and applied (more than 0 only between two of
            them); what is reduced and not applied yet is done again with the step.
        operations: What all ranks have done together so far: reductions, and sums over ranks.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    samples: int = 0
    calls: int = 0
    operations: int = 0

    def numbers(self) -> list[int]:
        """Returns the position as whole numbers, for a peer."""
        return [self.epoch, self.step_in_epoch, self.step, self.samples, self.calls, self.operations]

    @staticmethod
    def from_numbers(numbers: list[int]) -> Position:
        """Reads what `numbers` wrote."""
        return Position(*numbers)

    def mark(self) -> int:
        """Returns a number by which ranks can tell whether they stand at the same step."""
        return derive(self.epoch, self.step_in_epoch)
