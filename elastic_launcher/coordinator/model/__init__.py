"""The values of the coordinator: its state, observations and actions."""
