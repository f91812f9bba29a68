"""Where metrics go: the address that the user gave to listen at (nothing else in aitop listens), or a text file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest

from aitop.output_file import replace_output

LOOPBACK = "127.0.0.1"
# Readable by all: node_exporter runs as a user of its own.
READABLE = 0o644


class Address(NamedTuple):
    """Where to listen. Without a host that is the loopback, which only this machine can reach."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT, [IPv6]:PORT or PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(host, int(port))


def write_textfile(registry: CollectorRegistry, path: Path) -> None:
    """Replace the file for node_exporter's textfile collector, whole or not at all. Raises OSError."""
    # The collector reads only files that end in .prom, so it does not read the unfinished file that replaces this one.
    replace_output(path, generate_latest(registry), READABLE)
