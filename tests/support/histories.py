"""Jobs that never ran, told in events as the coordinator would: what reports are made of in tests, and looked at."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from elastic_launcher.events import Event

START = 1_795_244_000.0
SAMPLES = 256


class Story:
    """Tells a job event by event; its clock moves with ``later`` and ``train``.

    Args:
        seed: Of the noise in loss and speed.
        job: Fields of ``job_started`` that differ from the usual ones.
    """

    def __init__(self, seed: int = 1, **job: Any) -> None:
        self.events: list[Event] = []
        self.now = START
        self.step = 0
        self.generation = 0
        self.total_steps: int | None = job.pop("total_steps", 1200)
        self.steps_per_epoch: int = job.pop("steps_per_epoch", 50)
        self.nodes: list[int] = []
        self.size: int = job.get("nproc_per_node", 1)
        self._random = random.Random(seed)
        usual = {
            "job_id": "bert-20261121-063320-1f2e",
            "name": "bert",
            "command": ["train.py", "--epochs", "24"],
            "min_nodes": 1,
            "max_nodes": 3,
            "nproc_per_node": 1,
            "global_batch_size": SAMPLES,
            "max_batch_per_gpu": 64,
            "host": "trainer-0",
            "pid": 4242,
            "version": "0.1.0",
        }
        self.add("job_started", **(usual | job))

    def add(self, kind: str, **fields: Any) -> Story:
        self.events.append(Event(kind, self.now, self.generation, fields))
        return self

    def later(self, seconds: float) -> Story:
        self.now += seconds
        return self

    def hint(self, guaranteed: int | None, allowed: int | None, limit: int | None, **more: Any) -> Story:
        numbers = {"guaranteed": guaranteed, "allowed": allowed, "limit": limit}
        count = sum(event.kind == "hint_applied" for event in self.events) + 1
        usual = {"hint_generation": count, "target_nodes": (allowed or 0) // self.size, "source": "hints.json"}
        return self.add("hint_applied", **numbers, **(usual | {"match": "hints[0]", "stale": False} | more))

    def members(self, node: int) -> list[int]:
        return [(node - 1) * self.size + place + 1 for place in range(self.size)]

    def start_nodes(self, *nodes: int) -> Story:
        for node in nodes:
            self.add("node_started", node=node, members=self.members(node)).later(0.01)
        return self

    def warm(self, *nodes: int) -> Story:
        for node in nodes:
            self.add("node_warm", node=node).later(0.05)
        return self

    def form(self, *nodes: int, cause: str = "hint", pause: float = 0.031) -> Story:
        joined = [node for node in nodes if node not in self.nodes]
        left = [node for node in self.nodes if node not in nodes]
        self.later(pause)
        self.nodes, self.generation = list(nodes), self.generation + 1
        members = [{"member": member, "node": node} for node in nodes for member in self.members(node)]
        return self.add(
            "generation_formed",
            formation=self.generation,
            world_size=len(members),
            nodes=len(nodes),
            members=members,
            cause=cause,
            first_step=self.step,
            pause_seconds=0.0 if self.generation == 1 else pause,
            joined=joined,
            left=left,
        )

    def train(
        self, seconds: float, steps_a_second: float = 4.0, every: float = 1.0, loss: Any = None, **more: Any
    ) -> Story:
        end = self.now + seconds
        while self.now + every <= end + 1e-9:
            self.now += every
            steps = max(1, round(steps_a_second * len(self.nodes) * every * self._random.uniform(0.85, 1.1)))
            self.step += steps
            curve = 2.3 * math.exp(-self.step / 250) + 0.05 + self._random.uniform(-0.02, 0.02)
            self.add(
                "progress",
                step=self.step,
                epoch=self.step // self.steps_per_epoch,
                loss=curve if loss is None else loss,
                samples_per_second=round(steps * SAMPLES / every, 2),
                steps_per_epoch=self.steps_per_epoch,
                epochs=None if self.total_steps is None else self.total_steps // self.steps_per_epoch,
                total_steps=self.total_steps,
                samples=self.step * SAMPLES,
                world_size=len(self.nodes) * self.size,
                **more,
            )
        return self

    def finish(self, exit_code: int = 0, message: str = "") -> Story:
        said = message or f"done: {self.step} steps, {self.step * SAMPLES} samples"
        self.later(1.2)
        return self.add(
            "job_finished",
            steps=self.step,
            samples=self.step * SAMPLES,
            exit_code=exit_code,
            message=said,
        )


def resized() -> Story:
    """1 -> 3 -> 2 nodes, by a hint and by notice; ends well."""
    story = Story().hint(1, 1, 3).start_nodes(1).later(3.1).warm(1).form(1, cause="start").train(9)
    story.hint(1, 3, 3).start_nodes(2, 3).train(5).warm(3, 2).form(1, 2, 3).train(14)
    story.add("log", step=story.step, values={"test_accuracy": 0.9811, "test_loss": 0.0612})
    story.add("notice", node=1, source="signal").later(0.2).add("node_left", node=1, cause="notice")
    return story.form(2, 3, cause="notice", pause=0.012).train(16).finish()


def troubled() -> Story:
    """Everything that can go wrong without ending a job, and then what ends it."""
    story = Story(name="llm <b>&amp;|`x`", total_steps=None, max_nodes=5, hints="/etc/hints.json")
    story.hint(1, 2, 8).start_nodes(1, 2).later(4).warm(1, 2).form(1, 2, cause="start").train(20)
    story.add("hint_rejected", message='hints: hints.json: "allowed" is -2 (hints[3].gpus.allowed); it must be a whole')
    story.train(8).hint(1, 4, 4).start_nodes(3, 4).train(6).warm(3)
    story.add("node_failed", node=4, message="node 4 failed: ModuleNotFoundError: no module named 'apex'").later(0.4)
    story.form(1, 2, 3, pause=2.4).add("step_redone", step=story.step).train(9)
    story.train(6, loss="nan").train(1).train(4, loss="inf").train(6)
    story.add("events_gap", lost=17).train(4).hint(1, 3, 3, stale=True, target_nodes=3)
    story.add("warning", message="no word from member 3 (rank 2, node 3) for 15 s").train(9)
    story.add("hint_missing", message="hints: hints.json: it is not there. The last good document stays in force.")
    story.train(5).add("log", step=story.step, values={"accuracy": "nan", "perplexity": 12.25})
    message = (
        "rank 2 (member 3, node 3) was killed by SIGKILL; losing a node without notice ends the job, nothing was saved"
    )
    story.add("node_lost", node=3, message=message)
    return story.finish(1, f"{message}\nLast lines of logs/3-0.log:\n  File <train.py>\n  ```Killed```")


def interrupted() -> Story:
    """A job that loses a node, its quota and its launcher, and goes on each time."""
    story = Story().hint(1, 3, 3).start_nodes(1, 2).later(4).warm(1, 2).form(1, 2, cause="start").train(12)
    story = _saved(story)
    story.train(3).add("node_lost", node=2, member=2, signal=9, message="node 2 was killed by SIGKILL after step 130")
    story.later(0.3).form(1, cause="failure", pause=0.6).add("step_redone", step=story.step).start_nodes(3).train(4)
    story.warm(3).form(1, 3, cause="failure", pause=0.04).train(9)
    story.add("notice", node=3, source="signal").form(1, cause="notice", pause=0.01)
    story.add("node_left", node=3, cause="notice").train(6).hint(1, 0, 3)
    story.add("quota_lost", step=story.step, message="hints: hints.json allows 0 GPUs, and the job needs at least 1")
    _saved(story).add("node_left", node=1, cause="quota").later(0.5)
    story.add("quota_wait", step=story.step, message="waiting for quota, without any process, up to 600 s: 0 GPUs")
    story.later(14).hint(1, 2, 3).add("quota_back", step=story.step, seconds=14.0).start_nodes(4).later(3).warm(4)
    story.nodes = []
    story.form(4, cause="start", pause=0).train(10)
    step = _saved(story).step
    story.train(5).later(8)
    story.step = step
    story.add("job_started", name="bert", resumed_step=step, term=2).start_nodes(5).later(3).warm(5)
    story.nodes = []
    return story.form(5, cause="start", pause=0).train(8).finish()


def _saved(story: Story) -> Story:
    folder = f"job/checkpoints/step-{story.step:08}"
    story.later(0.8)
    return story.add("checkpoint_saved", step=story.step, path=folder, bytes=12_400_000, held_seconds=0.12, seconds=0.8)


def week(days: float = 7.0, resizes: int = 60) -> Story:
    """A long job of 8 ranks a node that was resized again and again."""
    story = Story(nproc_per_node=8, max_nodes=8, name="pretrain", total_steps=1_000_000, steps_per_epoch=10_000)
    story.hint(16, 16, 64).start_nodes(1, 2).later(40).warm(1, 2).form(1, 2, cause="start", pause=0)
    nodes, newest, chance = [1, 2], 2, random.Random(5)
    for _ in range(resizes):
        story.train(days * 86400 / (resizes + 1) * chance.uniform(0.3, 1.7), steps_a_second=0.3, every=60)
        wanted = chance.choice([size for size in (1, 2, 3, 4, 6, 8) if size != len(nodes)])
        story.hint(16, wanted * 8, 64)
        if wanted > len(nodes):
            joiners = list(range(newest + 1, newest + 1 + wanted - len(nodes)))
            newest = joiners[-1]
            story.start_nodes(*joiners).later(35).warm(*joiners)
            nodes = nodes + joiners
        else:
            for node in nodes[wanted:]:
                story.add("node_left", node=node, cause="hint")
            nodes = nodes[:wanted]
        story.form(*nodes, pause=chance.uniform(0.02, 0.4))
    return story.train(days * 86400 / (resizes + 1), steps_a_second=0.3, every=60)


def write(events: list[Event], work_dir: Path) -> Path:
    """Writes events as a work directory has them, and returns it."""
    work_dir.mkdir(parents=True, exist_ok=True)
    (work_dir / "events.jsonl").write_text("".join(event.to_line() for event in events))
    return work_dir


def write_job(work_dir: Path, **owner: Any) -> Path:
    """Writes ``job.json`` as the launcher does before anything happens, and returns the work directory."""
    work_dir.mkdir(parents=True, exist_ok=True)
    config = {"script": "train.py", "name": "bert", "min_nodes": 1, "max_nodes": 3}
    document = {"v": 1, "id": "bert-20261121-063320-1f2e", "created": START, "config": config, **owner}
    (work_dir / "job.json").write_text(json.dumps(document))
    return work_dir


def waiting() -> Story:
    """A job whose nodes are still on their way."""
    return Story().hint(1, 2, None).start_nodes(1, 2).later(2).warm(2)


def plain() -> Story:
    """A job without hints, of one size, that logs many values."""
    story = Story(name="a-rather-long-name-of-a-job-that-somebody-gave", max_nodes=1).start_nodes(1).later(2).warm(1)
    story.form(1, cause="start").train(30)
    return story.add("log", step=story.step, values={f"value_{n}": n / 7e4 for n in range(9)}).finish()
