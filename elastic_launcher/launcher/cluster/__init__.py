"""The launcher's site in a cluster."""
