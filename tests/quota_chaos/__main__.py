"""``python -m tests.quota_chaos --seeds 1-50``: plays histories of jobs, GPUs and faults through the rounds of the
quota controller; ``--seed 17`` plays one again and tells of each act.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.chaos.seeds import seeds
from tests.quota_chaos.game import Game
from tests.quota_chaos.history import draw
from tests.quota_chaos.pure import PureStage

MODULE = "tests.quota_chaos"


def play(seed: int, say: Callable[[str], None]) -> tuple[bool, str]:
    """Plays one history; returns whether all held, and what was found, in a line."""
    try:
        return True, Game(draw(seed), PureStage(), say).play()
    except AssertionError as error:
        return False, f"FAILED: {error}; again: python -m {MODULE} --seed {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--seed", type=seeds, help="plays this one, and tells of each act")
    parser.add_argument("--seeds", type=seeds, default=range(1, 51), help="which are played (1-50)")
    options = parser.parse_args()

    def say(line: str) -> None:
        if options.seed:
            print(line)

    good = True
    for seed in options.seed or options.seeds:
        held, line = play(seed, say)
        print(f"{seed:03d} {line}", flush=True)
        good = good and held
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
