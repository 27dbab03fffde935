"""One launcher at a time governs a job: who it is, and what becomes of its own pod."""
