"""The phases, epochs and loops of a training: the script's position in them, and the job's."""

from __future__ import annotations

from elastic_launcher.torch import rng
from elastic_launcher.torch.session import Session


class Phases:
    """Begins and ends phases, epochs and loops, and moves the position along."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, total: int | None) -> None:
        """Begins a phase: a `job.epochs` of so many epochs, or loops outside of any (None)."""
        session, course = self._session, self._session.course
        course.begin_phase(counted=total is not None)
        session.epochs = total
        if course.phase:
            session.stop_reason = None  # it was meant for the phase before
        if session.position.phase < course.phase:
            session.begin_phase(course.phase)

    def end(self) -> None:
        """Ends the phase."""
        course = self._session.course
        course.end_phase()
        self.draw_alike(course.phase)

    def begin_epoch(self) -> int:
        """Begins the present epoch, and returns its number."""
        course = self._session.course
        course.begin_epoch(self._session.position.epoch)
        if course.epoch:  # the first one begins with what the script has drawn before it, everywhere
            self.draw_alike(*course.where)
        return course.epoch

    def end_epoch(self) -> None:
        """Moves on to the next epoch, unless the job has moved on already."""
        session, course = self._session, self._session.course
        if (session.position.phase, session.position.epoch) == (course.phase, course.epoch):
            session.move_to(session.position.at(course.phase, course.epoch + 1))

    def begin_loop(self) -> None:
        """Begins the epoch's next training loop; outside of `job.epochs` it is an epoch of its own."""
        session, course = self._session, self._session.course
        if course.between:
            self.begin(None)
        if not course.counted:
            course.begin_epoch(course.epoch + 1)
        course.begin_loop()
        if session.position.where < course.where:
            session.move_to(session.position.at(*course.where))

    def end_loop(self) -> None:
        """Moves on to the epoch's next loop, unless the job has moved on already."""
        session, course = self._session, self._session.course
        if not session.over and not course.is_ahead(session.position):
            phase, epoch, loop = course.where
            session.move_to(session.position.at(phase, epoch, loop + 1))

    def draw_alike(self, *where: int) -> None:
        """Has all ranks draw the same random numbers from here on: each has drawn its own in the steps."""
        rng.seed_all(rng.after_seed(self._session.seed, *where), self._session.device)
