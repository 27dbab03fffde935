"""``python -m elastic_launcher.agent``: what an engine starts on a node."""

from __future__ import annotations

import sys

from elastic_launcher.agent.agent import main

if __name__ == "__main__":
    sys.exit(main())
