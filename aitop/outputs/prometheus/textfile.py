"""Writes the metrics to a file for node_exporter's textfile collector, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from aitop.output_file import replace_output

# node_exporter runs as a user of its own.
READABLE = 0o644


def write_textfile(registry: CollectorRegistry, path: Path) -> None:
    """Replace the file by what the metrics are now. Raises OSError."""
    # The collector reads only files that end in .prom: not the one that is replaced by it.
    replace_output(path, generate_latest(registry), READABLE)
