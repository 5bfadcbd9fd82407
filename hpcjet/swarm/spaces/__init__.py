"""Observations and actions of any kind of space as flat arrays."""
