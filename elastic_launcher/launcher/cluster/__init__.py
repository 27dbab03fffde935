"""A cluster as the place where a job's nodes live."""
