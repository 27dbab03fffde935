"""Which micro-batches a rank works on: in this step, and in the next ones, so that workers load them ahead."""

from __future__ import annotations

from elastic_launcher.batch import Share, share
from elastic_launcher.torch.loader import ElasticLoader, Piece
from elastic_launcher.torch.place import Place
from elastic_launcher.torch.resize import Resizer
from elastic_launcher.torch.session import Session


def share_of_step(session: Session, place: Place, count: int) -> Share:
    """Returns this rank's part of a step of ``count`` samples: none in the step in which it joins."""
    if place.rank >= place.dividing:
        return Share(count, ())
    return share(count, session.max_batch_per_gpu, place.dividing, place.rank)


def load_ahead(session: Session, loader: ElasticLoader, resizer: Resizer) -> None:
    """Has the workers load this rank's next micro-batches, also those of a generation that is being formed."""
    if not loader.ahead:
        return
    place = session.need_place("a step")
    if place.rank < place.dividing:
        loader.ask(pieces_of(session, loader, place.rank, place.dividing, 0, loader.ahead + 1))
    if place.dividing < place.world_size:  # joiners get their share from the next step on
        loader.ask(pieces_of(session, loader, place.rank, place.world_size, 1, loader.ahead))
    loader.ask(pieces_to_come(session, loader, resizer, loader.ahead))


def pieces_to_come(session: Session, loader: ElasticLoader, resizer: Resizer, limit: int) -> list[Piece]:
    """Returns this rank's first micro-batches in the generation that is being formed; none without one."""
    coming = resizer.coming()
    if coming is None:
        return []
    rank = coming["members"].index(session.need_place("a step").member)
    return pieces_of(session, loader, rank, len(coming["members"]), 1, limit)


def pieces_of(session: Session, loader: ElasticLoader, rank: int, ranks: int, skip: int, limit: int) -> list[Piece]:
    """Returns the micro-batches that a rank needs from ``skip`` steps after the current one on."""
    pieces: list[Piece] = []
    epoch, step = session.position.epoch, session.position.step_in_epoch + skip
    while len(pieces) < limit:
        if step >= loader.steps_per_epoch:
            epoch, step = epoch + 1, 0
            if session.epochs is not None and epoch >= session.epochs:
                break
        mine = share(loader.step_size(step), session.max_batch_per_gpu, ranks, rank)
        start = step * session.global_batch_size + mine.start
        for size in mine.micro_batches:
            pieces.append((epoch, start, size))
            start += size
        if not mine.micro_batches:
            break
        step += 1
    return pieces
