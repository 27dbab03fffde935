"""The quota controller: projects, fair shares, and which job gets how many GPUs."""
