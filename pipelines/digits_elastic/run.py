"""Runs the pipeline on this machine while an administrator changes what it may use; `make run` calls it.

The number of nodes goes 1 -> 3 -> 2 while the training goes on; ends with 1 when it did not, or when the model is
not good enough.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

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


class WithoutChatter(io.TextIOBase):
    """Passes lines on at once, except for what kfp's executor logs about itself, the whole script among it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rest = ""
        self._in_dump = False

    def write(self, text: str) -> int:
        """Takes text, of which complete lines go on."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.startswith("    [KFP Executor"):
                self._in_dump = line.endswith("executor_input:")
            elif self._in_dump:
                self._in_dump = line != "    }"
            else:
                self._out.write(line + "\n")
        self._out.flush()
        return len(text)


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
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a core for each node, however many this machine has
    started = time.monotonic()
    accuracy = 0.0
    with contextlib.redirect_stdout(WithoutChatter(sys.stdout)), administrator(work_dir, hints):
        try:
            accuracy = digits_elastic(hints=str(hints), work_dir=str(work_dir)).output
        except RuntimeError as error:  # what kfp.local says of a red step
            print(f"make run failed: {error}", file=sys.stderr)
    seen = read_events(work_dir / "events.jsonl") if (work_dir / "events.jsonl").exists() else []
    sizes = [event["world_size"] for event in seen if event.kind == "generation_formed"]
    print(
        f"\nWorld sizes: {' -> '.join(map(str, sizes))}. Accuracy on the test images: {accuracy:.4f}. "
        f"The pipeline took {time.monotonic() - started:.0f} s.\n"
        f"Timeline: {work_dir / 'report.html'}\nEvents, logs: {work_dir}"
    )
    if not in_order(WORLD_SIZES, sizes):
        print(f"make run failed: wanted world sizes {WORLD_SIZES} in that order, saw {sizes}", file=sys.stderr)
        return 1
    if accuracy < LEAST_ACCURACY:
        print(f"make run failed: accuracy {accuracy:.4f} is below {LEAST_ACCURACY}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # all that was started has had it too
        print("make run: interrupted", file=sys.stderr)
        sys.exit(130)
