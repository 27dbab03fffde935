"""Adapters: training loops of frameworks as elastic jobs, each an extra of the distribution."""
