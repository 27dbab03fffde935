"""The quota controller: who may hold how many GPUs, by projects with guaranteed quotas."""
