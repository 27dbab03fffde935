"""A simulation of jobs that share machines: the clock, the physics of a change, policies, and traces of jobs."""
