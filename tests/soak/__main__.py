"""``python -m tests.soak``: plays the launches one after another and logs what each of them left."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.soak.cases import COUNT, case
from tests.soak.log import Log
from tests.soak.play import play

LOG = Path(__file__).with_name("log.txt")


def _interrupt(number: int, frame: object) -> None:
    """Ends the launch under way, once: what is done to leave nothing is not interrupted."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=1, help="number of the first launch (1)")
    parser.add_argument("--to", dest="last", type=int, default=COUNT, help=f"number of the last launch ({COUNT})")
    parser.add_argument("--log", type=Path, default=LOG, help=f"the log; other launches' lines in it stay ({LOG})")
    options = parser.parse_args()
    numbers = range(options.first, options.last + 1)
    if not 1 <= options.first <= options.last <= COUNT:
        parser.error(f"launches are numbered 1 to {COUNT}: {options.first} to {options.last} are none")
    try:
        log = Log(options.log, numbers)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _interrupt)
    failed = []
    for number in numbers:
        root = Path(tempfile.mkdtemp(prefix="soak-"))
        keep = False
        try:
            outcome = play(case(number), root)
            keep = bool(outcome.problems)
        except KeyboardInterrupt:
            print(f"interrupted in launch {number}; go on with --from {number}", file=sys.stderr)
            return 130
        finally:
            if not keep:
                shutil.rmtree(root, ignore_errors=True)
        print(outcome.line, flush=True)
        log.add(number, outcome.line)
        if outcome.problems:
            print(f"    its files: {root}", file=sys.stderr, flush=True)
            failed.append(number)
    names = f": {', '.join(map(str, failed))}" if failed else ""
    print(f"{len(numbers) - len(failed)} of {len(numbers)} launches ended as they should and left nothing{names}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
