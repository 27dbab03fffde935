"""An example of each message of the control API, and of an introduction."""

from __future__ import annotations

from elastic_launcher.control import messages
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Active, Done, Form, Message, Progress, Warm

FORM = Form(3, 2, "grow", (1, 2, 4), (4,), (), {4: 1}, "127.0.0.1:29500", 10.0, "hint")
EXAMPLES: list[Message] = [
    FORM,
    messages.Abandon(3),
    messages.Save(halt=True),
    messages.GoOn(),
    messages.End("over"),
    messages.Fail("boom"),
    messages.Warm({"dataset": "x of 9 samples", "shuffle": True}),
    messages.Formed(3),
    messages.FormFailed(3, "time-out"),
    Active(3, 11, 11, 0, 0.02),
    messages.Left(9),
    Progress(9, 1, 0.5, 100.0, 8, 4, 32, 576, adaptive={"batch": 64.0, "lr_factor": 1.25}),
    messages.Log(9, 1, {"accuracy": 0.5}),
    messages.StepFailed(3, 9, "reset"),
    messages.StepRedone(9),
    messages.BatchChanged(((0, 12), (5, 18)), {5: (1.25, 1.5)}, 40.5, "more GPUs", "adascale"),
    messages.MicroBatchLowered(9, "NVIDIA H100", 64, 32, True),
    messages.StepTimes(
        9, 18, ((1, 2, 9, 1, 0.25, None, 7),), {"base_batch_size": 12, "accumulation": True}, (40.0, 1.5)
    ),
    messages.Saved(9, "checkpoints/step-00000009", 4096, 0.1, 0.5),
    messages.SaveFailed(9, "No space left on device"),
    messages.Halted(9),
    messages.Failed("ValueError: boom", "Traceback"),
    Done(32, 2048, "early stopping", 1),
    messages.PhaseStarted(1, 32, {"0.end.1": {"named": {"loss": 0.5}}}),
    messages.Summed({"0.3.1": 0.5}),
    messages.Ended(32, True, 2048),
]
FULL = Introduction(
    1001, 40, 1, 960, FORM, (FORM,), (3,), 3, (Warm({"dataset": 9}), Active(3, 39, 40)), True, 1, {"0.end.1": 2.5}
)
