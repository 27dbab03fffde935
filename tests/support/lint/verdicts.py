"""What becomes of a file that breaks a rule when it is applied; on a cluster the API server is asked whether so."""

from __future__ import annotations

OF_FILES = {"yaml-syntax", "duplicate-key", "nothing-to-lint"}
"""What is wrong with a file before there is an object."""
OF_PIPELINES = {
    "passthrough-argument",
    "accelerator-type",
    "accelerator-channel",
    "absent-input",
    "loop-item-key",
    "loop-list",
    "caching",
    "retry-deadline",
}
REFUSED = {
    "api-version",
    "missing-field",
    "singular-schedule",
    "wrong-type",
    "parameter-not-string",
    "quantity",
    "unknown-choice",
    "retry-policy",
}
"""What is refused however little strictness is asked for; names are too, but for their length."""
DROPPED = {"unknown-field", "singular-lock"}
"""What is refused where it is asked to be strict, as kubectl does; from others the field is dropped without a word."""
NAME = "metadata-name"
LET_THROUGH = {
    "newer-field",
    "shutdown",
    "retry-limit",
    "retry-backoff",
    "retry-expression-syntax",
    "retry-expression-name",
    "retry-expression-type",
    "retry-expression-value",
    "retry-expression-status",
    "retry-expression-unread",
    "retry-expression-policy",
    "retry-expression-outer",
    "timeout-beside-retry",
    "volume-mount",
    "volume-from-caller",
    "missing-command",
    "success-condition",
    "pod-patch-syntax",
    "pod-patch-field",
    "pod-patch-value",
    "pod-patch-container",
    "pod-template",
    "configmap-label",
    "configmap-key",
    "configmap-default",
    "configmap-optional",
    "template-ref-volume",
    "template-ref-service-account",
    "template-ref-pod-gc",
    "elastic-label",
    "gpus-per-node",
    "elastic-argument",
}
"""What goes wrong later, if ever somebody notices: what the linter is for."""
