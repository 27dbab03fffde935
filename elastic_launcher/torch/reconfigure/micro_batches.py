"""Which micro-batches a rank works on: in this step, and in the next ones, so that workers load them ahead."""

from __future__ import annotations

import math
from dataclasses import dataclass

from elastic_launcher.batch import Share
from elastic_launcher.torch.data.loader import ElasticLoader, Piece
from elastic_launcher.torch.membership.place import Place
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.session import Session

LEAD_SECONDS = 0.25  # how long a resize may wait for steps whose micro-batches are loaded already
SPARE_SAMPLES = 2  # a rank without a share runs on two samples, since batch norm refuses one
SPARE_STEPS = 1  # ranks may plan a step apart, and then change at the later one


@dataclass(frozen=True)
class Division:
    """Among how many ranks samples are divided, and which of them this one is."""

    rank: int
    ranks: int


def share_of_step(session: Session, place: Place, count: int) -> Share:
    """Returns this rank's part of a step of ``count`` samples: none in the step in which it joins."""
    if place.rank >= place.dividing:
        return Share(count, ())
    return session.share(count, place.dividing, place.rank)


class LoadPlan:
    """Plans what a rank's workers load: the next micro-batches, and those of a generation that is being formed.

    To load both for the same steps would take more time than workers that just keep up have. So the present division's
    micro-batches are loaded up to a step that is near, and the coming one's from there on.

    Args:
        session: The job.
        resizer: Knows the generation that is being formed.
    """

    def __init__(self, session: Session, resizer: Resizer) -> None:
        self._session = session
        self._resizer = resizer
        self._formation = 0
        self._switch = 0  # from this step on (of the whole training) the coming division's are loaded

    def load(self, loader: ElasticLoader) -> None:
        """Has the workers load what this step and the next ones need, and drop what is not needed any more."""
        if not loader.ahead:
            return
        place, now = self._session.need_place("a step"), self._session.position.step
        present, coming = Division(place.rank, place.dividing), self._coming()
        steps = loader.ahead + 1
        if place.dividing < place.world_size:  # the step in which others join: the change is certain
            coming, self._switch = Division(place.rank, place.world_size), now + 1
            steps = 1
        elif coming is not None:
            self._plan_switch(loader, present)
            steps = self._switch + SPARE_STEPS - now
        wanted = self._pieces(loader, present, now, steps)[: loader.ahead + 1]
        if coming is not None:
            wanted += self._pieces(loader, coming, self._switch, loader.ahead)[: loader.ahead]
        loader.want(wanted)

    def expect(self, division: Division) -> None:
        """Has the workers load this step as it is divided when it is done again, while the group is formed anew."""
        loader = self._session.loader
        if loader is not None and loader.ahead:
            pieces = self._pieces(loader, division, self._session.position.step, loader.ahead + 1)
            loader.want(pieces[: loader.ahead + 1])

    def is_loaded(self, loader: ElasticLoader) -> bool:
        """Says whether the workers have loaded the first step after a change that comes now."""
        coming = self._coming()
        return (
            not loader.ahead
            or coming is None
            or loader.is_ready(self._pieces(loader, coming, self._first_after_change(), 1))
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

    def _plan_switch(self, loader: ElasticLoader, present: Division) -> None:
        formation, first = self._resizer.standing(), self._first_after_change()
        if formation is None or formation.number == self._formation:
            self._switch = max(self._switch, first)
            return
        self._formation = formation.number
        a_step = len(self._session.share(loader.step_size(0), present.ranks, 0).micro_batches)
        usual = self._session.pace.usual()
        self._switch = first + (min(math.ceil(loader.ahead / a_step), int(LEAD_SECONDS / usual)) if usual else 0)

    def _pieces(self, loader: ElasticLoader, division: Division, first: int, steps: int) -> list[Piece]:
        """Returns a rank's micro-batches of some steps, counted over the whole training."""
        session, found = self._session, []
        position = session.position
        for step in range(first, first + steps):
            further, in_epoch = divmod(position.step_in_epoch + step - position.step, loader.steps_per_epoch)
            if session.epochs is not None and position.epoch + further >= session.epochs:
                break
            order = position.order(further)
            count = loader.step_size(in_epoch)
            joins = division.rank >= division.ranks
            mine = Share(0, ()) if joins else session.share(count, division.ranks, division.rank)
            start = in_epoch * session.global_batch_size
            if not mine.micro_batches:
                found.append((order, start, min(count, SPARE_SAMPLES)))
            start += mine.start
            for size in mine.micro_batches:
                found.append((order, start, size))
                start += size
        return found
