from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.torch import rng

NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    with rng.preserve():
        yield


def draw() -> tuple[float, ...]:
    """One number of each generator, and one of numpy's that is made in pairs."""
    return random.random(), float(np.random.rand()), float(np.random.randn()), torch.rand(()).item()


@given(st.lists(NUMBERS, max_size=4))
def test_a_derived_number_has_64_bits(parts: list[int]) -> None:
    assert 0 <= rng.derive(*parts) < 2**64


@given(st.lists(NUMBERS, max_size=4), st.lists(NUMBERS, max_size=4))
def test_other_parts_give_another_number(one: list[int], other: list[int]) -> None:
    assert (rng.derive(*one) == rng.derive(*other)) == (one == other)


def test_derived_numbers_are_spread_like_random_ones() -> None:
    numbers = [rng.sample_seed(7, epoch, sample) for epoch in range(3) for sample in range(20_000)]
    bits = np.unpackbits(np.array(numbers, dtype=np.uint64).view(np.uint8).reshape(-1, 8), axis=1)
    assert len(set(numbers)) == len(numbers)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / len(numbers) ** 0.5  # five standard deviations
    flips = np.bitwise_xor(bits[:-1], bits[1:]).sum(axis=1)  # neighbours differ in half of their bits
    assert abs(flips.mean() - 32) < 5 * 4 / len(flips) ** 0.5


def test_steps_ranks_and_samples_have_seeds_of_their_own() -> None:
    seeds = [rng.step_seed(7, step, rank) for step in range(50) for rank in range(50)]
    seeds += [rng.sample_seed(7, epoch, sample) for epoch in range(50) for sample in range(50)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_a_seed_sets_every_generator(seed: int) -> None:
    rng.seed_all(seed)
    drawn = draw()
    draw()
    rng.seed_all(seed)
    assert draw() == drawn


def test_numpys_paired_number_is_seeded_away() -> None:
    rng.seed_all(3)
    first = np.random.randn()
    rng.seed_all(3)
    assert np.random.randn() == first


def test_another_seed_changes_every_generator() -> None:
    rng.seed_all(1)
    drawn = draw()
    rng.seed_all(2)
    assert all(here != there for here, there in zip(draw(), drawn, strict=True))


def test_preserve_restores_every_generator() -> None:
    rng.seed_all(5)
    np.random.randn()  # leaves the other number of the pair waiting
    rng_state = np.random.get_state()[3:]
    with rng.preserve():
        expected = draw()
    with rng.preserve():
        rng.seed_all(6)
        draw()
    assert np.random.get_state()[3:] == rng_state
    assert draw() == expected


def test_preserve_restores_after_an_exception() -> None:
    rng.seed_all(5)
    with rng.preserve():
        expected = draw()
    with pytest.raises(KeyError), rng.preserve():
        rng.seed_all(6)
        raise KeyError
    assert draw() == expected


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Generator, ...]:
    """Generators in the place of two GPUs', of which the second is the current one."""
    generators = (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    return generators


@pytest.mark.parametrize(("device", "seeded"), [("cuda:0", 0), ("cuda:1", 1), ("cuda", 1)])
def test_the_named_gpu_is_seeded(gpus: tuple[torch.Generator, ...], device: str, seeded: int) -> None:
    rng.seed_all(42, torch.device(device))
    assert [generator.initial_seed() for generator in gpus] == [42 if number == seeded else 1 for number in (0, 1)]


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_no_gpu_is_seeded_unasked(gpus: tuple[torch.Generator, ...], device: torch.device | None) -> None:
    rng.seed_all(42, device)
    assert [generator.initial_seed() for generator in gpus] == [1, 1]


def test_preserve_restores_the_current_gpus_generator(gpus: tuple[torch.Generator, ...]) -> None:
    before = gpus[1].get_state()
    with rng.preserve():
        rng.seed_all(42, rng.current_device())
    assert torch.equal(gpus[1].get_state(), before)


def test_a_gpu_that_was_not_used_is_left_alone() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("this process has used its GPU")
    rng.seed_all(42, torch.device("cuda", 0))
    assert rng.current_device() is None and not torch.cuda.is_initialized()
