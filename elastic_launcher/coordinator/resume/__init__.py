"""Finds what a job resumes from: checkpoints, and the processes that an earlier launcher has left running."""
