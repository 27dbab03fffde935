"""Describes an event, and the state of a job, in one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_launcher.events import Event, finite
from elastic_launcher.options import AUTO
from elastic_launcher.report.state import JobState, outcome
from elastic_launcher.report.words import duration, first_line, listing, number, plural, rate, share

CAUSES = {
    "start": "",
    "hint": "because the quota hint changed",
    "notice": "because a node was given notice",
    "failure": "because a node was lost",
    "queue": "because its queue admitted a node",
}
"""Why a generation formed, by its ``cause``."""


def describe(event: Event) -> str | None:
    """Returns one line on what happened, to what, and what follows; None for events that only change numbers."""
    get = event.get
    match event.kind:
        case "job_started":
            begun = "started" if get("resumed_step") is None else f"resumes from step {number(get('resumed_step'))}"
            return f"job {get('name')} {begun} on {get('host')}: {shape(event)}"
        case "coordinator_adopted":
            ranks = plural(len(get("members") or ()), "rank")
            return (
                f"the launcher came back to the running job: {ranks} at step {number(get('step'))} (term {get('term')})"
            )
        case "hint_applied":
            return None if get("renewed") else _hint(event)
        case "node_started":
            above = ", above the guarantee" if get("over_quota") else ""
            meanwhile = "; the others train on meanwhile" if event.generation and not get("others_wait") else ""
            return f"node {get('node')} is starting{_members(event)}{above}{meanwhile}"
        case "node_placed":
            return f"node {get('node')} runs in pod {get('pod')} on machine {get('machine')}"
        case "node_warm":
            return f"node {get('node')} is ready to train"
        case "node_requeued":
            return f"node {get('node')} was taken back by its queue before it trained: it waits to be admitted again"
        case "node_left":
            cause = get("cause")
            return f"node {get('node')} has left" + (f" ({cause})" if cause else "")
        case "notice":
            return f"node {get('node')} was given notice ({get('source')}): it leaves at the next step"
        case "generation_formed":
            return _generation(event)
        case "step_redone":
            return (
                f"step {number(get('step'))} is done again from its first sample: a node was lost in it, or had to go"
            )
        case "batch_changed":
            return _batch(event)
        case "micro_batch_lowered":
            return (
                f"a micro-batch of {plural(get('old') or 0, 'sample')} did not fit into memory ({get('device')}, node "
                f"{get('node')}): at most {number(get('new'))} there from now on"
            )
        case "straggler":
            who = f"rank {get('rank')} (node {get('node')})"
            if get("over"):
                return f"{who} is no longer slower than the others"
            took = duration(finite(get("step_seconds")) or 0.0)
            return f"{who} is {get('factor')} times slower than the others ({took} a step): all wait for it"
        case "silent":
            who = f"rank {get('rank')} (node {get('node')})"
            return f"{who} reports again" if get("over") else None  # the warning beside it says it
        case "checkpoint_saved":
            held = duration(finite(get("held_seconds")) or 0.0)
            return f"step {number(get('step'))} is saved in {get('path')} (the training waited {held})"
        case "events_gap":
            lost = get("lost") or 0
            return f"{plural(lost, 'event')} could not be written before this (is the disk full?); the training went on"
        case "quota_lost":
            why = first_line(get("message")) or "the quota is gone"
            return f"{why}: the job is saved, all nodes end, and it waits for quota"
        case "quota_wait" | "nodes_wait":
            return first_line(get("message")) or f"waiting for {event.kind.removesuffix('_wait')}"
        case "quota_back":
            goes_on = f"; the job resumes from step {number(get('step'))}" if get("step") else ""
            return f"the hints allow the job's minimum after {duration(get('seconds') or 0.0)}{goes_on}"
        case "nodes_taken":
            why = first_line(get("message")) or "too few nodes are left"
            return f"{why}: the job is saved, the nodes that are left end, and others are asked for"
        case "warning":
            return f"warning: {first_line(get('message'))}"
        case "node_failed" | "node_lost":
            return _about_node(event)
        case "hint_rejected" | "hint_missing":
            return first_line(get("message")) or event.kind.replace("_", " ")
        case "job_finished":
            message = first_line(get("message"))
            return f"{outcome(get('exit_code'))} (exit code {get('exit_code')})" + (f": {message}" if message else "")
    return None


def shape(started: Mapping[str, Any]) -> str:
    """Returns what was asked for: nodes, ranks and batch, from the fields of ``job_started``."""
    least, most = started.get("min_nodes"), started.get("max_nodes")
    nodes = plural(most or 0, "node") if least == most else f"{least} to {most} nodes"
    parts = [f"{nodes} of {plural(started.get('nproc_per_node') or 1, 'rank')}"]
    if started.get("global_batch_size"):
        parts.append(f"{number(started['global_batch_size'])} samples a step")
    most = started.get("max_batch_per_gpu")
    if most == AUTO:
        parts.append("as many samples a GPU at a time as fit")
    elif most:
        parts.append(f"at most {number(most)} a GPU at a time")
    return ", ".join(parts)


def quota(numbers: Mapping[str, int]) -> str:
    """Returns a hint's numbers: ``guaranteed 1, allowed 3, limit 3``; empty without any."""
    return ", ".join(f"{name} {value:,}" for name, value in numbers.items())


