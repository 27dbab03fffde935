"""Plays one case: starts it, awaits its moment, ends it, and looks at what is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak.cases import LOSSES, TRAINING, Case
from tests.support.launches import Launcher, until
from tests.support.leftovers import END_SECONDS, Stage

LONG = 150.0  # for what comes within seconds, on a machine that is busy
MOST_WORDS = 300  # characters of a failure in its line; the files say the rest
SCRIPT_FAULTS = {
    "an exception on a rank": "exception",
    "a rank kills itself": "kill",
    "a loader worker is killed": "kill worker",
}


@dataclass(frozen=True)
class Outcome:
    """How a case went.

    Attributes:
        case: The case.
        exit_code: The launcher's; None if it did not end.
        seconds: From its start until nothing was left.
        seen: Processes and TCP ports of it that were seen meanwhile.
        problems: What is not as it should be.
    """

    case: Case
    exit_code: int | None
    seconds: float
    seen: tuple[int, int]
    problems: tuple[str, ...]

    @property
    def line(self) -> str:
        """The case and its outcome in one line."""
        case = self.case
        verdict = f"FAILED: {'; '.join(self.problems)}" if self.problems else "nothing left"
        found = f"{verdict} (processes seen: {self.seen[0]}, ports: {self.seen[1]})"
        text = f"{case.number:03d} {case.kind}: {case.details}: exit {self.exit_code}, {self.seconds:.1f} s, {found}"
        return " ".join(text.split())


def play(case: Case, root: Path) -> Outcome:
    """Plays a case in an empty folder."""
    stage = Stage(root, "j" * 70 if case.long_path else "job")
    began = time.monotonic()
    code, problems = None, []
    try:
        with stage.launched(*_options(case, stage), script=_arguments(case)) as launcher:
            _come_to(case, launcher, stage)
            _end(case, launcher, stage)
            code = launcher.wait(LONG)
            # a starting node's patience begins with its first try to reach the launcher
            patience = LONG if case.end == "SIGKILL" else END_SECONDS
            problems += stage.left(patience)
            problems += _contradictions(case, launcher, code)
    except AssertionError as error:
        problems.append(str(error)[:MOST_WORDS])
    return Outcome(case, code, time.monotonic() - began, (len(stage.seen), len(stage.ports)), tuple(problems))


def _options(case: Case, stage: Stage) -> list[str]:
    least = 1 if case.change else case.nodes
    options = [f"--nodes={least}:{max(case.nodes, case.to)}", f"--nproc-per-node={case.nproc_per_node}"]
    if case.change:
        _hint(stage, case.nodes)
        options.append("--hints=hints.json")
    if case.end == "SIGKILL":
        options.append(f"--orphan-timeout={case.orphan_timeout}")
    return options


def _arguments(case: Case) -> tuple[str, ...]:
    arguments = [f"--workers={case.workers}"]
    if case.end == "its epochs are over":
        arguments.append(f"--epochs={case.step}")
    if case.end in SCRIPT_FAULTS:
        arguments += [f"--fault={SCRIPT_FAULTS[case.end]}", f"--rank={case.rank}", f"--step={case.step}"]
        arguments += ["--late"] * case.late
    return tuple(arguments)


def _hint(stage: Stage, nodes: int) -> None:
    """Edits the hints file as an administrator would: aside, then in one move."""
    aside = stage.here / "hints.new"
    aside.write_text(json.dumps({"default": str(nodes)}))
    os.replace(aside, stage.here / "hints.json")


def _come_to(case: Case, launcher: Launcher, stage: Stage) -> None:
    """Resizes the job if the case says so, and awaits its moment."""
    events, before = launcher.events, 0
    if case.change:
        _await(
            launcher, lambda: any(e["world_size"] == case.nodes for e in events.of("generation_formed")), "all nodes"
        )
        stage.look()
        before = len(events.of(case.moment))
        if case.change == "notice":
            os.kill(launcher.node_pid(_noticed(case)), signal.SIGTERM)
        else:
            _hint(stage, case.to)
    match case.moment:
        case "":
            pass
        case "claimed":
            _await(launcher, (launcher.work_dir / "job.json").exists, "the work directory is claimed")
        case "agent_started":
            _await(launcher, (launcher.work_dir / "nodes" / "1.json").exists, "the first agent runs")
        case "progress":
            _await_step(case, launcher)
        case kind:
            _await(launcher, lambda: len(events.of(kind)) > before, f"event {kind}")
    if case.moment in TRAINING and not case.change:  # elsewhere a look would take the moment
        stage.look()


def _await(launcher: Launcher, condition: Callable[[], bool], what: str) -> None:
    """Waits for something; fails at once if the launcher ends before it."""
    until(lambda: condition() or launcher.process.poll() is not None, what, LONG)
    assert condition(), f"the launcher ended before this: {what}: {_last_words(launcher)}"


def _await_step(case: Case, launcher: Launcher) -> None:
    steps = launcher.events
    _await(launcher, lambda: any(event["step"] >= case.step for event in steps.of("progress")), f"step {case.step}")


def _last_words(launcher: Launcher) -> str:
    return (launcher.stderr.splitlines() or [""])[-1]


def _end(case: Case, launcher: Launcher, stage: Stage) -> None:
    """Does what ends the launch, unless its script does."""
    match case.end:
        case "the script stops it":
            (stage.here / "stop").touch()
        case "SIGKILL":
            launcher.process.kill()
        case "SIGTERM":
            launcher.process.terminate()
        case "SIGINT" | "SIGINT, again at once" | "SIGINT, again when the job is over":
            launcher.process.send_signal(signal.SIGINT)
            if case.end == "SIGINT, again when the job is over":
                until(
                    lambda: launcher.events.of("job_finished") or launcher.process.poll() is not None, "its end", LONG
                )
            if case.end != "SIGINT":
                launcher.process.send_signal(signal.SIGINT)
        case "a rank is killed":
            os.kill(_pid_of_rank(case, launcher), signal.SIGKILL)
        case "an agent is killed":
            os.kill(launcher.node_pid(case.rank + 1), signal.SIGKILL)
        case "a rank kills itself":
            pass
        case "a starting agent is killed, then the script stops it":
            os.kill(launcher.node_pid(case.rank + 1), signal.SIGKILL)
            _await_step(case, launcher)
            (stage.here / "stop").touch()
    if case.end in LOSSES:
        _stop_once_formed_again(launcher, stage)


def _stop_once_formed_again(launcher: Launcher, stage: Stage) -> None:
    """Has the script stop when the job trains on after a loss."""

    def formed() -> bool:
        return any(event["cause"] == "failure" for event in launcher.events.of("generation_formed"))

    until(lambda: formed() or launcher.process.poll() is not None, "the survivors train on, or the job ends", LONG)
    (stage.here / "stop").touch()


def _pid_of_rank(case: Case, launcher: Launcher) -> int:
    """Returns the process of a rank; in a resize, of the oldest that is not about to leave."""
    members = [m | {"node": n["node"]} for n in launcher.status()["nodes"] for m in n["members"]]
    ranks = [member for member in members if member["rank"] is not None]
    if case.change:
        chosen = next(member for member in ranks if not (case.change == "notice" and member["node"] == _noticed(case)))
    else:
        chosen = next(member for member in ranks if member["rank"] == case.rank)
    return int(chosen["pid"])


def _noticed(case: Case) -> int:
    return case.number % case.nodes + 1


def _contradictions(case: Case, launcher: Launcher, code: int) -> list[str]:
    """Returns what the launch says of itself that is not as it ended."""
    found = []
    if code != case.exit_code:
        found.append(f"exit code {code} instead of {case.exit_code} ({_last_words(launcher)})")
    events = launcher.events.all()
    if "a starting agent" in case.end and "node_failed" not in {event["kind"] for event in events}:
        found.append("no event tells of the agent that was killed")
    finished = [event["exit_code"] for event in events if event["kind"] == "job_finished"]
    expected = [code] if events and code != -signal.SIGKILL else []
    if finished != expected or (finished and events[-1]["kind"] != "job_finished"):
        found.append(f"events end with {[event['kind'] for event in events[-3:]]}, job_finished with {finished}")
    if (launcher.work_dir / "tmp").exists():
        found.append("temporary files in the work directory")
    return found
