"""Data for `fit`, as map-style data sets whose samples are ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from elastic_launcher.keras.backend import keras
from elastic_launcher.torch.data.stock_loader import FORWARD, Data, read_loader

WAYS = "give arrays, or a torch DataLoader of a map-style data set"


def read(
    x: Any, y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None, shuffle: bool, batch: int
) -> Data:
    """Returns the data that Keras' arguments describe.

    Args:
        x: Arrays or tensors (also in lists, tuples and dicts), a torch DataLoader, or a PyDataset.
        y: Targets, where x holds arrays.
        sample_weight: The same.
        class_weight: The weight of each class.
        shuffle: Whether each epoch has an order of its own.
        batch: The global batch size.

    Raises:
        TypeError: For data that can only be read forward, such as generators and tf.data.
        ValueError: For arrays of different lengths, or options that the job decides.
    """
    if isinstance(x, DataLoader):
        _refuse_more("a torch DataLoader", y=y, sample_weight=sample_weight, class_weight=class_weight)
        return read_loader(x)
    if isinstance(x, keras.utils.PyDataset):
        _refuse_more("a PyDataset", y=y, sample_weight=sample_weight, class_weight=class_weight)
        if shuffle:
            raise ValueError("a PyDataset makes whole batches, so its samples stay in its order: pass shuffle=False")
        return Data(Batches(x, batch), False)
    if isinstance(x, IterableDataset) or callable(getattr(x, "__next__", None)):
        raise TypeError(f"fit got a {type(x).__name__}, {FORWARD}; {WAYS}")
    if type(x).__module__.split(".")[0] in ("tensorflow", "grain", "jax"):
        raise TypeError(f"fit got a {type(x).__name__} of {type(x).__module__}; {WAYS}")
    if isinstance(x, Dataset):
        raise TypeError(f"fit got the data set {type(x).__name__} itself, as Keras takes none; {WAYS}")
    return Data(_of_arrays(x, y, sample_weight, class_weight), shuffle)


def _refuse_more(what: str, **more: Any) -> None:
    for name, value in more.items():
        if value is not None:
            raise ValueError(f"{name} can't be given with {what}, whose samples hold all of it")


def _of_arrays(x: Any, y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None) -> Dataset[Any]:
    if class_weight is not None:
        if sample_weight is not None:
            raise ValueError("class_weight and sample_weight can't be given both; multiply them")
        if y is None:
            raise ValueError("class_weight needs y")
        sample_weight = _weights_of_classes(y, class_weight)
    parts = [part for part in (x, y, sample_weight) if part is not None]
    if sample_weight is not None and y is None:
        raise ValueError("sample_weight needs y")
    parts = [keras.tree.map_structure(_tensor, part) for part in parts]
    arrays = keras.tree.flatten(parts)
    if not arrays:
        raise ValueError("fit got no data")
    if any(array.ndim == 0 for array in arrays):
        raise TypeError(
            "fit got single numbers in the place of arrays. A list is one of several inputs or outputs, as in Keras: "
            "call numpy.asarray(x) for a list of numbers"
        )
    sizes = {len(array) for array in arrays}
    if len(sizes) > 1:
        raise ValueError(f"x, y and sample_weight must have as many samples; they have {sorted(sizes)}")
    if all(isinstance(part, torch.Tensor) for part in parts):
        return TensorDataset(*parts)
    return Structures(tuple(parts), len(arrays[0]))


def _tensor(array: Any) -> torch.Tensor:
    """Returns an array as Keras would feed it: floating point numbers have Keras' own type."""
    if not isinstance(array, torch.Tensor):
        array = np.asarray(array)
        backwards = any(stride < 0 for stride in array.strides)  # as in x[::-1], of which torch makes no tensor
        with warnings.catch_warnings():  # nothing writes into it: a data frame's array, or a file's, may be read-only
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            array = torch.as_tensor(array.copy() if backwards else array)
    tensor = array.detach()
    return tensor.to(getattr(torch, keras.config.floatx())) if tensor.is_floating_point() else tensor


def _weights_of_classes(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """Returns each sample's weight: its class is its target, or where that is one-hot its largest entry."""
    classes = np.asarray(y)
    if classes.ndim > 1:
        classes = classes.argmax(-1) if classes.shape[-1] != 1 else classes.squeeze(-1)
    known = [class_weight.get(int(one), 1.0) for one in np.round(classes).ravel()]
    return np.asarray(known, dtype=keras.config.floatx()).reshape(classes.shape)


@dataclass(frozen=True)
class Structures(Dataset[Any]):
    """Samples of tensors in lists, tuples and dicts."""

    parts: tuple[Any, ...]
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(keras.tree.map_structure(lambda array: array[index], part) for part in self.parts)


class Batches(Dataset[Any]):
    """The samples of a PyDataset, whose batches are the global batches; the last one may be smaller."""

    def __init__(self, batches: Any, size: int) -> None:
        self._batches = batches
        self._size = size
        self._made: tuple[int, Any] = (-1, None)
        self._last = len(batches) - 1
        if self._last < 0:
            raise ValueError("the PyDataset has no batch")
        self._length = self._last * size + _length(self._batch(self._last))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        batch = self._batch(index // self._size)
        return tuple(keras.tree.map_structure(lambda array: array[index % self._size], part) for part in batch)

    def _batch(self, number: int) -> tuple[Any, ...]:
        if self._made[0] != number:
            batch = self._batches[number]
            made = tuple(keras.tree.map_structure(_tensor, part) for part in parts_of(batch))
            if _length(made) > self._size or (number != self._last and _length(made) < self._size):
                raise ValueError(
                    f"batch {number} of the PyDataset has {_length(made)} samples; each but the last must have as many "
                    f"as the global batch, {self._size}"
                )
            self._made = number, made
        return self._made[1]  # type: ignore[no-any-return]


def parts_of(batch: Any) -> tuple[Any, ...]:
    """Returns a batch as ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _length(batch: tuple[Any, ...]) -> int:
    return len(keras.tree.flatten(batch)[0])


def split(parts: tuple[Any, Any, Any], share: float) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Divides arrays into those for training and the last ones, for validation.

    Raises:
        ValueError: If the share leaves one of them empty.
        TypeError: If these are no arrays.
    """
    arrays = [one for one in keras.tree.flatten(parts) if one is not None]
    if not all(hasattr(one, "shape") for one in arrays):
        raise TypeError("validation_split needs arrays; give validation_data=")
    count = len(arrays[0])
    first = int(count * (1 - share))
    if not 0 < first < count:
        raise ValueError(f"validation_split={share} of {count} samples leaves nothing to train or to validate with")

    def cut(begin: int, end: int) -> Callable[[Any], Any]:
        return lambda array: None if array is None else array[begin:end]

    divided: Sequence[Any] = [keras.tree.map_structure(cut(*ends), parts) for ends in ((0, first), (first, count))]
    return divided[0], divided[1]
