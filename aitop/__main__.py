"""`python -m aitop`, and the entry point of the command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from aitop.cli import catch_signals, run

    catch_signals()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
