"""Makes recordings small enough to be committed, and takes this machine's paths out of them.

    python tests/accuracy/trim.py RAW OUT            one recording, NAME.tTIER.jsonl.gz
    python tests/accuracy/trim.py FOLDER OUT-FOLDER  all of a folder

Figures are rounded to four digits, times to microseconds, fields with their default value left out. A recording is
rounded less, or not at all, where its verdicts would be others than before.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import results  # noqa: F401  # isort: split
from expected import BY_NAME, Scenario
from recorded import Recorded, read, recording_name, recordings, scenario_and_tier

# Moments rather than durations: seconds since the machine or the epoch began.
MOMENTS = frozenset({"time", "wall", "end", "started"})
DIGITS = (4, 6, None)
"""Significant digits of all other figures, the fewest first; None leaves them as they are."""
MOMENT_DECIMALS = 6

PROJECT = "/home/user/project"
_CHECKOUT = re.compile(
    r"(?P<checkout>/.+)/(?:tests/(?:gpu/(?:scripts|programs)|(?:accuracy/)?(?:scenarios|libraries|serving/servers|changes/scripts))"
    r"|aitop/workloads)/[^/]+\.py"
)
_FOLDERS = r"(?:/[\w.+-]+)+"
_LIBRARY = re.compile(rf"{_FOLDERS}(?=/lib(?:64)?/python\d)")
_PROGRAM = re.compile(rf"{_FOLDERS}(?=/bin/python)")
_NEUTRAL = re.compile(rf"{PROJECT}|/usr/|/bin/|/lib|/dev/|/proc/|/tmp/|/sys/")
_ABSOLUTE = re.compile(rf"(?<![\w.:/)\]>]){_FOLDERS}/[\w.+-]+")


def trimmed(raw: Path, out: Path, scenarios: Mapping[str, Scenario] = BY_NAME) -> int:
    """Write the smallest form of a recording that is judged as the raw one; its size in bytes.

    Raises ValueError where even the longest form is judged otherwise, or a path of this machine would be left.
    """
    recorded = read(raw, scenarios=scenarios)
    wanted = _judgement(recorded)
    paths = NeutralPaths(str(recorded.target.script or ""))
    for digits in DIGITS:
        lines = [msgspec.json.encode(slim(event, digits, paths)) for event in (recorded.header, *recorded.events)]
        if left := paths.foreign():
            raise ValueError(f"{raw.name}: paths of this machine are left: {', '.join(left)}")
        with gzip.GzipFile(out, "wb", compresslevel=9, mtime=0) as file:
            file.write(b"".join(line + b"\n" for line in lines))
        if _judgement(read(out, scenarios=scenarios)) == wanted:
            return out.stat().st_size
    out.unlink()
    raise ValueError(f"{raw.name}: judged otherwise without this machine's paths")


def _judgement(recorded: Recorded) -> list[tuple[object, ...]]:
    """What is said of it, at tier 2 as well where it has more than that."""
    tiers = [recorded, recorded.without_hook()] if recorded.tier == 3 else [recorded]
    rows = [tier.row() for tier in tiers]
    return [(row.answer, row.right, row.right_line, sorted(row.others)) for row in rows]


def slim(value: Any, digits: int | None, text: Callable[[str], str]) -> Any:
    """A value as JSON writes it: fewer digits, no fields that have their default, `text` applied to every string."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {config.tag_field: config.tag} if config.tag is not None else {}
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            if field.required or inner != _default(field):
                is_moment = field.name in MOMENTS and isinstance(inner, float)
                fields[field.encode_name] = round(inner, MOMENT_DECIMALS) if is_moment else slim(inner, digits, text)
        return fields
    if isinstance(value, float):
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, (tuple, list)):
        return [slim(part, digits, text) for part in value]
    if isinstance(value, dict):
        return {key: slim(part, digits, text) for key, part in value.items()}
    return text(value) if isinstance(value, str) else value


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


class NeutralPaths:
    """Replaces the folders in which this machine keeps the checkout, the virtual environment and Python."""

    def __init__(self, script: str) -> None:
        match = _CHECKOUT.fullmatch(script)
        self._checkout = match["checkout"] + "/" if match else None
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        known = self._known.get(text)
        if known is None:
            moved = text.replace(self._checkout, PROJECT + "/") if self._checkout else text
            known = self._known[text] = _PROGRAM.sub("/usr", _LIBRARY.sub("/usr", moved))
        return known

    def foreign(self) -> list[str]:
        """Absolute paths in what was given out that are not where every machine has them."""
        paths = {path for text in self._known.values() for path in _ABSOLUTE.findall(text)}
        return sorted(path for path in paths if not _NEUTRAL.match(path))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, metavar="RAW", help="a recording, or a folder of them")
    parser.add_argument("out", type=Path, metavar="OUT", help="where to write; a folder if RAW is one")
    return parser.parse_args()


def main() -> int:
    args = options()
    pairs = [(args.raw, args.out)]
    if args.raw.is_dir():
        args.out.mkdir(parents=True, exist_ok=True)
        pairs = [(path, args.out / recording_name(*scenario_and_tier(path))) for path in recordings(args.raw)]
    failed = 0
    before = after = 0
    for raw, out in pairs:
        try:
            size = trimmed(raw, out)
        except ValueError as error:
            failed += 1
            print(error, file=sys.stderr)
            continue
        before, after = before + raw.stat().st_size, after + size
        print(f"{raw.name:<36}{raw.stat().st_size / 1e3:>9.1f} kB →{size / 1e3:>8.1f} kB", flush=True)
    print(f"{len(pairs) - failed} recordings, {before / 1e6:.2f} MB → {after / 1e6:.2f} MB; {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
