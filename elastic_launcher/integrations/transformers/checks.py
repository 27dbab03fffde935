"""What an elastic job can't do for a Trainer, refused by name before it trains."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers.trainer_utils import seed_worker

from elastic_launcher.torch import Job
from elastic_launcher.torch.data.stock_loader import Data, read_loader

DEFAULT_BATCH = 8  # of TrainingArguments
SHARDED = "each rank has a whole model here"
ORDER = "the job decides which samples come when; use train_sampling_strategy='random' or 'sequential'"
REFUSED = {
    "deepspeed": SHARDED,
    "fsdp": SHARDED,
    "parallelism_config": SHARDED,
    "group_by_length": "the job decides which samples come when; leave it out",
    "fp16": "it was not tried with an elastic job; use bf16=True",
    "torch_compile": "it was not tried with an elastic job",
    "auto_find_batch_size": "init(max_batch_per_gpu='auto') finds what fits on a GPU, and the global batch stays",
    "push_to_hub": "call model.push_to_hub where trainer.is_world_process_zero(), after train()",
    "save_on_each_node": "only rank 0 writes",
    "enable_jit_checkpoint": "the job saves checkpoints by itself, and resumes from them at any number of ranks",
    "include_tokens_per_second": "it reads all of the loader first; use include_num_input_tokens_seen",
    "use_ipex": "it was not tried with an elastic job",
    "use_legacy_prediction_loop": "ranks share the batches of the other one",
}
IN_BACKWARD = ("lomo", "adalomo", "layerwise")


def check_arguments(args: Any, job: Job) -> None:
    """Refuses training arguments that can't be followed.

    Raises:
        ValueError: The message names the argument, and what to do instead.
    """
    configured = args.accelerator_config.gradient_accumulation_kwargs or {}  # which the Trainer makes its own
    accumulated = max(args.gradient_accumulation_steps, configured.get("num_steps", 1))
    if accumulated != 1:
        raise ValueError(
            f"gradient_accumulation_steps is {accumulated}: the job accumulates by itself, as far as the global batch "
            "needs it; leave it out, and make global_batch_size of init so many times larger"
        )
    if args.per_device_train_batch_size not in (DEFAULT_BATCH, job.global_batch_size):
        raise ValueError(
            f"per_device_train_batch_size is {args.per_device_train_batch_size}, and the job's global batch "
            f"{job.global_batch_size}: to the Trainer one batch is one optimizer step, over all ranks. Leave it out, "
            "or change global_batch_size of init"
        )
    for name, reason in REFUSED.items():
        if getattr(args, name, None):
            raise ValueError(f"TrainingArguments({name}=...) can't be followed in an elastic job: {reason}")
    strategy = getattr(args, "train_sampling_strategy", "random")
    if strategy not in ("random", "sequential"):
        raise ValueError(f"TrainingArguments(train_sampling_strategy={strategy!r}) can't be followed: {ORDER}")
    if getattr(args, "past_index", -1) >= 0:
        raise ValueError("TrainingArguments(past_index=...): outputs of one step can't be kept for the next one")
    optimizer = str(getattr(args.optim, "value", args.optim))
    if optimizer.endswith(IN_BACKWARD):
        raise ValueError(f"TrainingArguments(optim={optimizer!r}) steps in the backward pass; use another optimizer")


def read_training(loader: Any) -> tuple[Data, dict[str, Any]]:
    """Returns the data of the Trainer's own loader, and options for the job's.

    Raises:
        TypeError: For data that can only be read forward, and for samplers that the job can't follow.
    """
    data = read_loader(loader)
    options = dict(data.options)
    begins = options.get("worker_init_fn")
    if isinstance(begins, partial) and begins.func is seed_worker:
        del options["worker_init_fn"]  # the job seeds each sample
    return data, options
