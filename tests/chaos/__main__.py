"""``python -m tests.chaos --seeds 1-300``: plays schedules, each in a process of its own, and logs how they went;
``--seed 17`` plays one again. ``--kills 50`` kills everything so many times in one job, ``--resizes 1000`` resizes one.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.chaos.levels import Levels
from tests.chaos.play import play
from tests.chaos.schedule import MOST_NODES, Schedule, cycle, draw, draw_kills
from tests.soak.log import Log

LOG = Path(__file__).with_name("log.txt")
MOST = 999  # the log's numbers have three digits


def _interrupt(number: int, frame: object) -> None:
    """Ends what is under way, once: what is done to leave nothing is not interrupted."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _range(text: str) -> range:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds from 1 to {MOST}, such as 1-300")
    return range(first, last + 1)


def play_one(schedule: Schedule, name: str, again: str, levels: Levels | None = None) -> int:
    """Plays one schedule in this process, and tells of each act.

    Args:
        schedule: What is to happen.
        name: What the line of its outcome begins with.
        again: The option that plays it again.
        levels: Looks at what the job holds meanwhile.
    """
    try:
        outcome = play(schedule, lambda line: print(f"    {line}", file=sys.stderr, flush=True), levels)
    except KeyboardInterrupt:
        return 130
    print(f"{name}: {outcome.words}", flush=True)
    if outcome.kept:
        print(f"    its files: {outcome.kept}; again: python -m tests.chaos {again}", file=sys.stderr, flush=True)
    return 1 if outcome.kept else 0


def play_all(seeds: range, at_once: int, log: Log) -> int:
    """Plays seeds, some at a time, and logs each when it is over."""
    running: dict[int, subprocess.Popen[str]] = {}

    def play_seed(seed: int) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "tests.chaos", "--seed", str(seed)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running[seed] = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        out, err = running[seed].communicate()
        return running[seed].returncode, out, err

    waiting, failed = set(seeds), []
    with ThreadPoolExecutor(at_once) as pool:
        playing = {pool.submit(play_seed, seed): seed for seed in seeds}
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
            print(f"interrupted; go on with --seeds {min(waiting)}-{seeds[-1]}", file=sys.stderr)
            return 130
    names = f": {', '.join(map(str, sorted(failed)))}" if failed else ""
    print(f"{len(seeds) - len(failed)} of {len(seeds)} schedules ended as if nothing had happened{names}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=_range, help="plays this one, and tells of each act; it is not logged")
    parser.add_argument("--kills", type=int, help="plays one job in which everything is killed so many times")
    parser.add_argument("--resizes", type=int, help="plays one job with so many resizes")
    parser.add_argument("--seeds", type=_range, default=range(1, 301), help="which are played (1-300)")
    parser.add_argument("--at-once", type=int, default=1, help="schedules that run at the same time (1)")
    parser.add_argument("--log", type=Path, default=LOG, help=f"the log; other seeds' lines in it stay ({LOG})")
    options = parser.parse_args()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _interrupt)
    if options.seed:
        schedule = draw(options.seed[0])
        return play_one(schedule, f"{schedule.seed:03d} {schedule}", f"--seed {schedule.seed}")
    if options.kills:
        name = f"everything killed {options.kills} times"
        return play_one(draw_kills(1, options.kills), name, f"--kills {options.kills}")
    if options.resizes:
        schedule = cycle(MOST_NODES, options.resizes)
        return play_one(schedule, "resizes", f"--resizes {options.resizes}", Levels())
    try:
        log = Log(options.log, options.seeds)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return play_all(options.seeds, options.at_once, log)


if __name__ == "__main__":
    sys.exit(main())
