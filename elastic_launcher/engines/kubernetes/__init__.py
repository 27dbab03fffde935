"""Nodes in a cluster: each is one Job of one pod."""
