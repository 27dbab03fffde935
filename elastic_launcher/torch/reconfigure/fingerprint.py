"""The values that must be the same on all ranks of a job, which the coordinator compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elastic_launcher.torch.membership.determinism import surroundings
from elastic_launcher.torch.shard.model import named_parameters
from elastic_launcher.torch.state.tensors import form

if TYPE_CHECKING:
    from elastic_launcher.torch.data.training_data import TrainingData
    from elastic_launcher.torch.session import Session


def data_of(data: TrainingData) -> dict[str, str | int | bool]:
    """Returns what is trained on, and in which order."""
    return {
        "dataset": f"{data.name} of {data.size} samples",
        "shuffle": data.shuffle,
        "loader_seed": data.seed,
        "drop_last": data.drop_last,
    }


def fingerprint(session: Session, data: TrainingData) -> dict[str, str | int | bool]:
    """Returns batch settings, data set, models and optimizers of this rank."""
    found: dict[str, str | int | bool] = {
        "global_batch_size": session.schedule.batch_size(0),
        "max_batch_per_gpu": session.max_batch_per_gpu,
        "seed": session.seed,
        "epochs": session.epochs or 0,
        **data_of(data),
    }
    if session.virtual_ranks:
        found["virtual ranks (deterministic=)"] = session.virtual_ranks
        found |= surroundings(session.device)
    if session.autoscaling is not None:
        bounds = session.autoscaling.bounds
        accumulates = "" if bounds.accumulation else ", one at a time"
        micro_batches = f"{bounds.min_micro_batch} to {bounds.max_micro_batch} samples a micro-batch{accumulates}"
        found["adaptive batch"] = f"up to {bounds.max_batch_size} samples, {micro_batches}"
    for number, model in enumerate(session.models):
        for name, tensor in (*named_parameters(model), *model.named_buffers()):
            found[f"model {number}: {name}"] = form(tensor)
    if session.shards is not None:
        found["ranks of a node that share the model"] = session.shards.size
    for number, optimizer in enumerate(session.state.optimizers):
        found[f"optimizer {number}"] = type(optimizer).__name__
        if session.autoscaling is not None:
            found[f"learning-rate rule of optimizer {number}"] = session.autoscaling.rule_of(optimizer).name
    return found


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Returns what this rank trains otherwise than the job that it wants to join; "" where that is nothing."""
    absent = "(absent)"
    for name in (*there, *(name for name in here if name not in there)):
        one, other = there.get(name, absent), here.get(name, absent)
        if one != other:
            return (
                f"this rank can't join, since it does not train the same: {name} is {one!r} in the job and {other!r} "
                "here. All ranks must have the same data set, models and batch settings at the same place in the script"
            )
    return ""
