"""One line for people: each kind of event, and where a job stands."""

from __future__ import annotations

import pytest

from elastic_launcher.events import KINDS, Event
from elastic_launcher.report.describe import describe, shape, waiting
from elastic_launcher.report.state import fold
from tests.support import histories

MEMBERS = [{"member": 1, "node": 1}, {"member": 2, "node": 2}, {"member": 3, "node": 3}]
SAID = [
    (
        Event("hint_applied", 0, 0, {"guaranteed": 1, "allowed": 3, "limit": None, "target_nodes": 3}),
        "hint: guaranteed 1, allowed 3; the job may have 3 nodes",
    ),
    (
        Event("hint_applied", 0, 0, {"hint_generation": 7, "allowed": 1, "target_nodes": 1, "stale": True}),
        "hint 7: allowed 1; the job may have 1 node; it is stale, so the job does not grow until it is renewed",
    ),
    (
        Event("hint_applied", 0, 1, {"hint_generation": 8, "target_nodes": 2}),
        "hint 8: nothing in it is for this job; the job may have 2 nodes",
    ),
    (Event("hint_applied", 0, 1, {"hint_generation": 9, "target_nodes": 2, "renewed": True}), None),
    (Event("hint_rejected", 0, 0, {"message": "hints: h.json: no JSON"}), "hints: h.json: no JSON"),
    (Event("node_started", 0, 0, {"node": 1, "members": [1]}), "node 1 is starting (member 1)"),
    (
        Event("node_started", 0, 1, {"node": 2, "members": [2], "over_quota": True}),
        "node 2 is starting (member 2), above the guarantee; the others train on meanwhile",
    ),
    (Event("node_started", 0, 1, {"node": 2, "members": [2], "others_wait": True}), "node 2 is starting (member 2)"),
    (
        Event("node_started", 0, 1, {"node": 2, "members": [3, 4, 5]}),
        "node 2 is starting (members 3-5); the others train on meanwhile",
    ),
    (
        Event("node_placed", 0, 1, {"node": 2, "pod": "bert-x-2-abcde", "machine": "m-1"}),
        "node 2 runs in pod bert-x-2-abcde on machine m-1",
    ),
    (Event("node_warm", 0, 1, {"node": 2}), "node 2 is ready to train"),
    (
        Event("coordinator_adopted", 0, 2, {"term": 2, "step": 41, "members": MEMBERS}),
        "the launcher came back to the running job: 3 ranks at step 41 (term 2)",
    ),
    (Event("node_left", 0, 1, {"node": 2, "cause": "hint"}), "node 2 has left (hint)"),
    (
        Event("notice", 0, 1, {"node": 2, "source": "signal"}),
        "node 2 was given notice (signal): it leaves at the next step",
    ),
    (Event("node_failed", 0, 1, {"node": 4, "message": "node 4 failed: no apex"}), "node 4 failed: no apex"),
    (Event("node_lost", 0, 1, {"node": 4, "message": "killed by SIGKILL\nmore"}), "node 4: killed by SIGKILL"),
    (
        Event(
            "generation_formed",
            0,
            2,
            {"world_size": 3, "members": MEMBERS, "cause": "hint", "first_step": 1024, "pause_seconds": 0.031},
        ),
        "generation 2: 3 ranks on nodes 1-3 from step 1,024 because the quota hint changed; pause 31 ms",
    ),
    (
        Event("generation_formed", 0, 1, {"world_size": 1, "members": MEMBERS[:1], "cause": "start", "first_step": 0}),
        "generation 1: 1 rank on node 1 from step 0",
    ),
    (
        Event("step_redone", 0, 1, {"step": 17}),
        "step 17 is done again from its first sample: a node was lost in it, or had to go",
    ),
    (
        Event(
            "batch_changed",
            0,
            1,
            {"step": 1200, "old": 64, "new": 128, "gain": 1.4, "noise_scale": 310.0, "reason": "a"},
        ),
        "the global batch is 128 samples from step 1,200 on, after 64 (gain 1.4, noise scale 310): a",
    ),
    (
        Event("batch_changed", 0, 1, {"step": 12, "old": 64, "new": 32, "learning_rate_rule": "sqrt"}),
        "the global batch is 32 samples from step 12 on, after 64 (learning rates by sqrt)",
    ),
    (
        Event("micro_batch_lowered", 0, 1, {"step": 12, "node": 3, "device": "NVIDIA T4", "old": 64, "new": 32}),
        "a micro-batch of 64 samples did not fit into memory (NVIDIA T4, node 3): at most 32 there from now on",
    ),
    (
        Event("batch_changed", 0, 1, {"step": 76, "old": 64, "new": 64, "gain": 1.7, "reason": "gain 1.6 → 1.7"}),
        "the global batch stays 64 samples, with new gains from step 76 on (gain 1.7): gain 1.6 → 1.7",
    ),
    (
        Event("straggler", 0, 1, {"rank": 2, "node": 3, "factor": 2.5, "step_seconds": 0.4, "over": False}),
        "rank 2 (node 3) is 2.5 times slower than the others (400 ms a step): all wait for it",
    ),
    (
        Event("straggler", 0, 1, {"rank": 2, "node": 3, "over": True}),
        "rank 2 (node 3) is no longer slower than the others",
    ),
    (Event("warning", 0, 1, {"message": "no word from member 3"}), "warning: no word from member 3"),
    (
        Event("events_gap", 0, 1, {"lost": 1}),
        "1 event could not be written before this (is the disk full?); the training went on",
    ),
    (
        Event("job_finished", 0, 1, {"exit_code": 0, "message": "done: 3 steps"}),
        "finished (exit code 0): done: 3 steps",
    ),
    (
        Event("quota_lost", 0, 1, {"message": "0 GPUs"}),
        "0 GPUs: the job is saved, all nodes end, and it waits for quota",
    ),
    (Event("quota_wait", 0, 0, {"step": 9, "message": "waiting for quota"}), "waiting for quota"),
    (
        Event("quota_back", 0, 0, {"step": 9, "seconds": 61.0}),
        "the hints allow the job's minimum after 1 min 01 s; the job resumes from step 9",
    ),
    (Event("job_finished", 0, 1, {"exit_code": 75}), "stopped (exit code 75)"),
    (Event("progress", 0, 1, {"step": 3}), None),
    (Event("log", 0, 1, {"step": 3, "values": {"a": 1}}), None),
    (Event("of_a_later_version", 0, 1, {"what": 1}), None),
]


@pytest.mark.parametrize(("event", "line"), SAID)
def test_what_happened(event: Event, line: str | None) -> None:
    assert describe(event) == line


def test_the_start_says_what_was_asked_for() -> None:
    (event,) = histories.Story().events
    assert describe(event) == (
        "job bert started on trainer-0: 1 to 3 nodes of 1 rank, 256 samples a step, at most 64 a GPU at a time"
    )
    found = {"min_nodes": 2, "max_nodes": 2, "max_batch_per_gpu": "auto"}
    assert shape(found) == "2 nodes of 1 rank, as many samples a GPU at a time as fit"


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_that_lacks_all_fields_is_told_in_one_line(kind: str) -> None:
    line = describe(Event(kind, 0.0, 1, {}))
    assert line is None or ("\n" not in line and line.strip())


def test_which_nodes_are_on_their_way() -> None:
    assert waiting(fold(histories.waiting().start_nodes(3, 4).events)) == "nodes 1, 3, 4 starting, node 2 ready"
    assert waiting(fold(histories.resized().events)) == ""
