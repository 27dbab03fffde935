"""Makes the job of a training script, however the script was started."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.distributed.rendezvous import rendezvous

from elastic_launcher import variables
from elastic_launcher.batch import whole_number
from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.host.output import spare_output
from elastic_launcher.torch import rng
from elastic_launcher.torch.collectives.group import build_group, group_from_store
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.membership.determinism import be_deterministic
from elastic_launcher.torch.membership.environment import choose_device, read_batch, read_launch
from elastic_launcher.torch.membership.member import Member
from elastic_launcher.torch.membership.membership import Formation, Membership
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.checkpointing import Checkpoints
from elastic_launcher.torch.state.training_state import TrainingState

TORCHRUN_SECONDS = 300.0  # for all ranks of plain torchrun to come
_is_rank = False  # whether this process is a rank of a job that others know


def init(
    global_batch_size: int | None = None,
    max_batch_per_gpu: int | str | None = None,
    *,
    seed: int = 0,
    deterministic: int | None = None,
) -> Job:
    """Makes this process a rank of an elastic training job.

    It does not wait for other ranks. Under `elastic-launcher run` the batch sizes may come from the launcher; plain
    ``python`` makes a world of one, plain ``torchrun`` a world of fixed size.

    Args:
        global_batch_size: Samples of each optimizer step, over all ranks.
        max_batch_per_gpu: Most samples that fit on one GPU at a time; "auto" has each process find that before it is
            admitted, at most the global batch.
        seed: What all random numbers derive from; generators are seeded with it at once.
        deterministic: Among how many virtual ranks each step is divided, so that the weights are bit-equal at any
            number of ranks; torch's deterministic algorithms are turned on. None divides it among the ranks.

    Raises:
        ValueError: If a batch size is missing, not a whole number of 1 or more, or given twice and different; or if
            ``deterministic`` is no such number, or can't be with ``max_batch_per_gpu="auto"``.
        RuntimeError: If the launcher's environment is incomplete, this rank has a job already, or its node has GPUs
            and too few of them.
    """
    global _is_rank
    batch, largest = read_batch(global_batch_size, max_batch_per_gpu)
    virtual_ranks = 0 if deterministic is None else whole_number("deterministic", deterministic)
    if virtual_ranks and largest is None:
        raise ValueError(
            'max_batch_per_gpu is "auto", and with deterministic= micro-batches have the same sizes on all devices; '
            "give it as a number"
        )
    if virtual_ranks:
        be_deterministic()
    launch = read_launch()
    device = choose_device(launch.local_rank, launch.local_world_size)
    if _is_rank:
        raise RuntimeError("elastic.init() was called twice in one rank; keep the job that the first call returned")
    _is_rank = launch.control is not None or launch.torchrun
    member = None
    if launch.control is not None:
        spare_output()
        member = Member(launch, device, float(os.environ.get(variables.ORPHAN_TIMEOUT, "60")))
    schedule = BatchSchedule.fixed(batch)
    session = Session(
        schedule,
        largest or batch,
        seed,
        device,
        launch,
        member,
        ModelBuffers(),
        TrainingState(),
        virtual_ranks=virtual_ranks,
    )
    session.shares.finds_limit = largest is None
    if member is not None:
        session.checkpoints = Checkpoints(session, member, Path(os.environ[variables.WORK_DIR]))
    job = Job(session)
    if member is not None:
        job._join(member)
    elif not launch.torchrun:
        alone = Formation(1, 1, "start", (0,))
        session.membership = Membership(0, alone, build_group("", 1, 0, 1, 1.0, device), 1)
    else:
        _join_torchrun(session, device)
    rng.seed_all(rng.derive(seed), device)
    return job


def _join_torchrun(session: Session, device: torch.device) -> None:
    """Makes the private group of plain torchrun's ranks; their state is made equal when the training loop begins."""
    store, rank, world_size = next(iter(rendezvous("env://")))
    group = group_from_store(store, "elastic-launcher", rank, world_size, TORCHRUN_SECONDS, device)
    sources = dict.fromkeys(range(1, world_size), 0)
    formation = Formation(1, 1, "start", tuple(range(world_size)), sources=sources, group=group)
    session.membership = Membership(rank, formation, group, world_size)
    session.unequal = True
