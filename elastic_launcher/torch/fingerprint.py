"""What must be the same on all ranks of a job, as flat names and values that the coordinator compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_launcher.torch.loader import ElasticLoader
    from elastic_launcher.torch.session import Session


def fingerprint(session: Session, loader: ElasticLoader) -> dict[str, str | int | bool]:
    """Returns batch settings, data set, models and optimizers of this rank."""
    found: dict[str, str | int | bool] = {
        "global_batch_size": session.global_batch_size,
        "max_batch_per_gpu": session.max_batch_per_gpu,
        "seed": session.seed,
        "epochs": session.epochs or 0,
        "dataset": f"{type(loader.dataset).__name__} of {loader.size} samples",
        "shuffle": loader.shuffle,
        "loader_seed": loader.seed,
        "drop_last": loader.drop_last,
    }
    for number, model in enumerate(session.models):
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            found[f"model {number}: {name}"] = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    for number, optimizer in enumerate(session.state.optimizers):
        found[f"optimizer {number}"] = type(optimizer).__name__
    return found
