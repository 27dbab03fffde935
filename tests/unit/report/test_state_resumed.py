"""A job that went on from a checkpoint is one job: it runs again, its old nodes are gone, its past is still told."""

from __future__ import annotations

from elastic_launcher.events import Event
from elastic_launcher.report.describe import describe
from elastic_launcher.report.history import relate
from elastic_launcher.report.state import fold

MEMBERS = [{"member": 1, "node": 1}]
RUNS = [
    Event("job_started", 100.0, 0, {"name": "bert", "host": "a", "term": 1, "max_nodes": 2}),
    Event("node_started", 101.0, 0, {"node": 1, "members": [1]}),
    Event("generation_formed", 110.0, 1, {"members": MEMBERS, "world_size": 1, "cause": "start"}),
    Event("progress", 120.0, 1, {"step": 50, "epoch": 1, "samples": 3200}),
    Event("checkpoint_saved", 125.0, 1, {"step": 40, "path": "c/step-00000040", "held_seconds": 0.02, "seconds": 0.5}),
    Event("job_finished", 130.0, 1, {"steps": 50, "exit_code": 75, "message": "stopped"}),
    Event("job_started", 200.0, 0, {"name": "bert", "host": "b", "term": 2, "max_nodes": 2, "resumed_step": 40}),
    Event("node_started", 201.0, 0, {"node": 2, "members": [2]}),
]


def test_it_runs_again_from_the_checkpoint() -> None:
    state = fold(RUNS)
    assert (state.step, state.finished, state.world_size) == (40, None, 0)
    assert {number: node.phase for number, node in state.nodes.items()} == {1: "left", 2: "starting"}
    assert fold(RUNS[:6]).outcome == "stopped"
    assert state.outcome == "running"


def test_its_past_is_told_from_its_first_start() -> None:
    history = relate(RUNS)
    assert (history.started_at, history.outcome, history.seconds) == (100.0, "running", 101.0)
    assert [(life.node, life.ended, life.end) for life in history.nodes] == [(1, 30.0, "left"), (2, None, "")]
    assert relate(RUNS[:6]).outcome == "stopped"


def test_what_happened_is_said() -> None:
    assert describe(RUNS[4]) == "step 40 is saved in c/step-00000040 (the training waited 20 ms)"
    assert str(describe(RUNS[6])).startswith("job bert resumes from step 40 on b: ")
