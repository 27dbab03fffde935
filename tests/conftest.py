"""No test has a deadline of its own: the machines that run them are shared."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
