"""The cases of all rules."""

from __future__ import annotations

from tests.support.lint import launcher_cases, pipeline_cases, pod_cases, retry_cases, workflow_cases

CASES = [
    case for table in (workflow_cases, retry_cases, pod_cases, launcher_cases, pipeline_cases) for case in table.CASES
]
