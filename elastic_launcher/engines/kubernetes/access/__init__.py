"""The rights that a launcher needs, and the job's key."""
