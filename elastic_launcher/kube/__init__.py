"""Talking with a cluster's API server."""
