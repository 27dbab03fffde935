"""The commands of ``elastic-launcher quota``, and a projects document for them."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from elastic_launcher.cli.quota.app import quota_app

DOCUMENT = """\
apiVersion: elastic-quota/v1
capacity: {gpus: 8}
projects:
- {name: nlp, guaranteed: 4}
- {name: vision, guaranteed: 4, limit: 6}
"""


def quota(*arguments: str | Path) -> Result:
    """Runs a command, and returns what it printed and how it ended."""
    return CliRunner().invoke(quota_app, [str(one) for one in arguments])
