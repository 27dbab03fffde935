"""The order of samples in an epoch as a function of (seed, epoch, position), with no permutation in memory.

The order is a keyed permutation: a Feistel network over a·b ≥ n with a ≈ b ≈ √n (the generalized network of Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, §5), whose rare values of n or more are sent through it again
until they fall below (cycle walking).

Invariant: an epoch's order is a permutation, the sample at a position doesn't depend on the slice it is asked for in,
and the orders can't be distinguished from a true shuffle's. An order never changes: trainings in progress rely on it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from elastic_launcher.batch import whole_number

# Even. Over 40,000 orders of 65, 72 and 81 samples neighbours were seen to be off after 4 and 6 rounds, after 8 not.
ROUNDS = 8
SMALL = 64  # up to here the order is shuffled as a whole: so few numbers are no permutation of a data set
BLOCK = 2**16  # positions worked on at a time: what a long slice needs beside its result stays small, and in the cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1

Indices = NDArray[np.int64]


def _mix(value: int) -> int:
    """Spreads a number over 64 bits (the finalizer of splitmix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _round_keys(seed: int, epoch: int, size: int) -> list[np.uint64]:
    """Derives the rounds' keys."""
    state = _mix(_mix(_mix(seed & _MASK) ^ (epoch & _MASK)) ^ size)
    keys = []
    for _ in range(ROUNDS):
        state = _mix(state)
        keys.append(np.uint64(state))
    return keys


def _mix_array(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    mixed = (values ^ key) * _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _permute(values: NDArray[np.uint64], a: np.uint64, b: np.uint64, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Applies the permutation of range(a·b) to each value."""
    left, right = values % a, values // a
    for number, key in enumerate(keys):
        modulus = a if number % 2 == 0 else b
        left, right = right, (left + _mix_array(right, key) % modulus) % modulus
    return left + a * right


def _small(size: int, seed: int, epoch: int) -> Indices:
    """Returns the whole order of a few samples, where a network has too few states to be uniform."""
    state = _mix(_mix(_mix(seed & _MASK) ^ (epoch & _MASK)) ^ size)
    order = list(range(size))
    for last in range(size - 1, 0, -1):  # Fisher and Yates
        state = _mix(state)
        other = state % (last + 1)
        order[last], order[other] = order[other], order[last]
    return np.array(order, dtype=np.int64)


def indices(dataset_size: int, seed: int, epoch: int, start: int, stop: int, shuffle: bool = True) -> Indices:
    """Returns the samples at the positions from ``start`` up to ``stop`` of an epoch's order.

    Time and memory grow with ``stop - start`` alone.

    Args:
        dataset_size: Samples in the data set.
        seed: Of the training; any whole number (modulo 2⁶⁴).
        epoch: Counted from 0; each has an order of its own.
        start: First position.
        stop: The position after the last one, at most ``dataset_size``.
        shuffle: Whether there is an order at all; without it positions are indices.

    Raises:
        ValueError: If an argument is not a whole number, or the positions are not within the data set.
    """
    dataset_size = whole_number("dataset_size", dataset_size)
    seed = whole_number("seed", seed, None)
    epoch = whole_number("epoch", epoch, 0)
    start = whole_number("start", start, 0)
    stop = whole_number("stop", stop, 0)
    if not start <= stop <= dataset_size:
        raise ValueError(f"positions {start} to {stop} are not within a data set of {dataset_size} samples")
    if not shuffle:
        return np.arange(start, stop, dtype=np.int64)
    if dataset_size <= SMALL:
        return _small(dataset_size, seed, epoch)[start:stop]
    root = math.isqrt(dataset_size - 1) + 1
    a, b = np.uint64(root), np.uint64(-(-dataset_size // root))
    keys = _round_keys(seed, epoch, dataset_size)
    found = np.empty(stop - start, dtype=np.int64)
    for first in range(start, stop, BLOCK):
        values = _permute(np.arange(first, min(first + BLOCK, stop), dtype=np.uint64), a, b, keys)
        while (outside := values >= dataset_size).any():
            values[outside] = _permute(values[outside], a, b, keys)
        found[first - start : first - start + BLOCK] = values
    return found


def uniform(seed: int, epoch: int, start: int, stop: int) -> NDArray[np.float64]:
    """Returns random numbers from 0 up to 1 for the positions from ``start`` up to ``stop`` of an epoch.

    Each is a function of seed, epoch and position.
    """
    first, second = _round_keys(seed, epoch, 0)[:2]
    mixed = _mix_array(_mix_array(np.arange(start, stop, dtype=np.uint64), first), second)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
