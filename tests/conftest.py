"""No test has a deadline of its own: the machines that run them are shared. None downloads a model."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
