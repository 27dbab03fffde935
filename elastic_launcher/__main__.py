"""The command and ``python -m elastic_launcher``: loads the command line, which Ctrl-C ends without a traceback."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Loads the command line and runs it; does not return."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is ignored, as under nohup
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from elastic_launcher.cli.main import main as run_command  # typer takes a third of a second

    signal.signal(signal.SIGINT, handler)
    run_command()


if __name__ == "__main__":
    main()
