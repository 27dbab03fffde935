"""A training whose size is taken from the quota hints between the steps, and followed within it."""
