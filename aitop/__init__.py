"""aitop: a live monitor that says why a running AI process is slow."""

__version__ = "0.1.0"
