"""The parts of ``run``: the job's site, what is shown of the job, and its outcome."""
