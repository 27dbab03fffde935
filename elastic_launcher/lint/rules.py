"""The one table of what is looked for: every rule's name, which never changes, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rule:
    """What is looked for.

    Attributes:
        severity: ``error``: it does not do what is written; ``warning``: it may well not.
        finds: What it finds, in a few words.
    """

    severity: Literal["error", "warning"]
    finds: str


RULES: dict[str, Rule] = {
    # The file
    "yaml-syntax": Rule("error", "a file that is not YAML"),
    "duplicate-key": Rule("error", "a key that stands twice in one object"),
    "nothing-to-lint": Rule("warning", "a file without a workflow or a compiled pipeline"),
    # The shape of Argo's objects
    "unknown-field": Rule("error", "a field that the API does not know"),
    "newer-field": Rule("warning", "a field that Argo 4.1 brought"),
    "singular-lock": Rule("error", "`semaphore` or `mutex`, which are lists now"),
    "missing-field": Rule("error", "a field that must be there"),
    "wrong-type": Rule("error", "a value of another type than its field"),
    "parameter-not-string": Rule("error", "a parameter whose value is no text"),
    "quantity": Rule("error", "a resource amount that is none, or a placeholder in its place"),
    "metadata-name": Rule("error", "an object's name that is missing or can't be one"),
    "unknown-choice": Rule("error", "a word other than those that a field takes"),
    "shutdown": Rule("error", "a `shutdown` that is neither Stop nor Terminate"),
    # Retries
    "retry-policy": Rule("error", "a `retryPolicy` that is none"),
    "retry-limit": Rule("error", "a retry `limit` that is no whole number"),
    "retry-backoff": Rule("error", "a back-off's `factor` or times that can't be read"),
    "retry-expression-syntax": Rule("error", "a retry expression that can't be parsed"),
    "retry-expression-name": Rule("error", "a name that a retry expression does not have"),
    "retry-expression-type": Rule("error", "texts compared with numbers, or a result that is not true or false"),
    "retry-expression-unread": Rule("warning", "a retry expression that this linter can't follow"),
    "retry-expression-policy": Rule("warning", "a retry expression without `retryPolicy: Always`"),
    "retry-expression-outer": Rule("warning", "a retry expression on a template without a pod"),
    "timeout-beside-retry": Rule("warning", "`timeout` or `pendingTimeout` beside a `retryStrategy`"),
    # The pod
    "pod-patch-syntax": Rule("error", "a `podSpecPatch` that is neither JSON nor YAML"),
    "pod-patch-field": Rule("error", "a field of a `podSpecPatch` that pods don't have"),
    "pod-patch-value": Rule("error", "a value of a `podSpecPatch` that its field can't have"),
    "pod-patch-container": Rule("error", "a container of a `podSpecPatch` that the pod does not have"),
    "volume-mount": Rule("error", "a `volumeMount` without its volume"),
    "volume-from-caller": Rule("warning", "the same in a template that others call"),
    "missing-command": Rule("warning", "a container without a command"),
    "success-condition": Rule("error", "a condition of a resource that is no label selector"),
    # What stands elsewhere
    "configmap-label": Rule("error", "a parameter from a ConfigMap that lacks the label"),
    "configmap-key": Rule("error", "a parameter from a key that its ConfigMap lacks"),
    "configmap-default": Rule("warning", "a parameter from a ConfigMap without a default"),
    "configmap-optional": Rule("warning", "`optional` at a parameter from a ConfigMap"),
    "template-ref-volume": Rule("error", "a template from elsewhere without the volumes that it mounts"),
    "template-ref-service-account": Rule("warning", "a template from elsewhere without its service account"),
    "template-ref-pod-gc": Rule("warning", "the elastic step from elsewhere without pod garbage collection"),
    "elastic-label": Rule("warning", '`elastic: "true"` where it never reaches the pod'),
    # The elastic step
    "gpus-per-node": Rule("error", "fewer GPUs than the ranks of a node"),
    # Compiled pipelines
    "passthrough-argument": Rule("error", "a passthrough without a TaskConfig argument"),
    "accelerator-channel": Rule("error", "an accelerator limit from a number"),
    "caching": Rule("warning", "an elastic step that may be answered from the cache"),
    "retry-deadline": Rule("warning", "`set_retry` without a long `backoff_max_duration`"),
}
