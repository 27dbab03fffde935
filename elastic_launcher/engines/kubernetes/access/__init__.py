"""Which rights a launcher needs, and the job's key."""
