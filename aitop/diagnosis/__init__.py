"""Rules: pure functions from a Snapshot to a Verdict."""
