"""Reports how a training script ends: by itself, in the middle of a loop, or by an exception."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from types import TracebackType

import torch

from elastic_launcher.control.messages import Ended, Failed
from elastic_launcher.host.output import give_up_unflushable
from elastic_launcher.torch.data.worker_pool import WorkerKilled
from elastic_launcher.torch.membership.connection import leave
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.shard.node import is_loss
from elastic_launcher.torch.statistical_epochs import is_over
from elastic_launcher.torch.step.loop import StepLoop
from elastic_launcher.torch.step.memory import advice, lower_limit

OUTGROWN = (
    "a micro-batch was too large for memory outside of job.backward, where the step can't be done again in this "
    "process; another one with smaller ones takes its place. Put the forward pass into `with job.micro_batch():`"
)


def watch_script_end(session: Session, steps: StepLoop) -> None:
    """Reports to the coordinator how the script ends, in every case."""
    rank = os.getpid()
    before = sys.excepthook

    def report(error: BaseException) -> None:
        if isinstance(error, WorkerKilled) and session.member is not None:
            leave(str(error))  # as if this process had been killed, and not its script's failure
        if session.shards is not None and session.membership is not None and session.member and is_loss(error):
            leave(f"another rank of this node was lost ({error})")
        if isinstance(error, torch.OutOfMemoryError) and not session.dying:
            come_back_smaller(error)
        if not session.dying and not isinstance(error, KeyboardInterrupt):
            lines = "".join(traceback.format_exception(error))
            notes = getattr(error, "__notes__", ()) if isinstance(error, torch.OutOfMemoryError) else ()
            message = "; ".join([f"{type(error).__name__}: {error}", *notes])
            session.report(Failed(message, lines, session.position.step))
        session.dying = True

    def come_back_smaller(error: torch.OutOfMemoryError) -> None:
        micro = steps.outgrown_by(error)
        if micro is None or session.member is None:
            return
        if lower_limit(session, micro, leaves=True):
            session.member.reports.flush()
            leave(OUTGROWN)
        if advice(session) not in getattr(error, "__notes__", ()):
            error.add_note(advice(session))

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, error, trace)
        finally:
            report(error)

    def ended() -> None:
        if os.getpid() != rank:
            return  # a child that the script has forked: it has no thread that could report
        if (error := _uncaught()) is not None:  # a script or a library has replaced the hook since
            report(error)
        if not session.dying and session.stop_reason is not None:
            with contextlib.suppress(RuntimeError, SystemExit):  # there is no coordinator left
                steps.settle()
        elif not session.dying:
            try:
                steps.note_end()  # it may have left its loop, and called nothing of the job since
            except RuntimeError as left:
                report(left)
        finished = session.over or is_over(session)
        if session.member is not None:
            if not session.dying:
                position = session.position
                session.report(Ended(position.step, finished, position.samples))
            session.member.reports.flush()
            session.member.formations.stop_forming()
        give_up_unflushable()

    sys.excepthook = failed
    atexit.register(ended)


def _uncaught() -> BaseException | None:
    """Returns the exception that ended the script, if one did: Python notes it before it calls the hook.

    Others that were only printed may be noted there too; they did not come up through the script's own lines.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        if code.co_name == "<module>" and names.get("__name__") == "__main__":
            return error
        trace = trace.tb_next
    return None
