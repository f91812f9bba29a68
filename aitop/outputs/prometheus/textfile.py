"""Writes the metrics to a file for node_exporter's textfile collector, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from aitop.output_file import open_output

# node_exporter runs as a user of its own.
READABLE = 0o644


def write_textfile(registry: CollectorRegistry, path: Path) -> None:
    """Replace the file by what the metrics are now. Raises OSError."""
    # The collector reads only files that end in .prom.
    written = path.with_name(f".{path.name}.{os.getpid()}")
    data = generate_latest(registry)
    # Left by an exporter that was killed while it wrote.
    written.unlink(missing_ok=True)
    descriptor = open_output(written, READABLE, new=True)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # Whatever the umask leaves of it.
            os.fchmod(file.fileno(), READABLE)
            file.write(data)
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)
        raise
