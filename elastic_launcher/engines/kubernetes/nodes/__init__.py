"""A job's nodes in a cluster: made, followed, and how each stands."""
