"""Will a retry strategy do what it says? Most of its mistakes show only once the first attempt has failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.expression import parse
from elastic_launcher.lint.expression_types import judge
from elastic_launcher.lint.expression_words import SyntaxFault, Unread
from elastic_launcher.lint.finding import Finding, finding
from elastic_launcher.lint.tree import Node
from elastic_launcher.lint.workflow import OUTER_TYPES, Workflow, is_open

POLICIES = ("Always", "OnFailure", "OnError", "OnTransientError")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_DURATION = re.compile(r"[-+]?[0-9]+|[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
"""Whole seconds, or what Go reads as a time."""
_TIMES = ("duration", "maxDuration", "cap")
_PENDING = ("timeout", "pendingTimeout")
_LATE = "that shows when an attempt fails, and then nothing is retried"


def check_retries(workflow: Workflow) -> Iterator[Finding]:
    """Finds retry strategies that fail, or never retry, when they are needed."""
    if (strategy := workflow.spec.at("retryStrategy")).there:
        yield from _strategy(strategy)
    defaults = workflow.spec.at("templateDefaults")
    for template in workflow.all_templates():
        if (strategy := template.at("retryStrategy")).there:
            yield from _strategy(strategy)
            yield from _outer(template, strategy.at("expression"))
        yield from _timeouts(template, defaults)


def _strategy(strategy: Node) -> Iterator[Finding]:
    yield from _policy(strategy)
    yield from _limit(strategy.at("limit"))
    yield from _backoff(strategy.at("backoff"))
    if (expression := strategy.at("expression")).text:
        yield from check_expression(expression)


def _policy(strategy: Node) -> Iterator[Finding]:
    policy, expression = strategy.at("retryPolicy"), strategy.at("expression")
    if policy.text and policy.text not in POLICIES:
        near = next((one for one in POLICIES if one.lower() == policy.text.lower()), None)
        fix = f"write {near}" if near else f"write one of {', '.join(POLICIES)}"
        yield finding("retry-policy", policy, f'"{policy.text}" is no retry policy; the API server refuses it', fix)
    elif expression.text and policy.text != "Always":
        said = (
            f'retryPolicy is "{policy.text}"' if policy.text else "no retryPolicy is given, and a cluster may set one"
        )
        reason = (
            f"{said}: where it forbids a retry, as after a failed or after a deleted pod, the expression isn't asked"
        )
        yield finding("retry-expression-policy", expression, reason, "write retryPolicy: Always beside it")


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


def _timeouts(template: Node, defaults: Node) -> Iterator[Finding]:
    """Finds time-outs beside a retry strategy, of which the template's defaults may give one."""
    own = template.at("retryStrategy")
    if _outer_type(template) is not None or not (own.there or defaults.at("retryStrategy").there):
        return
    for name in _PENDING:
        timeout = template.at(name)
        reason = f"{name} has no effect beside a retryStrategy: the pod may wait for ever"
        fix = f"call this template from a steps template that has the retryStrategy, and keep {name} here"
        if timeout.there:
            if not own.there:
                reason += ", and templateDefaults gives it one"
                fix = f"take retryStrategy out of templateDefaults; {fix}"
            yield finding("timeout-beside-retry", timeout, reason, fix)
        elif own.there and defaults.at(name).there:
            reason += f", and templateDefaults gives it {name}"
            fix = f"take {name} out of templateDefaults; {fix}"
            yield finding("timeout-beside-retry", own, reason, fix)


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
