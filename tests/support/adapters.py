"""A transformer of six layers whose weights are frozen but for small adapters, and its training."""

from __future__ import annotations

import torch
from torch import nn

from elastic_launcher.torch.state.training_state import TrainingState

WIDTH, WORDS, LAYERS, RANK = 192, 1024, 6, 4


class Adapted(nn.Module):
    """A language model: embedding and head are one weight; the norm's statistics move although it is frozen."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.requires_grad_(False)
        self.adapters = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)) for _ in range(LAYERS)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        for block, adapter in zip(self.blocks, self.adapters, strict=True):
            hidden = block(hidden) + adapter(hidden)
        scores: torch.Tensor = self.head(self.norm(hidden.transpose(1, 2)).transpose(1, 2))
        return scores


def adapted(seed: int = 0) -> TrainingState:
    model = Adapted(seed)
    return TrainingState([model], [torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)])


def thaw_last_block(state: TrainingState) -> None:
    """Has the last block be trained from now on, as in gradual unfreezing."""
    block = state.models[0].blocks[-1].requires_grad_(True)
    state.optimizers[0].add_param_group({"params": list(block.parameters()), "lr": 0.001})


def train(state: TrainingState, first: int, steps: int) -> None:
    (model,), (optimizer,) = state.models, state.optimizers
    for step in range(first, first + steps):
        words = torch.randint(WORDS, (4, 8), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten()).backward()
        optimizer.step()


def sizes(state: TrainingState) -> tuple[int, int]:
    """Returns how many bytes all tensors of a state have, and how many its frozen parameters."""
    frozen = sum(p.nbytes for p in state.models[0].parameters() if not p.requires_grad)
    return sum(t.nbytes for t in state.capture().tensors), frozen
