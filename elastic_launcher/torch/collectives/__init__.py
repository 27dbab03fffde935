"""Process groups that can be cut, the operations in them, and their connections."""
