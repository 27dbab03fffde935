"""YAML files as trees whose nodes know where they are."""
