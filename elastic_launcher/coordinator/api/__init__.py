"""The control API: its server, its handlers, and the job's status."""
