"""``python -m elastic_launcher``: the command line."""

from __future__ import annotations

from elastic_launcher.cli.main import main

if __name__ == "__main__":
    main()
