"""The terminal user interface: draws Snapshots."""

from __future__ import annotations

import sys

# asyncio would import ssl (OpenSSL: 5 MB and 5 ms) for connections that the screen never makes, so hide that module
# while asyncio is imported. Later imports of ssl work.
if "asyncio" not in sys.modules and "ssl" not in sys.modules:
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]
