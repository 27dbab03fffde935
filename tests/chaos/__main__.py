"""``python -m tests.chaos --seeds 1-400``: plays schedules, each in a process of its own, and logs how they went;
``--seed 17`` plays one again; from seed 1001 on models are sharded. ``--kills 50`` kills everything so many times in
one job, ``--resizes 1000`` resizes one.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.chaos import sharded
from tests.chaos.levels import Levels
from tests.chaos.play import play
from tests.chaos.schedule import MOST_NODES, Schedule, cycle, draw, draw_kills
from tests.chaos.seeds import end_in_order, play_all, play_one, seeds
from tests.soak.log import Log

MODULE = "tests.chaos"
LOG = Path(__file__).with_name("log.txt")


def _one(schedule: Schedule, name: str, option: str, levels: Levels | None = None) -> int:
    return play_one(partial(play, schedule, levels=levels), name, f"{MODULE} {option}")


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--seed", type=seeds, help="plays this one, and tells of each act; it is not logged")
    parser.add_argument("--kills", type=int, help="plays one job in which everything is killed so many times")
    parser.add_argument("--resizes", type=int, help="plays one job with so many resizes")
    parser.add_argument("--seeds", type=seeds, default=range(1, 401), help="which are played (1-400)")
    parser.add_argument("--at-once", type=int, default=1, help="schedules that run at the same time (1)")
    parser.add_argument("--log", type=Path, default=LOG, help=f"the log; other seeds' lines in it stay ({LOG})")
    options = parser.parse_args()
    end_in_order()
    if options.seed:
        seed = options.seed[0]
        schedule = sharded.draw(seed) if seed >= sharded.FIRST else draw(seed)
        return _one(schedule, f"{schedule.seed:03d} {schedule}", f"--seed {schedule.seed}")
    if options.kills:
        name = f"everything killed {options.kills} times"
        return _one(draw_kills(1, options.kills), name, f"--kills {options.kills}")
    if options.resizes:
        return _one(cycle(MOST_NODES, options.resizes), "resizes", f"--resizes {options.resizes}", Levels())
    try:
        log = Log(options.log, options.seeds)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return play_all(MODULE, options.seeds, options.at_once, log)


if __name__ == "__main__":
    sys.exit(main())
