"""Lanes over files: each lane reads some of them, one after the other."""
