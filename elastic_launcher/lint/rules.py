"""The table of rules: each rule's name, which never changes, and its severity; docs/lint.md has the reasons.

An error does not do what is written there, in any cluster; a warning may well not.
"""

from __future__ import annotations

from typing import Literal

Severity = Literal["error", "warning"]

RULES: dict[str, Severity] = {
    # The file
    "yaml-syntax": "error",
    "duplicate-key": "error",
    "nothing-to-lint": "warning",
    # The shape of Argo's objects
    "api-version": "error",
    "unknown-field": "error",
    "newer-field": "warning",
    "singular-lock": "warning",
    "singular-schedule": "warning",
    "missing-field": "error",
    "wrong-type": "error",
    "parameter-not-string": "error",
    "quantity": "error",
    "metadata-name": "error",
    "unknown-choice": "error",
    "shutdown": "error",
    # Retries
    "retry-policy": "error",
    "retry-limit": "error",
    "retry-backoff": "error",
    "retry-expression-syntax": "error",
    "retry-expression-name": "error",
    "retry-expression-type": "error",
    "retry-expression-value": "error",
    "retry-expression-status": "warning",
    "retry-expression-unread": "warning",
    "retry-expression-policy": "warning",
    "retry-expression-outer": "warning",
    "timeout-beside-retry": "warning",
    # The pod
    "pod-patch-syntax": "error",
    "pod-patch-field": "error",
    "pod-patch-value": "error",
    "pod-patch-container": "error",
    "pod-template": "error",
    "volume-mount": "error",
    "volume-from-caller": "warning",
    "missing-command": "warning",
    "success-condition": "error",
    # What is in other files
    "configmap-label": "error",
    "configmap-key": "error",
    "configmap-default": "warning",
    "configmap-optional": "warning",
    "template-ref-volume": "error",
    "template-ref-service-account": "warning",
    "template-ref-pod-gc": "warning",
    "elastic-label": "warning",
    # The elastic step
    "gpus-per-node": "error",
    "elastic-argument": "error",
    # Compiled pipelines
    "passthrough-argument": "error",
    "accelerator-type": "error",
    "accelerator-channel": "error",
    "absent-input": "error",
    "loop-item-key": "error",
    "loop-list": "error",
    "caching": "warning",
    "retry-deadline": "warning",
}
