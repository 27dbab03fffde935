"""Workflows in Hera that use the elastic training step; the YAML that each makes lies beside it."""
