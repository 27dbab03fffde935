"""Callbacks of `fit`: they run on every rank with the same logs, their state travels, and rank 0 writes files."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.job import current

WRITERS = ("CSVLogger", "TensorBoard", "RemoteMonitor", "ProgbarLogger")
REFUSED = {
    "BackupAndRestore": "the job saves checkpoints, and resumes from them at any number of ranks: leave it out",
    "OrbaxCheckpoint": "the job saves checkpoints, and resumes from them at any number of ranks: leave it out",
}
HOOKS = (
    *(f"on_{what}_{when}" for what in ("epoch", "train_batch") for when in ("begin", "end")),
    *(f"on_test_{when}" for when in ("begin", "end")),
)
SINGLE = (bool, int, float, str, type(None))
PLAIN = (*SINGLE, np.ndarray, np.generic)
MADE_WITH = "_elastic_made_with"
"""The attribute of a callback that keeps what it was made with."""


def check(callbacks: Any) -> list[Any]:
    """Returns callbacks as `fit` takes them: those that write files only do so on rank 0.

    Args:
        callbacks: One, or several in lists, or none.

    Raises:
        TypeError: For one that does what the job does.
    """
    taken = []
    for callback in keras.tree.flatten(callbacks or []):
        names = [kind.__name__ for kind in type(callback).__mro__]
        for name in REFUSED.keys() & names:
            raise TypeError(f"fit takes no {name}: {REFUSED[name]}")
        taken.append(on_main(callback) if set(WRITERS).intersection(names) else callback)
    return taken


def on_main(callback: Any) -> Any:
    """Returns a callback that does nothing but on rank 0: `fit(callbacks=[on_main(MyLogger())])`.

    `fit` does this by itself with Keras' own callbacks that write.

    Where another process becomes rank 0, its callback begins with ``on_train_begin``, in the middle of the training. A
    CSVLogger appends then.
    """
    return OnMain(callback)


class OnMain(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Calls another callback on rank 0 alone.

    Attributes:
        first_epoch: The number of the first epoch of `fit`.
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self.first_epoch = 0
        self._callback = callback
        self._begun = False

    def set_params(self, params: Any) -> None:
        """Passes the parameters on."""
        self._callback.set_params(params)

    def set_model(self, model: Any) -> None:
        """Passes the model on."""
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_end(self, logs: Any = None) -> None:
        """Ends the callback, where it has begun."""
        if self._begun and current().rank == 0:
            self._callback.on_train_end(logs)
        self._begun = False

    def _call(self, hook: str, *arguments: Any) -> None:
        job = current()
        if job.rank != 0:
            return
        if not self._begun:
            self._begun = True
            late = hook != "on_epoch_begin" or job.epoch > 0  # another process was rank 0 before
            if isinstance(self._callback, keras.callbacks.CSVLogger) and late:
                self._callback.append = True
            self._callback.on_train_begin()
            if hook != "on_epoch_begin":
                self._callback.on_epoch_begin(job.epoch + self.first_epoch)
        getattr(self._callback, hook)(*arguments)


def _forward(hook: str) -> Any:
    def call(self: OnMain, *arguments: Any, **named: Any) -> None:
        self._call(hook, *arguments, *named.values())

    call.__name__ = hook
    return call


for _hook in HOOKS:
    setattr(OnMain, _hook, _forward(_hook))


class CallbackState:
    """What a callback remembers in plain values, for joiners and checkpoints; not what it was made with.

    That is the script's: where a job resumes, a path or a patience may be another one.

    Attributes:
        kind: The name of the callback's class.
    """

    def __init__(self, callback: Any) -> None:
        self.kind = type(callback).__name__
        self._callback = callback
        made_with = {name: value for name, value in vars(callback).items() if isinstance(value, (*SINGLE, np.ndarray))}
        self._made_with: dict[str, Any] = vars(callback).setdefault(MADE_WITH, made_with)  # in its first fit

    def state_dict(self) -> dict[str, Any]:
        """Returns its plain attributes, and the names of those that still are what it was made with."""
        kept, as_made = dict[str, Any](), list[str]()
        for name, value in vars(self._callback).items():
            made = self._made_with.get(name, ...)
            if isinstance(value, SINGLE) and (value is made or (type(value) is type(made) and value == made)):
                as_made.append(name)
            elif name not in ("_params", MADE_WITH) and _is_plain(value) and value is not made:
                kept[name] = value
        operator = getattr(self._callback, "monitor_op", None) is not None
        return {"kind": self.kind, "monitors": operator, "attributes": kept, "as_made": as_made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes attributes that `state_dict` has returned.

        Raises:
            ValueError: If they are of another kind of callback.
        """
        here, there = self.kind, state.get("kind")  # older checkpoints do not say it
        if there not in (None, here):
            raise ValueError(
                f"fit has the callback {here} here where it has {there} there: give it the same callbacks in the same "
                "order on all ranks, and where a job resumes"
            )
        monitors = state["monitors"] and getattr(self._callback, "monitor_op", None) is None
        if monitors:
            self._callback._set_monitor_op()  # first: it turns the sign of min_delta, each time
        as_made = {name: self._made_with[name] for name in state.get("as_made", ()) if name in self._made_with}
        vars(self._callback).update(as_made | state["attributes"])


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return isinstance(value, PLAIN)
