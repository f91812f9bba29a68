"""The panes: each shows one aspect of a Snapshot."""
