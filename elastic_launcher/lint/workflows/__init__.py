"""Checks of objects of Argo's API."""
