"""Checks retry strategies, most of whose mistakes show only after the first attempt has failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import OUTER_TYPES, Workflow, is_open
from elastic_launcher.lint.expressions.parser import parse
from elastic_launcher.lint.expressions.types import judge
from elastic_launcher.lint.expressions.words import SyntaxFault, Unread

POLICIES = ("Always", "OnFailure", "OnError", "OnTransientError")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_DURATION = re.compile(r"[-+]?[0-9]+|[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
"""Whole seconds, or what Go reads as a time."""
_TIMES = ("duration", "maxDuration", "cap")
_PENDING = ("timeout", "pendingTimeout")
_IS = r"(?:==\s*|(?<!not )\bin\s*\[[^]]*)[\"']{}[\"']"
_NEVER = {
    "OnError": (
        re.compile(rf"lastRetry\.exitCode\)?\s*(?:==|<|>|in\b)|{_IS.format('Failed')}"),
        "what has failed, with whatever exit code, is",
    ),
    "OnFailure": (re.compile(rf"{_IS.format('Error')}|pod deleted"), "a deleted pod, which ends in an error, is"),
}
"""What asks for ends that a policy never retries, and these."""
_LATE = "that shows when an attempt fails, and then nothing is retried"


def check_retries(workflow: Workflow) -> Iterator[Finding]:
    """Finds retry strategies that fail, or never retry, when they are needed."""
    of_all, defaults = workflow.spec.at("retryStrategy"), workflow.spec.at("templateDefaults")
    for strategy in (of_all, defaults.at("retryStrategy")):
        if strategy.there:
            yield from _strategy(strategy)
            yield from _clash(strategy.at("retryPolicy"), strategy.at("expression"))
    said: set[tuple[str, str]] = set()  # of a strategy that several templates have, once
    for template in workflow.templates():
        own = template.at("retryStrategy")
        if own.there:
            yield from _strategy(own)
        for found in _effective(template, own, defaults, of_all):
            if (found.rule, found.where) not in said:
                said.add((found.rule, found.where))
                yield found


def _effective(template: Node, own: Node, defaults: Node, of_all: Node) -> Iterator[Finding]:
    """Finds what is wrong with the strategy that a template has in the end.

    What it says itself is merged with its defaults; the strategy of the whole spec is for those that have none.
    """
    theirs = defaults.at("retryStrategy")
    places = [one for one in (own, theirs) if one.there] or [one for one in (of_all,) if one.there]
    if not places:
        return

    def field(name: str) -> Node:
        return next((one.at(name) for one in places if one.at(name).there), places[0].at(name))

    if own.there:
        yield from _clash(field("retryPolicy"), field("expression"))
    yield from _outer(template, field("expression"))
    yield from _timeouts(template, own, defaults, places[0])


def _strategy(strategy: Node) -> Iterator[Finding]:
    yield from _known(strategy.at("retryPolicy"))
    yield from _limit(strategy.at("limit"))
    yield from _backoff(strategy.at("backoff"))
    if (expression := strategy.at("expression")).text:
        yield from check_expression(expression)


def _known(policy: Node) -> Iterator[Finding]:
    if policy.text and policy.text not in POLICIES:
        near = next((one for one in POLICIES if one.lower() == policy.text.lower()), None)
        fix = f"write {near}" if near else f"write one of {', '.join(POLICIES)}"
        yield finding("retry-policy", policy, f'"{policy.text}" is no retry policy; the API server refuses it', fix)


def _clash(policy: Node, expression: Node) -> Iterator[Finding]:
    """Finds an expression that asks for ends after which its policy does not ask it."""
    asks, ends = _NEVER.get(policy.text, (None, ""))
    if asks is not None and (found := asks.search(expression.text)):
        reason = f"it asks for {found[0]}, and with retryPolicy {policy.text} {ends} not retried, and it is not asked"
        yield finding("retry-expression-policy", expression, reason, "write retryPolicy: Always")


def _limit(limit: Node) -> Iterator[Finding]:
    if limit.text and not is_open(limit.text) and not _WHOLE.fullmatch(limit.text):
        reason = f'"{limit.text}" is no whole number: {_LATE}'
        yield finding("retry-limit", limit, reason, 'write a whole number, for example "3"')


def _backoff(backoff: Node) -> Iterator[Finding]:
    factor = backoff.at("factor")
    if factor.text and not is_open(factor.text) and not _WHOLE.fullmatch(factor.text):
        reason = f'factor "{factor.text}" is no whole number: {_LATE}'
        yield finding("retry-backoff", factor, reason, 'write a whole number, for example "2"')
    for name in _TIMES:
        time = backoff.at(name)
        if time.text and not is_open(time.text) and not _DURATION.fullmatch(time.text):
            reason = f'{name} "{time.text}" is no time: {_LATE}'
            yield finding("retry-backoff", time, reason, 'write seconds or a time, for example "30" or "5m"')


def _outer(template: Node, expression: Node) -> Iterator[Finding]:
    """Finds an expression that asks for what only a template with a pod has."""
    outer = _outer_type(template)
    if outer is not None and any(word in expression.text for word in ("exitCode", "message")):
        reason = (
            f"a {outer} template has no exit code and no message of its own: after any failure within, the "
            'expression sees "-1" and that a child failed'
        )
        yield finding(
            "retry-expression-outer", expression, reason, "move the retryStrategy to the template with the pod"
        )


def _timeouts(template: Node, own: Node, defaults: Node, strategy: Node) -> Iterator[Finding]:
    """Finds time-outs beside a retry strategy, either of which the template may have from elsewhere."""
    if _outer_type(template) is not None:
        return
    for name in _PENDING:
        reason = f"{name} has no effect beside a retryStrategy: the pod may wait for ever"
        fix = f"call this template from a steps template that has the retryStrategy, and keep {name} here"
        if (timeout := template.at(name)).there:
            if not own.there:
                giver = "the whole spec" if strategy.path[-2:-1] == ("spec",) else "templateDefaults"
                reason += f", and {giver} gives it one"
                fix = f"take retryStrategy out of {giver}; {fix}"
            yield finding("timeout-beside-retry", timeout, reason, fix)
        elif own.there and defaults.at(name).there:
            reason += f", and templateDefaults gives it {name}"
            fix = f"take {name} out of templateDefaults; {fix}"
            yield finding("timeout-beside-retry", own, reason, fix)
        elif defaults.at(name).there:
            fix = f"call the templates from a steps template that has the retryStrategy, and keep {name} here"
            yield finding("timeout-beside-retry", defaults.at(name), reason, fix)


def _outer_type(template: Node) -> str | None:
    return next((key for key in OUTER_TYPES if template.at(key).there), None)


def check_expression(expression: Node) -> Iterator[Finding]:
    """Finds what can't work in a retry expression."""
    try:
        for fault in judge(parse(expression.text)):
            yield finding(fault.rule, expression, fault.reason, fault.fix)
    except SyntaxFault as fault:
        reason = f"the expression can't be parsed: {fault}; {_LATE}"
        yield finding("retry-expression-syntax", expression, reason, "mend it")
    except Unread as unread:
        reason = f"the expression has {unread}, which this linter does not know: it was not checked"
        yield finding("retry-expression-unread", expression, reason, "try it with an attempt that fails")
