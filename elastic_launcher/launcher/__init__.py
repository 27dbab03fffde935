"""What `run` puts together: the job's parts, its place, what is shown of it, and how it ended."""