def position(state: JobState) -> str:
    """Returns epoch and step of how many; where the batch adapts, statistical epochs of how many."""
    epochs = f"/{state.epochs:,}" if state.epochs else ""
    digits = 1 if (state.total_steps or 0) >= 1000 else 0
    steps = f"/{state.total_steps:,} ({done(state):.{digits}%})" if state.total_steps else ""
    if state.statistical_epoch is not None:
        return f"statistical epoch {state.statistical_epoch:,.2f}{epochs}, step {state.step:,}{steps}"
    return f"epoch {state.epoch + 1:,}{epochs}, step {state.step:,}{steps}"


def done(state: JobState) -> float:
    """Returns the share of the training that is done, from 0 to 1; 0 where its length is not known."""
    return min(1.0, state.step / state.total_steps) if state.total_steps else 0.0


def loss(state: JobState) -> str:
    """Returns the loss; empty before the first."""
    return "" if state.loss is None else f"loss {number(state.loss)}"


def speed(state: JobState) -> str:
    """Returns the samples per second; empty before they are known."""
    return f"{rate(state.samples_per_second)} samples/s" if state.samples_per_second else ""


def adaptive(values: Mapping[str, float], rule: str | None) -> str:
    """Returns the values of an adaptive batch, and its learning rates' rule if known; empty for a fixed one."""
    if not values:
        return ""
    by = f" ({rule})" if rule else ""
    parts = [f"{number(values.get('batch'))} samples", f"learning rates × {number(values.get('lr_factor'))}{by}"]
    parts += [f"noise scale {number(values['noise_scale'])}"] if "noise_scale" in values else []
    parts += [f"efficiency {share(values['efficiency'])}"] if "efficiency" in values else []
    return ", ".join(parts)


def time_left(state: JobState) -> str:
    """Returns how long the training will go on; empty where that is not known."""
    left = state.seconds_left
    if left is None:
        return ""
    return f"{duration(round(left))} left" if left >= 1 else "under 1 s left"


def slow(state: JobState) -> str:
    """Returns which ranks hold the others up; empty when none does."""
    ranks = {member["member"]: rank for rank, member in enumerate(state.members)}
    told = [(ranks.get(number), one) for number, one in sorted(state.stragglers.items())]
    return ", ".join(f"rank {rank} (node {one.get('node')}) is {one.get('factor')} times slower" for rank, one in told)


def silent(state: JobState) -> str:
    """Returns the silent ranks; empty if there are none."""
    ranks = {member["member"]: rank for rank, member in enumerate(state.members)}
    told = [f"rank {ranks.get(number)} (node {one.get('node')})" for number, one in sorted(state.silent.items())]
    return f"nothing is heard from {', '.join(told)}" if told else ""


def waiting(state: JobState) -> str:
    """Returns what the job waits for, or which nodes are on their way; empty when none is."""
    if state.waits_for:
        return state.waits_for
    starting = [node.node for node in state.nodes.values() if node.phase == "starting"]
    ready = [node.node for node in state.nodes.values() if node.phase == "warm"]
    parts = [f"{_nodes(numbers)} {what}" for numbers, what in ((starting, "starting"), (ready, "ready")) if numbers]
    return ", ".join(parts)


def _nodes(numbers: list[int]) -> str:
    return ("node " if len(numbers) == 1 else "nodes ") + listing(numbers)


def _members(event: Event) -> str:
    members = event.get("members") or []
    return f" ({'member' if len(members) == 1 else 'members'} {listing(members)})" if members else ""


def _hint(event: Event) -> str:
    numbers = quota(JobState(hint=event.fields).quota)
    target = plural(event.get("target_nodes") or 0, "node")
    which = "" if event.get("hint_generation") is None else f" {event['hint_generation']}"
    what = numbers or "nothing in it is for this job"
    stale = "; it is stale, so the job does not grow until it is renewed" if event.get("stale") else ""
    return f"hint{which}: {what}; the job may have {target}{stale}"


def _generation(event: Event) -> str:
    nodes = [member["node"] for member in event.get("members") or ()]
    cause = str(event.get("cause") or "")
    parts = [
        f"generation {event.generation}: {plural(event.get('world_size') or len(nodes), 'rank')}",
        f" on {_nodes(sorted(set(nodes)))}" if nodes else "",
        f" from step {event['first_step']:,}" if event.get("first_step") is not None else "",
        f" {CAUSES.get(cause, f'({cause})')}" if CAUSES.get(cause, cause) else "",
        "" if event.generation <= 1 else f"; pause {duration(event.get('pause_seconds') or 0.0)}",
    ]
    return "".join(parts)


def _batch(event: Event) -> str:
    gain, noise, reason = event.get("gain"), event.get("noise_scale"), first_line(event.get("reason"))
    known = [f"gain {number(gain)}"] if gain is not None else []
    known += [f"noise scale {number(noise)}"] if noise is not None else []
    known += [f"learning rates by {rule}"] if (rule := event.get("learning_rate_rule")) else []
    said = f" ({', '.join(known)})" if known else ""
    old, new = number(event.get("old")), number(event.get("new"))
    why, since = f": {reason}" if reason else "", f"from step {number(event.get('step'))} on"
    if old == new:
        return f"the global batch stays {new} samples, with new gains {since}{said}{why}"
    return f"the global batch is {new} samples {since}, after {old}{said}{why}"


def _about_node(event: Event) -> str:
    message = first_line(event.get("message")) or event.kind.replace("node_", "was ").replace("was failed", "failed")
    name = f"node {event.get('node')}"
    return message if name in message else f"{name}: {message}"
