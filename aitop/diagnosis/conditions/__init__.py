"""Conditions: states of a run, its memory and its hardware that have no share of the time."""
