"""A search for a learning rate, whose trials share the quota and shrink instead of queueing."""
