"""Cases of the rules about retries."""

from __future__ import annotations

from tests.support.lint.case import Case, template, workflow


def retry(fields: str) -> str:
    return template(f"retryStrategy:\n  retryPolicy: Always\n  {fields}")


def backoff(fields: str) -> str:
    return template(f"retryStrategy:\n  limit: 2\n  backoff:\n    {fields}")


def expression(text: str) -> str:
    return template(f"retryStrategy:\n  retryPolicy: Always\n  limit: 2\n  expression: >-  # here\n    {text}")


def policy(lines: str) -> str:
    return template(f"retryStrategy:\n  limit: 2\n  {lines}")


def outer(text: str) -> str:
    return workflow(
        f"""
        entrypoint: main
        templates:
        - name: main
          retryStrategy:
            retryPolicy: Always
            expression: {text}
          steps: [[{{name: a, template: inner}}]]
        - name: inner
          suspend: {{}}
        """
    )


def defaults(fields: str, template: str, kind: str = "container: {image: python, command: [python]}") -> str:
    """Returns a workflow of one template that starts from defaults."""
    return workflow(f"templateDefaults:\n  {fields}\ntemplates:\n- name: main\n  {kind}\n  {template}")


def inherited(place: str, text: str, mark: str = "") -> str:
    """Returns a workflow whose steps have a retry strategy from elsewhere: from the spec, or from the defaults."""
    strategy = f'retryStrategy: {{limit: 2, retryPolicy: Always, expression: "{text}"}}'
    holder = f"{strategy}{mark}" if place == "{}" else f"templateDefaults:\n  {strategy}{mark}"
    rest = "templates:\n- name: main\n  steps: [[{name: a, template: inner}]]\n- {name: inner, suspend: {}}"
    return workflow(f"entrypoint: main\n{holder}\n{rest}")


OF_ALL = "retryStrategy: {limit: 2}"
GOOD = expression('lastRetry.status == "Error"')
EXPRESSION = """
!(lastRetry.message matches "longer than the specified deadline|OOMKilled") && (lastRetry.status == "Error" ||
    asInt(lastRetry.exitCode) in [75, 76, 137, 143] || lastRetry.message matches
    "(?i)preempt|evict|node.?shutdown|low on resource|exceeds the limit|NodeLost|exceeded quota")
""".strip()
"""The one that was measured on a real controller."""

