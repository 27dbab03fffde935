"""A job's nodes in a cluster: creates them, follows them, and reports their state."""
