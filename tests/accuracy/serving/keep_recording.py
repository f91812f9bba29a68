"""Makes a recording of a server small enough to be committed, without this machine's paths.

python tests/accuracy/serving/keep_recording.py RAW OUT
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

import msgspec
from aitop.sources.replay import read_recording

# `serving` is beside the suite of scenarios.
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "scenarios")]

from trim import NeutralPaths, slim  # noqa: E402

DIGITS = 6


def main() -> int:
    """Write OUT; 1 where a path of this machine would be left in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, metavar="RAW", help="a recording")
    parser.add_argument("out", type=Path, metavar="OUT", help="NAME.jsonl.gz to write")
    parser.add_argument("--digits", type=int, default=DIGITS, metavar="N", help="significant digits (default: 6)")
    args = parser.parse_args()
    header, events = read_recording(args.raw)
    paths = NeutralPaths(str(header.target.script or ""))
    lines = [msgspec.json.encode(slim(event, args.digits, paths)) for event in (header, *events)]
    if left := paths.foreign():
        print(f"paths of this machine are left: {', '.join(left)}", file=sys.stderr)
        return 1
    with gzip.GzipFile(args.out, "wb", compresslevel=9, mtime=0) as file:
        file.write(b"".join(line + b"\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
