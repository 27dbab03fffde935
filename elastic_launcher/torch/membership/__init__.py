"""This process as a member of a job: orders, reports, environment, step times."""
