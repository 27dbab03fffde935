"""The quota controller in a cluster: one of several leads, writes the hints of a ConfigMap, and records changes."""
