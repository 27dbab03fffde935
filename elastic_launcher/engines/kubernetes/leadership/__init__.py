"""Leader election: one launcher at a time governs a job; and the state of the launcher's own pod."""
