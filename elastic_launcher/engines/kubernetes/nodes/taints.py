"""Recognizes taints by which clouds and autoscalers announce that a machine will go, before any signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTICES = {
    "aws-node-termination-handler/spot-itn": "its spot machine is taken back",
    "aws-node-termination-handler/rebalance-recommendation": "its spot machine may be taken back soon",
    "aws-node-termination-handler/asg-lifecycle-termination": "its machine's group is made smaller",
    "aws-node-termination-handler/scheduled-maintenance": "its machine is to be maintained",
    "cloud.google.com/impending-node-termination": "its machine is about to be taken back",
    "remediator.kubernetes.azure.com/unschedulable": "its machine is about to be taken back",
    "karpenter.sh/disrupted": "Karpenter takes its machine away",
    "karpenter.sh/disruption": "Karpenter takes its machine away",
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler takes its machine away",
}
"""What a taint's key says; cordons and mere candidates are not among them, since such machines often stay."""


def notice_of(machine: Mapping[str, Any]) -> str:
    """Returns why a machine (a Node of the API) will go; empty where it says nothing."""
    keys = [one.get("key", "") for one in (machine.get("spec") or {}).get("taints") or ()]
    return next((f"{NOTICES[key]} (taint {key})" for key in keys if key in NOTICES), "")
