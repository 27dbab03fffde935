"""Runs the pipeline on this machine while an administrator changes what it may use; `make run` calls it.

The number of nodes goes 1 -> 3 -> 2 while the training goes on; ends with 1 when it did not, or when the model is
not good enough.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kfp import local

from elastic_launcher.events import read_events
from pipelines.digits_elastic.pipeline import digits_elastic

JOB = "digits"
WORLD_SIZES = [1, 3, 2]
LEAST_ACCURACY = 0.97
HINTS = {
    "apiVersion": "elastic-hints/v1",
    "generation": 1,
    "hints": [{"match": {"job": JOB}, "gpus": {"guaranteed": 1, "allowed": 1, "limit": 3}}],
}


def new_folder(parent: Path) -> Path:
    """Returns a new folder, named after the time of day."""
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=time.strftime("digits-%H%M%S-"), dir=parent))


@contextlib.contextmanager
def administrator(work_dir: Path, hints: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the administrator as a process of its own; it ends with the block."""
    module = "pipelines.digits_elastic.administrator"
    command = [sys.executable, "-m", module, str(work_dir), str(hints), JOB]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def in_order(wanted: list[int], seen: list[int]) -> bool:
    """Returns whether ``wanted`` are among ``seen``, in their order."""
    rest = iter(seen)
    return all(size in rest for size in wanted)


def main() -> int:
    """Runs the pipeline and judges what was seen.

    Returns:
        The exit code: 0 when the sizes and the accuracy are as they should be.
    """
    folder = new_folder(Path("elastic-jobs").resolve())
    hints, work_dir = folder / "hints.json", folder / "job"
    hints.write_text(json.dumps(HINTS, indent=1) + "\n")
    local.init(
        local.SubprocessRunner(use_venv=False), pipeline_root=str(folder / "kfp"), workspace_root=str(folder / "kfp")
    )
    started = time.monotonic()
    with administrator(work_dir, hints):
        task = digits_elastic(hints=str(hints), work_dir=str(work_dir))
    formed = [
        event["world_size"] for event in read_events(work_dir / "events.jsonl") if event.kind == "generation_formed"
    ]
    accuracy = task.output
    print(
        f"\nWorld sizes: {' -> '.join(map(str, formed))}. Accuracy on the test images: {accuracy:.4f}. "
        f"The pipeline took {time.monotonic() - started:.0f} s.\n"
        f"Timeline: {work_dir / 'report.html'}\nEvents, logs: {work_dir}"
    )
    if not in_order(WORLD_SIZES, formed):
        print(
            f"make run failed: world sizes {WORLD_SIZES} were wanted in that order, seen were {formed}", file=sys.stderr
        )
        return 1
    if accuracy < LEAST_ACCURACY:
        print(f"make run failed: accuracy {accuracy:.4f} is below {LEAST_ACCURACY}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
