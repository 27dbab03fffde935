"""Trains a small transformer that is sharded within each node, until a file ``stop`` is there.

The first rank of each node writes each step's loss and gradient norm, 0 for a step that it has taken from another node.
In the end rank 0 writes the whole model, and sums over the data. Arguments: JSON, see `Options`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import elastic_launcher.torch as elastic

TOKENS, WIDTH, LENGTH = 11, 12, 5
SEED = 3


@dataclass(frozen=True)
class Options:
    """What a test asks for.

    Attributes:
        folder: Where all that is written goes.
        epochs: Passes over the data; the training ends before them where ``stop`` is there.
        pace: Seconds that each micro-batch takes at least.
        clip: The largest norm of the gradient.
        recompute: Whether a block's activations are made again in the backward pass.
        compiled: Whether each block is compiled.
        mixed: Whether it computes in bfloat16 and keeps float32; everything is float64 otherwise.
    """

    folder: str
    samples: int = 50
    batch: int = 12
    micro: int = 2
    epochs: int = 10_000
    pace: float = 0.0
    clip: float = 0.5
    recompute: bool = False
    compiled: bool = False
    mixed: bool = False


class Block(nn.Module):
    """Attention and a layer of neurons; its widths are odd, so that parts of the model have different sizes."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.widen, self.narrow = nn.Linear(WIDTH, 33), nn.Linear(33, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the block's output."""
        return checkpoint(self._work, x, use_reentrant=False) if self.recompute else self._work(x)

    def _work(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.narrow(torch.tanh(self.widen(x)))


class Transformer(nn.Module):
    """Predicts each token from the others."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(recompute) for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns a score for each token."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Texts(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tokens, and those to predict; some of these are left out, as padding is: -100."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, TOKENS, (samples, LENGTH), generator=generator)
        self.wanted = self.tokens.roll(1, 1)
        lengths = torch.randint(1, LENGTH + 1, (samples,), generator=generator)
        self.wanted[torch.arange(LENGTH) >= lengths[:, None]] = -100

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[index], self.wanted[index]


def model_as_built(mixed: bool = False, recompute: bool = False) -> Transformer:
    """Returns the model before its first step."""
    torch.manual_seed(SEED)
    model = Transformer(recompute)
    return model if mixed else model.double()


def shard(model: Transformer, mixed: bool) -> None:
    """Shards each block, and the rest."""
    policy = MixedPrecisionPolicy()
    if mixed:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mp_policy=policy)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Returns its optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)  # a key's bias has no gradient but rounding


def loss_of(model: nn.Module, tokens: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns the mean loss over the tokens that count, and how many these are."""
    scores = model(tokens)
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()), int((wanted >= 0).sum())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all of a sharded tensor; all ranks of the node call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main() -> None:
    """Trains."""
    options = Options(**json.loads(sys.argv[1]))
    folder = Path(options.folder)
    elastic.init_node_group("nccl" if torch.cuda.is_available() else "gloo")
    job = elastic.init(options.batch, options.micro)
    model = model_as_built(options.mixed, options.recompute).to(job.device)
    for block in model.blocks if options.compiled else ():
        block.compile(backend="aot_eager")  # as traced, without generated code, which takes minutes to make
    shard(model, options.mixed)
    model, optimizer = job.prepare(model, optimizer_of(model))
    loader = job.dataloader(Texts(options.samples), shuffle=True, seed=SEED)
    for _ in job.epochs(options.epochs):
        for tokens, wanted in loader:
            optimizer.zero_grad()
            loss, count = loss_of(model, tokens, wanted)
            job.backward(loss, weight=count)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            time.sleep(options.pace)
            if job.sync_gradients:
                norm = whole(norm)
                if job.local_rank == 0:
                    row = {"step": job.step, "loss": job.loss, "norm": norm.item()}
                    with open(folder / f"{os.getpid()}.jsonl", "a") as file:
                        file.write(json.dumps(row) + "\n")
                if (folder / "stop").exists():
                    job.stop()
    ordered = job.dataloader(Texts(options.samples))
    sums = job.evaluate(lambda tokens, wanted: {"squares": model(tokens).square().sum()}, ordered)
    scores = job.gather(lambda tokens, wanted: model(tokens).flatten(1), ordered)
    found = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    if job.is_main:
        end = {"steps": job.step, "model": found, "sums": sums, "scores": scores}
        torch.save(end, folder / "end.pt")


if __name__ == "__main__":
    main()
