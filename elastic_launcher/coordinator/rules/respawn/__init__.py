"""The respawn tier: workers are ended and started anew at another size, and go on from a checkpoint."""
