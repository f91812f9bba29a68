"""Panes: one subject of a Snapshot each."""
