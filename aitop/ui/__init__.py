"""The screen: Snapshots come in, drawings go out."""

from __future__ import annotations

import sys

# asyncio would load OpenSSL, 5 MB and 5 ms, for connections that no screen makes. Later imports of ssl get it.
if "asyncio" not in sys.modules and "ssl" not in sys.modules:
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]
