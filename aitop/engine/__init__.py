"""Schedules the sources, keeps a bounded history, makes one Snapshot a tick."""
