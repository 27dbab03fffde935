"""The commands of ``elastic-launcher quota``."""
