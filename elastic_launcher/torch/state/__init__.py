"""The state that is sent to joiners, to recovering peers, and into checkpoints."""
