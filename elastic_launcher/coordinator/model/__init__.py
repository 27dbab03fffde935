"""What the coordinator knows, what it observes, and what it does: plain values."""
