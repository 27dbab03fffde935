"""Metrics of the quota controller: figures of a decision, and how Prometheus gets them."""
