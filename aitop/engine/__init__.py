"""Runs the sources, keeps a bounded history, and makes one Snapshot per tick."""
