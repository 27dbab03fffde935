"""Process groups that can be aborted, the operations in them, and their connections."""
