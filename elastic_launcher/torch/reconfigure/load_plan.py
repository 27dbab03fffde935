"""Plans what a rank's workers load ahead: the micro-batches of this step and of the next ones."""

from __future__ import annotations

import math

from elastic_launcher.torch.data.micro_batches import Piece, pieces_of
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.statistical_epochs import end_within

LEAD_SECONDS = 0.25  # how long a resize may wait for steps whose micro-batches are loaded already
SPARE_STEPS = 1  # ranks may plan a step apart, and then change at the later one


class LoadPlan:
    """Plans what a rank's workers load: the next micro-batches, and those of a generation that is being formed.

    To load both for the same steps would take more time than workers that just keep up have. So the present division's
    micro-batches are loaded up to a step that is near, and the coming one's from there on.
    """

    def __init__(self, session: Session, resizer: Resizer) -> None:
        self._session = session
        self._resizer = resizer
        self._formation = 0
        self._switch = 0  # from this step on (of the whole training) the coming division's are loaded

    def load(self, data: TrainingData) -> None:
        """Has the workers load what this step and the next ones need, and drop what is not needed any more."""
        if not data.ahead:
            return
        membership, now = self._session.need_membership("a step"), self._session.position.step
        present, coming = membership.division, self._coming()
        steps = data.ahead + 1
        if membership.dividing < membership.world_size:  # the step in which others join: the change is certain
            coming, self._switch = Division(membership.rank, membership.world_size), now + 1
            steps = 1
        elif coming is not None:
            self._plan_switch(data, present)
            steps = self._switch + SPARE_STEPS - now
        wanted = self._pieces(data, present, now, steps)[: data.ahead + 1]
        if coming is not None:
            wanted += self._pieces(data, coming, self._switch, data.ahead)[: data.ahead]
        data.want(wanted)

    def expect(self, division: Division) -> None:
        """Has the workers load this step as it is divided when it is done again, while a new group is formed.

        The first micro-batch keeps all ranks waiting, so the workers share its samples.
        """
        data = self._session.data
        if data is not None and data.ahead:
            pieces = self._pieces(data, division, self._session.position.step, data.ahead + 1)
            data.want(pieces[: data.ahead + 1], urgent=True)

    def is_loaded(self, data: TrainingData) -> bool:
        """Says whether the workers have loaded the first step after a change that comes now."""
        coming = self._coming()
        return (
            not data.ahead or coming is None or data.is_ready(self._pieces(data, coming, self._first_after_change(), 1))
        )

    def _coming(self) -> Division | None:
        formation = self._resizer.standing()
        if formation is None or formation.group is None:
            return None
        return Division(formation.group.rank, formation.group.world_size)

    def _first_after_change(self) -> int:
        """Returns the first step with the coming division, if the ranks agree on the change in the present one."""
        formation = self._resizer.standing()
        joining = formation is not None and formation.mode == "grow"  # joiners take part in one step without samples
        return self._session.position.step + (2 if joining else 1)

    def _plan_switch(self, data: TrainingData, present: Division) -> None:
        formation, first = self._resizer.standing(), self._first_after_change()
        if formation is None or formation.number == self._formation:
            self._switch = max(self._switch, first)
            return
        self._formation = formation.number
        full = self._session.data_pass(data, self._session.position).samples(0).count
        shares = self._session.shares.of(full, Division(0, present.ranks)).values()
        a_step = sum(len(share.micro_batches) for share in shares)
        usual = self._session.pace.usual()
        self._switch = first + (min(math.ceil(data.ahead / a_step), int(LEAD_SECONDS / usual)) if usual else 0)

    def _pieces(self, data: TrainingData, division: Division, first: int, steps: int) -> list[Piece]:
        """Returns a rank's micro-batches of some steps, counted over the whole training."""
        session, found = self._session, []
        position, epochs = session.position, session.epochs if session.autoscaling is None else None
        epoch, whole = position.epoch, session.data_pass(data, position)
        for step in range(first, end_within(session, whole, first + steps)):
            while 0 < whole.steps <= step - whole.first_step:
                epoch, whole = epoch + 1, whole.following()
            if not whole.steps or (epochs is not None and epoch >= epochs):
                break  # a pass without a step ends the training by an error
            samples = whole.samples(step - whole.first_step)
            shares = session.shares.of(samples.count, division).values()
            order, most = position.order(epoch - position.epoch), session.shares.max_micro_batch
            found += pieces_of(order, samples, shares, most)
        return found
