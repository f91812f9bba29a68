"""Drawing primitives that know nothing of Snapshots."""
