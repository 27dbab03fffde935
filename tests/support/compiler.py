"""What torch.compile needs of the machine."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

COMPILER = shutil.which(os.environ.get("CXX", "g++"))
HEADER = Path(sysconfig.get_path("include")) / "Python.h"