CASES = [
    Case(
        "retry-expression-value", expression('lastRetry.status == "failed"'), expression('lastRetry.status == "Failed"')
    ),
    Case(
        "retry-expression-value",
        expression("lastRetry.status in ['Evicted']"),
        expression("lastRetry.status in ['Error', '{{inputs.parameters.status}}']"),
    ),
    *(
        Case("retry-expression-status", expression(text), expression('lastRetry.status != "Failed"'))
        for text in (
            "lastRetry.status in ['Error', 'Evicted']",
            "lastRetry.status not in ['Error', 'Evicted']",
            "lastRetry.status not in ['Succeeded']",
            "lastRetry.status != 'Succeeded'",
            "!(lastRetry.status == 'failed')",
        )
    ),
    Case(
        "retry-expression-syntax",
        expression('lastRetry.message matches "(?i)evict("'),
        expression('lastRetry.message matches "(?i)evict[(]"'),
    ),
    Case(
        "retry-expression-syntax",
        expression('lastRetry.message matches "(?!pod).*"'),
        expression('lastRetry.message matches "{{inputs.parameters.words}}("'),
    ),
    Case("retry-policy", policy("retryPolicy: always  # here"), policy("retryPolicy: Always")),
    Case("retry-policy", policy("retryPolicy: Sometimes  # here"), policy("retryPolicy: OnTransientError")),
    Case("retry-policy", policy('retryPolicy: "{{inputs.parameters.p}}"  # here'), policy("retryPolicy: OnFailure")),
    Case("retry-limit", retry("limit: two  # here"), retry('limit: "2"')),
    Case("retry-limit", workflow("retryStrategy: {limit: '2.5'}  # here"), workflow("retryStrategy: {limit: 2}")),
    Case(
        "retry-limit", workflow("templateDefaults:\n  retryStrategy:\n    limit: x  # here"), retry('limit: "{{=1+1}}"')
    ),
    Case("retry-backoff", backoff('factor: "2.5"  # here'), backoff("factor: 2")),
    Case("retry-backoff", backoff("duration: 5x  # here"), backoff("duration: 1m30s")),
    Case("retry-backoff", backoff("maxDuration: a day  # here"), backoff('maxDuration: "86400"')),
    Case("retry-backoff", backoff("cap: 1d  # here"), backoff("cap: 1.5h")),
    *(
        Case("retry-expression-syntax", expression(text), GOOD)
        for text in (
            'lastRetry.status == "Error" ||',
            "asInt(lastRetry.exitCode",
            'lastRetry.status = "Error"',
            'lastRetry.status == "Error',
            'lastRetry.status == "Error" lastRetry.message',
            "asInt(lastRetry.exitCode) in [75, 76",
            'lastRetry.status == "Error" @ 1',
            "lastRetry.[0]",
        )
    ),
    Case("retry-expression-name", expression('lastRetry.code == "1"'), expression('lastRetry["exitCode"] == "1"')),
    Case("retry-expression-name", expression('status == "Error"'), expression('lastRetry?.status == "Error"')),
    Case("retry-expression-type", expression("lastRetry.exitCode > 1"), expression("asInt(lastRetry.exitCode) > 1")),
    Case("retry-expression-type", expression("lastRetry.exitCode == 75"), expression('lastRetry.exitCode == "75"')),
    Case("retry-expression-type", expression("lastRetry.exitCode in [75]"), expression('lastRetry.exitCode in ["75"]')),
    Case(
        "retry-expression-type", expression('lastRetry.duration > "60"'), expression("asFloat(lastRetry.duration) > 60")
    ),
    *(
        Case("retry-expression-type", expression(bad), expression("asFloat(lastRetry.duration) < 120"))
        for bad in (
            "lastRetry.duration < 120",
            "asInt(lastRetry.duration) < 120",
            "lastRetry.status == 'Error' && int(lastRetry.duration) < 120",
            "lastRetry.duration / 2 < 60",
        )
    ),
    Case("retry-expression-type", expression("asInt(lastRetry.exitCode)"), expression("asInt(retries) < 3")),
    Case("retry-expression-type", expression("lastRetry.message"), expression(EXPRESSION)),
    Case("retry-expression-type", expression("!lastRetry.message && true"), expression('!(lastRetry.message == "a")')),
    Case(
        "retry-expression-type",
        expression("75 matches lastRetry.exitCode"),
        expression('lastRetry.exitCode matches "7."'),
    ),
    Case("retry-expression-type", expression('lastRetry.exitCode + 1 == "2"'), expression("{{retries}} < 2")),
    Case("retry-expression-unread", expression("any([1], {# > 0})"), expression("sprig.int(lastRetry.exitCode) > 1")),
    *(
        Case("retry-expression-unread", expression(text), GOOD)
        for text in (
            "let a = 1; a == 1",
            "[1, 2][0:1] == [1]",
            "[1][:1] == [1]",
            "lastRetry.message | len() > 1",
            "retries == '1' // first",
        )
    ),
    Case("retry-expression-type", expression("retries in 3"), expression("[true, false][0]")),
    Case("retry-expression-unread", expression("unheardOf(lastRetry.exitCode)"), GOOD),
    Case("retry-expression-unread", expression("retries {{inputs.parameters.than}} 2"), GOOD),
    *(
        Case(
            "retry-expression-policy",
            policy(f"retryPolicy: {given}\n  expression: {text}  # here"),
            policy(f"expression: {text}"),  # a stock controller then asks it after any end
        )
        for given, text in (
            ("OnError", "asInt(lastRetry.exitCode) == 75"),
            ("OnError", "lastRetry.status == 'Failed'"),
            ("OnFailure", "lastRetry.status in ['Failed', 'Error']"),
            ("OnFailure", "lastRetry.message == 'pod deleted'"),
        )
    ),
    *(
        Case(
            "retry-expression-policy",
            policy("retryPolicy: OnFailure\n  expression: lastRetry.status == 'Error'  # here"),
            policy(f"retryPolicy: {given}\n  expression: {text}"),
        )
        for given, text in (
            ("OnFailure", "lastRetry.exitCode != '2'"),
            ("OnFailure", "lastRetry.status != 'Error'"),
            ("OnError", "asInt(retries) < 3"),
        )
    ),
    Case(  # of the defaults' expression, what is there with the template's own policy
        "retry-expression-policy",
        defaults(
            "retryStrategy: {limit: 2, expression: \"lastRetry.status == 'Error'\"}  # here",
            "retryStrategy: {retryPolicy: OnFailure}",
        ),
        defaults(
            "retryStrategy: {limit: 2, expression: \"lastRetry.status == 'Error'\"}",
            "retryStrategy: {retryPolicy: Always}",
        ),
    ),
    *(
        Case(
            "retry-expression-outer",
            inherited(place, "lastRetry.exitCode == '75'", "  # here"),
            inherited(place, "lastRetry.status == 'Error'"),
        )
        for place in ("{}", "templateDefaults: {}")
    ),
    Case(
        "timeout-beside-retry",
        workflow(f"{OF_ALL}\ntemplates:\n- name: main\n  suspend: {{}}\n  timeout: 5s  # here"),
        workflow(f"{OF_ALL}\ntemplates:\n- name: main\n  suspend: {{}}\n  activeDeadlineSeconds: 5"),
    ),
    Case(
        "timeout-beside-retry",
        defaults("timeout: 5s  # here\nretryStrategy: {limit: 2}", "daemon: false"),
        defaults("timeout: 5s", "daemon: false"),
    ),
    Case("retry-expression-outer", outer("lastRetry.exitCode == '75'  # here"), outer("lastRetry.status == 'Failed'")),
    Case("timeout-beside-retry", retry("limit: 2\ntimeout: 15s  # here"), template("timeout: 15s")),
    Case(
        "timeout-beside-retry",
        defaults("timeout: 5s", "retryStrategy:  # here\n    limit: 2"),
        defaults("activeDeadlineSeconds: 5", "retryStrategy: {limit: 2}"),
    ),
    Case(
        "timeout-beside-retry",
        defaults("retryStrategy: {limit: 2}", "timeout: 5s  # here"),
        defaults("retryStrategy: {limit: 2}", "timeout: 5s", "steps: [[{name: again, template: main}]]"),
    ),
    Case(  # once, and not at each template that has both from there
        "timeout-beside-retry",
        defaults("retryStrategy: {limit: 2}\n  timeout: 5s  # here", "activeDeadlineSeconds: 5"),
        defaults("retryStrategy: {limit: 2}", "activeDeadlineSeconds: 5"),
    ),
]
