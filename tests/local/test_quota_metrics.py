"""``quota serve`` answers Prometheus with what the jobs of its folder have and wait for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

from tests.support import histories
from tests.support.launches import PATIENCE, until
from tests.support.scrapes import free_port, scraped

PROJECTS = """\
apiVersion: elastic-quota/v1
capacity: {gpus: 4}
projects:
- {name: nlp, guaranteed: 2}
"""


def scraped_with(port: int, name: str) -> dict[tuple[str, ...], float]:
    """Returns what a port answers once that has a metric; nothing before."""
    try:
        found = scraped(port)
    except URLError:
        return {}
    return found if name in {one for one, *_ in found} else {}


def test_projects_and_jobs_of_a_folder_are_told_in_numbers(tmp_path: Path) -> None:
    (tmp_path / "projects.yaml").write_text(PROJECTS)
    port = free_port()
    command = [sys.executable, "-m", "elastic_launcher", "quota", "serve", "projects.yaml", "--jobs", "jobs"]
    controller = subprocess.Popen([*command, "--metrics-port", str(port)], cwd=tmp_path)
    try:
        idle = until(lambda: scraped_with(port, "quota_capacity"), "a round is made", 2 * PATIENCE)
        assert (idle["quota_leader",], idle["quota_capacity",]) == (1, 4)
        assert idle["quota_gpus", "held", "", "nlp"] == 0
        work_dir = histories.write(histories.resized().events[:3], tmp_path / "jobs" / "bert")
        histories.write_job(work_dir, config={"min_nodes": 1, "max_nodes": 3, "match": {"project": "nlp"}})
        until(lambda: scraped(port)["quota_gpus", "held", "", "nlp"] == 1, "a job holds a GPU")
        busy = scraped(port)
        assert busy["quota_gpus", "lacking", "", "nlp"] == 1
        assert busy["quota_changes_total", "guarantee"] == 1
        assert busy["quota_round_seconds_count",] >= 2
        assert ("quota_stale_seconds",) in busy
    finally:
        controller.send_signal(signal.SIGTERM)
        assert controller.wait(PATIENCE) == 0
