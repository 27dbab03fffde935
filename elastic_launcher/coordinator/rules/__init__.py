"""The decisions: pure functions of (state, observation) to (state, actions)."""
