"""The process pane: rows, columns, and the pane itself."""
