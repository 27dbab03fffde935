"""Seeds one after another, each in a process of its own: how they went is told and logged."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.chaos.play import Outcome
from tests.soak.log import Log

MOST = 9999


def _interrupt(number: int, frame: object) -> None:
    """Ends what is under way, once: what is done to leave nothing is not interrupted."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    raise KeyboardInterrupt


def end_in_order() -> None:
    """Has SIGINT and SIGTERM end this process as Ctrl-C does, with all that it has started."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _interrupt)


def seeds(text: str) -> range:
    """Reads one seed or several, as an option gives them."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds from 1 to {MOST}, such as 1-300")
    return range(first, last + 1)


def play_one(play: Callable[[Callable[[str], None]], Outcome], name: str, again: str) -> int:
    """Plays one schedule in this process, and tells of each act.

    Args:
        play: Does it, and is given what takes a line about each act.
        name: What the line of its outcome begins with.
        again: The module and the options that play it again.
    """
    try:
        outcome = play(lambda line: print(f"    {line}", file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        return 130
    print(f"{name}: {outcome.words}", flush=True)
    if outcome.kept:
        print(f"    its files: {outcome.kept}; again: python -m {again}", file=sys.stderr, flush=True)
    return 1 if outcome.kept else 0


def play_all(module: str, wanted: range, at_once: int, log: Log) -> int:
    """Plays seeds, some at a time, and logs each when it is over.

    Args:
        module: What plays a seed with ``--seed``.
        wanted: Which seeds.
        at_once: How many at the same time.
        log: Takes a line of each.
    """
    running: dict[int, subprocess.Popen[str]] = {}

    def play_seed(seed: int) -> tuple[int, str, str]:
        command = [sys.executable, "-m", module, "--seed", str(seed)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running[seed] = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        out, err = running[seed].communicate()
        return running[seed].returncode, out, err

    waiting, failed = set(wanted), []
    with ThreadPoolExecutor(at_once) as pool:
        playing = {pool.submit(play_seed, seed): seed for seed in wanted}
        try:
            for played in as_completed(playing):
                seed = playing[played]
                code, out, err = played.result()
                line = out.strip() or f"{seed:03d} FAILED: the harness itself: {' '.join(err.split())[-300:]}"
                print(line, flush=True)
                log.add(seed, line)
                waiting.remove(seed)
                if code:
                    print(err, end="", file=sys.stderr, flush=True)
                    failed.append(seed)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running.values():
                process.terminate()
            print(f"interrupted; go on with --seeds {min(waiting)}-{wanted[-1]}", file=sys.stderr)
            return 130
    names = f": {', '.join(map(str, sorted(failed)))}" if failed else ""
    print(f"{len(wanted) - len(failed)} of {len(wanted)} schedules ended as if nothing had happened{names}")
    return 1 if failed else 0
