"""The objects of a job in a cluster: names, Jobs, pods, the Service, and the user's template."""
