"""``python -m tests.cluster.chaos --seeds 1-20``: plays schedules on the cluster that ``make cluster`` has started, and
logs how they went; ``--seed 17`` plays one again.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.chaos.seeds import end_in_order, play_all, play_one, seeds
from tests.cluster.chaos.play import play
from tests.cluster.chaos.schedule import draw
from tests.cluster.machine import cluster
from tests.cluster.machine.processes import ClusterError
from tests.soak.log import Log
from tests.support.cluster.stage import PLACES

MODULE = "tests.cluster.chaos"
LOG = Path(__file__).with_name("log.txt")


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--seed", type=seeds, help="plays this one, and tells of each act; it is not logged")
    parser.add_argument("--seeds", type=seeds, default=range(1, 21), help="which are played, one by one (1-20)")
    parser.add_argument("--log", type=Path, default=LOG, help=f"the log; other seeds' lines in it stay ({LOG})")
    options = parser.parse_args()
    end_in_order()
    try:
        cluster.running(PLACES)
        log = Log(options.log, options.seeds)
    except (ClusterError, OSError, ValueError) as error:
        parser.error(str(error))
    if options.seed:
        schedule = draw(options.seed[0])
        name = f"{schedule.seed:03d} {schedule}"
        return play_one(partial(play, schedule), name, f"{MODULE} --seed {schedule.seed}")
    return play_all(MODULE, options.seeds, 1, log)


if __name__ == "__main__":
    sys.exit(main())
