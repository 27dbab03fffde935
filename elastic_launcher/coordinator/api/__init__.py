"""The control API: its server, what its calls mean, and what the job's status is."""
