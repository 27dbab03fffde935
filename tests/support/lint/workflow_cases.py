"""Cases of the rules about a file, and the shape of Argo's objects."""

from __future__ import annotations

from textwrap import indent

from tests.support.lint.case import Case, template, workflow

FINE = template("")
STEP = "{name: a, template: main}"


def parameter(value: str) -> str:
    return template(f"inputs:\n  parameters:\n  - name: size\n    value: {value}")


def choice(field: str, word: str) -> str:
    return workflow(f"entrypoint: main\n{field}: {word}\ntemplates: [{{name: main, suspend: {{}}}}]")


def listed(word: str) -> str:
    return f"kind: List\napiVersion: v1\nitems:\n- {indent(choice('shutdown', word), '  ').lstrip()}"


CASES = [
    Case("yaml-syntax", FINE + "\nx: [1\ny: }  # here\n", FINE),
    Case("yaml-syntax", FINE + "x: &a [*a]  # here\n", FINE),
    Case("yaml-syntax", FINE + "ü: ü\nx: a\x07b  # here\n", FINE),
    Case("duplicate-key", template("daemon: false\nfailFast: true\ndaemon: true  # here"), template("daemon: true")),
    Case("duplicate-key", FINE.replace("spec:", "kind: Workflow  # here\nspec:"), FINE),
    Case("nothing-to-lint", "# here\n", FINE),
    Case("nothing-to-lint", "kind: Role  # here\napiVersion: v1\n", "kind: Role\napiVersion: v1\n---\n" + FINE),
    Case("nothing-to-lint", "[1, 2]  # here\n", FINE),
    Case("unknown-field", template("retryStrategie: {limit: 2}  # here"), template("retryStrategy: {limit: 2}")),
    Case(
        "unknown-field",
        template("", "\n      image: python\n      comand: [python]  # here\n      command: [python]"),
        template("", "\n      image: python\n      command: [python]"),
    ),
    Case("unknown-field", workflow("sped: 1  # here\nentrypoint: a"), workflow("entrypoint: a")),
    Case("newer-field", template("pendingTimeout: 15s  # here"), template("timeout: 15s")),
    Case(
        "singular-lock",
        template("synchronization:\n  semaphore: {configMapKeyRef: {name: a, key: b}}  # here"),
        template("synchronization:\n  semaphores: [{configMapKeyRef: {name: a, key: b}}]"),
    ),
    Case("singular-lock", workflow("synchronization:\n  mutex: {name: a}  # here"), workflow("synchronization: {}")),
    Case(
        "missing-field",
        template("inputs:\n  parameters:\n  - value: a  # here"),
        template("inputs:\n  parameters:\n  - {name: a}"),
    ),
    Case("wrong-type", workflow("entrypoint: 5  # here"), workflow("entrypoint: five")),
    Case("wrong-type", workflow("templates: {a: 1}  # here"), workflow("templates: []")),
    Case("wrong-type", workflow("parallelism: '5'  # here"), workflow("parallelism: 5")),
    Case(
        "wrong-type",
        template("", "\n      command: [a]\n      env:\n      - name: A\n        value: 5  # here"),
        template("", "\n      command: [a]\n      env:\n      - name: A\n        value: '5'"),
    ),
    Case("parameter-not-string", parameter("5  # here"), parameter('"5"')),
    Case("parameter-not-string", parameter("1e3  # here"), parameter("!!str 1e3")),
    Case("parameter-not-string", parameter("yes  # here"), parameter("1:3")),
    Case("parameter-not-string", parameter("[a, b]  # here"), parameter("2026-01-01")),
    Case(
        "parameter-not-string",
        workflow("arguments:\n  parameters:\n  - name: a\n    default: 2.5  # here"),
        workflow("arguments:\n  parameters:\n  - name: a\n    default: '2.5'"),
    ),
    Case("metadata-name", workflow("{}", name="My_Training}  # here"), workflow("{}", name="my-training.2")),
    Case("metadata-name", workflow("{}", name=f"{'a' * 64}}}  # here"), workflow("{}", name="a" * 63)),
    Case(
        "metadata-name",
        workflow("workflowSpec: {}\nschedules: ['* * * * *']", "CronWorkflow", f"{'a' * 53}}}  # here"),
        workflow("workflowSpec: {}\nschedules: ['* * * * *']", "CronWorkflow", "a" * 52),
    ),
    Case(
        "metadata-name",
        FINE.replace("metadata: {name: train}", "metadata: {generateName: Train-}  # here"),
        FINE.replace("metadata: {name: train}", "metadata: {generateName: train-}"),
    ),
    Case("metadata-name", FINE.replace("metadata: {name: train}", "metadata: {}  # here"), FINE),
    Case(
        "unknown-choice",
        choice("podGC", "\n    strategy: OnPodDone  # here"),
        choice("podGC", "{strategy: OnPodSuccess}"),
    ),
    Case(
        "unknown-choice",
        workflow("workflowSpec: {}\nschedules: ['* * * * *']\nconcurrencyPolicy: forbid  # here", "CronWorkflow"),
        workflow("workflowSpec: {}\nschedules: ['* * * * *']\nconcurrencyPolicy: Forbid", "CronWorkflow"),
    ),
    *(
        Case("api-version", FINE.replace("argoproj.io/v1alpha1", f"{version}  # here"), FINE)
        for version in ("argoproj.io/v1", "v1", "argoproj/v1alpha1", "batch/v1")
    ),
    Case(
        "api-version",
        FINE.replace("apiVersion: argoproj.io/v1alpha1\nkind: W", "kind: W").replace("low\n", "low  # here\n", 1),
        FINE,
    ),
    Case(
        "singular-schedule",
        workflow("workflowSpec: {}\nschedule: '* * * * *'  # here", "CronWorkflow"),
        workflow("workflowSpec: {}\nschedules: ['* * * * *']", "CronWorkflow"),
    ),
    Case(
        "unknown-field",
        workflow("workflowSpec: {}\nschedules: ['* * * * *']\nschedule: '5 * * * *'  # here", "CronWorkflow"),
        workflow("workflowSpec: {}\nschedules: ['* * * * *', '5 * * * *']", "CronWorkflow"),
    ),
    Case("shutdown", choice("shutdown", "Halt  # here"), choice("shutdown", "Terminate")),
    Case("shutdown", listed("Halt  # here"), listed("Stop")),
    Case("unknown-field", template("plug: {}  # here"), workflow("templates: [{name: a, plugin: {ours: {b: 1}}}]")),
]
CASES = [Case(one.rule, one.bad.replace("}  # here}", "}  # here"), one.good) for one in CASES]
