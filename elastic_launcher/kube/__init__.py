"""A small client of a cluster's API server."""
