"""`python -m aitop`, and the entry point of the command."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    # What is imported stays: to search it for garbage took 50 of the 620 ms of CPU of a screen's first seconds.
    gc.set_threshold(20_000)
    from aitop.cli import catch_signals, run

    catch_signals()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
