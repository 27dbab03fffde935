"""What an elastic job can't do for an Accelerator, refused by name when it is made or used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from elastic_launcher.torch import Job
from elastic_launcher.torch.data.stock_loader import read_loader

SHARDED = "each rank has a whole model here; leave it out"
UNTRIED = "it was not tried with an elastic job; leave it out"
REFUSED = {
    "deepspeed_plugin": SHARDED,
    "deepspeed_plugins": SHARDED,
    "fsdp_plugin": SHARDED,
    "torch_tp_plugin": SHARDED,
    "megatron_lm_plugin": SHARDED,
    "parallelism_config": SHARDED,
    "dynamo_backend": UNTRIED,
    "dynamo_plugin": UNTRIED,
}
CONFIGURED = {
    "dispatch_batches": ("dataloader_config", "each rank reads the samples that it works on; leave it out"),
    "use_stateful_dataloader": ("dataloader_config", "the job knows its position; leave it out"),
    "save_on_each_node": ("project_config", "only rank 0 writes; leave it out"),
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options of an Accelerator that can't be followed.

    Raises:
        ValueError: The message names the option, and what to do instead.
    """
    plugin = options.get("gradient_accumulation_plugin")
    check_accumulation(getattr(plugin, "num_steps", None) or options.get("gradient_accumulation_steps", 1))
    for name, reason in REFUSED.items():
        if options.get(name):
            raise ValueError(f"ElasticAccelerator({name}=...) can't be followed in an elastic job: {reason}")
    for name, (option, reason) in CONFIGURED.items():
        if getattr(options.get(option), name, None):
            raise ValueError(f"{name} of {option} can't be followed in an elastic job: {reason}")
    _check_precision(str(options.get("mixed_precision") or "no"))


def check_accumulation(steps: int) -> None:
    """Refuses accumulation by Accelerate.

    Raises:
        ValueError: If it is asked for.
    """
    if steps != 1:
        raise ValueError(
            f"gradient_accumulation_steps is {steps}: the job accumulates by itself, as far as the global batch needs "
            "it; leave it out, and make global_batch_size of init so many times larger"
        )


def check_made(accelerator: Any, job: Job) -> None:
    """Refuses an Accelerator that its environment has made something else than one plain process.

    Raises:
        RuntimeError: If it knows of other processes.
        ValueError: If the environment asks for what options are refused for, or if the device is not the job's.
    """
    if accelerator.num_processes != 1 or accelerator.distributed_type.value != "NO":
        raise RuntimeError(
            f"Accelerate knows of {accelerator.num_processes} processes (distributed type "
            f"{accelerator.distributed_type.value}): call elastic_launcher.integrations.accelerate.init before "
            "anything of Accelerate, and start the script by elastic-launcher run, not by accelerate launch"
        )
    check_accumulation(accelerator.gradient_accumulation_steps)
    _check_precision(accelerator.mixed_precision)
    if accelerator.state.dynamo_plugin.backend.value != "NO":
        raise ValueError(f"the environment has ACCELERATE_DYNAMO_BACKEND: {UNTRIED}")
    if accelerator.device.type != job.device.type:
        raise ValueError(
            f"the Accelerator is on {accelerator.device}, and the job on {job.device}: leave cpu= and "
            "ACCELERATE_USE_CPU out, and hide GPUs by CUDA_VISIBLE_DEVICES="
        )


def _check_precision(precision: str) -> None:
    if precision not in ("no", "bf16"):
        raise ValueError(f"mixed_precision={precision!r} was not tried with an elastic job: use mixed_precision='bf16'")


def refuse_own_scheduler(thing: Any) -> None:
    """Refuses a scheduler that Accelerate would return as it is: it would act in each micro-batch.

    Raises:
        TypeError: For what has a `step`, and is neither a model nor an optimizer or a scheduler of torch.
    """
    if callable(getattr(thing, "step", None)) and not isinstance(thing, (nn.Module, Optimizer, LRScheduler)):
        raise TypeError(
            f"accelerator.prepare got a {type(thing).__name__}, which is no scheduler of torch.optim.lr_scheduler: its "
            "step() would act in each micro-batch, of which ranks have different numbers. Leave it out here, call "
            "step() under `if accelerator.sync_gradients:`, and give it to accelerator.register_for_checkpointing"
        )


def refuse_training(loader: DataLoader[Any], batch: int) -> NoReturn:
    """Says why a loader can't train.

    Raises:
        TypeError: For data that can only be read forward, and samplers that the job can't follow.
        ValueError: For another batch size than the global batch.
    """
    read_loader(loader)
    raise ValueError(
        f"a training loop has begun over a DataLoader with batch_size={loader.batch_size}, since a prepared model is "
        f"in train mode. To evaluate, call model.eval() first. To train, give it batch_size={batch}, the job's global "
        "batch: then len(loader) counts optimizer steps, also before accelerator.prepare"
    )


def warn_of_unprepared_schedulers(optimizers: Sequence[Any], prepared: Sequence[Any]) -> None:
    """Warns of prepared optimizers that have a scheduler which is not prepared."""
    known = {id(one) for thing in prepared if (one := getattr(thing, "optimizer", None)) is not None}
    for optimizer in optimizers:
        scheduled = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        if scheduled and id(optimizer) not in known:
            warnings.warn(
                f"{type(optimizer.optimizer).__name__} has a scheduler that was not given to accelerator.prepare: it "
                "acts in each micro-batch, of which ranks have different numbers, and processes that join don't get "
                "its state. Call scheduler = accelerator.prepare(scheduler) before the training loop",
                stacklevel=3,
            )
