"""The code pane: hot lines, call tree and flame view."""
