"""Feeds hostile input to everything in aitop that reads what others write.

Coverage-guided: an input is kept and changed further if it made the code take a branch that no input had taken before.
Inputs are changed byte by byte, word by word and, where they hold JSON, value by value. Prints what was fed and every
finding. Its input is added to `tests/robustness/corpus`, to be committed with the mend and a name that says what it is;
`--again` feeds that folder, as the tests do. The same --seed makes the same inputs.

    python tests/robustness/fuzz.py ring --minutes 5
    python tests/robustness/fuzz.py --again
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
import time
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

from fuzz_subjects import SUBJECTS, Subject

import aitop

OURS = str(Path(aitop.__file__).parent)
CORPUS = Path(__file__).with_name("corpus")
LONGEST = 200_000
SLOW_SECONDS = 5.0
PLAIN_ROUNDS = 4  # of so many inputs one is followed line by line
WORDS = (0, 1, 2, 7, 40, 64, 255, 4096, 65535, 65536, 2**31 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m\u202e\u2066x",
    "a\r\nb\u2028c\x00",
    "</code><script>alert(1)</script>",
    "%s%n{0}{0.__class__}",
    "[bold red]x[/]",
    "../../../../etc/shadow",
    "é" * 3000,
    "\ud800",
    "",
)
NUMBERS = (0, -1, 1, -0.0, 1e-320, 0.5, 1.0, 1e9, 1e18, 1e300, -1e300, 2**31, 2**53 + 1, 2**63, 2**64, 10**30)
RAW = (b"NaN", b"Infinity", b"1e999", b"-", b"01", b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b"nul")


class Lines:
    """Which line of ours followed which, as seen by a trace function; `fresh` since it was last emptied."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.fresh = 0
        self._last = 0
        self._ours: dict[CodeType, bool] = {}

    def follow(self, frame: FrameType, what: str, _: Any) -> Any:
        """For sys.settrace."""
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = code.co_filename.startswith(OURS)
        if not ours:
            return None
        self._step(frame)
        return self._line

    def _line(self, frame: FrameType, what: str, _: Any) -> Any:
        if what == "line":
            self._step(frame)
        return self._line

    def _step(self, frame: FrameType) -> None:
        here = hash((frame.f_code, frame.f_lineno))
        edge = self._last ^ here
        self._last = here >> 1
        if edge not in self.seen:
            self.seen.add(edge)
            self.fresh += 1


class Mutator:
    """Makes inputs out of inputs."""

    def __init__(self, subject: Subject, chance: random.Random) -> None:
        self._subject = subject
        self._chance = chance

    def change(self, data: bytes, other: bytes) -> bytes:
        """One to six changes; `other` is another input to take pieces from."""
        for _ in range(self._chance.choice((1, 1, 1, 2, 3, 6))):
            places = self._subject.json_at(data)
            ways = (self._bytes, self._bytes, self._word, self._piece)
            if places and self._chance.random() < 0.7:
                data = self._json(data, *self._chance.choice(places))
            else:
                data = self._chance.choice(ways)(data, other)
        return data[:LONGEST]

    def _bytes(self, data: bytes, _other: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._chance.choice((1, 1, 2, 8))):
            at = self._chance.randrange(len(changed) + 1)
            how = self._chance.randrange(3)
            if how == 0 and at < len(changed):
                changed[at] ^= 1 << self._chance.randrange(8)
            elif how == 1:
                changed[at:at] = self._chance.randbytes(self._chance.choice((1, 1, 4)))
            else:
                del changed[at : at + self._chance.choice((1, 2, 8, 64))]
        return bytes(changed)

    def _word(self, data: bytes, _other: bytes) -> bytes:
        if len(data) < 8:
            return data
        at = self._chance.randrange(len(data) // 8) * 8
        old = struct.unpack_from("=Q", data, at)[0]
        new = self._chance.choice((self._chance.choice(WORDS), old + self._chance.choice((-1, 1, 40, 10**9, -(10**9)))))
        return data[:at] + struct.pack("=Q", new % 2**64) + data[at + 8 :]

    def _piece(self, data: bytes, other: bytes) -> bytes:
        """A piece of another input, or of this one, put somewhere; for lines, whole ones."""
        mark = b"\n" if data.count(b"\n") > 2 and self._chance.random() < 0.8 else None
        mine, theirs = (text.splitlines(keepends=True) if mark else [text] for text in (data, other))
        if mark and mine and theirs:
            mine.insert(self._chance.randrange(len(mine) + 1), self._chance.choice(theirs))
            if self._chance.random() < 0.5:
                del mine[self._chance.randrange(len(mine))]
            return b"".join(mine)
        start = self._chance.randrange(len(other) + 1)
        piece = other[start : start + self._chance.choice((8, 40, 400, 4000))]
        at = self._chance.randrange(len(data) + 1)
        return data[:at] + piece + data[at:]

    def _json(self, data: bytes, start: int, end: int) -> bytes:
        """Another value somewhere in a JSON text."""
        try:
            value = json.loads(data[start:end])
        except (ValueError, RecursionError):
            return self._bytes(data, data)
        slots = _slots(value)
        if not slots:
            return data
        holder, key = self._chance.choice(slots)
        mark = "@@here@@"
        if self._chance.random() < 0.15:
            holder[key] = mark
            text = json.dumps(value).encode().replace(f'"{mark}"'.encode(), self._chance.choice(RAW))
        else:
            holder[key] = self._value(holder[key])
            text = json.dumps(value, ensure_ascii=self._chance.random() < 0.5).encode("utf-8", "surrogatepass")
        return data[:start] + text + data[end:]

    def _value(self, old: Any) -> Any:
        """Mostly one of the same type, so that it gets past the types."""
        if self._chance.random() < 0.15:
            return self._chance.choice((None, True, [], {}, [old, old], {"x": old}, "x", 1))
        if isinstance(old, str):
            return self._chance.choice((self._chance.choice(HOSTILE), old + self._chance.choice(HOSTILE)))
        if isinstance(old, (int, float)) and not isinstance(old, bool):
            near = old * self._chance.choice((-1, 0.5, 2, 1000)), old + self._chance.choice((-1, 1, 3600))
            made = self._chance.choice((self._chance.choice(NUMBERS), *near))
            return int(made) if isinstance(old, int) and abs(made) < 1e300 and self._chance.random() < 0.8 else made
        if isinstance(old, list):
            return self._chance.choice(([], old[:1], old * 2, old[::-1], old * 50 if len(old) < 50 else old))
        return None


def _slots(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value that can be given another one."""
    slots: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        holder = todo.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            slots.append((holder, key))
            todo.append(holder[key])
    return slots


def fuzz(subject: Subject, seconds: float, seed: int, keep: Path | None, most: int = 10**9) -> int:
    """Feed the subject for so long, `most` inputs at most; prints figures and findings, returns their number."""
    chance, lines = random.Random(seed), Lines()
    mutator, corpus = Mutator(subject, chance), list(subject.seeds())
    findings: dict[str, bytes] = {}
    fed, slowest, started = 0, 0.0, time.monotonic()
    queue = list(corpus)
    while time.monotonic() - started < seconds and fed < most:
        data = queue.pop() if queue else mutator.change(chance.choice(corpus), chance.choice(corpus))
        followed = fed % PLAIN_ROUNDS == 0 or bool(queue)
        took, finding = feed(subject, data, lines if followed else None)
        fed, slowest = fed + 1, max(slowest, took)
        if lines.fresh and len(corpus) < 5000:
            corpus.append(data)
        lines.fresh = 0
        if finding is not None and (place := finding.partition(": ")[0]) not in findings:
            findings[place] = data
            report(subject, finding, data, keep)
    print(
        f"{subject.name}: {fed} inputs in {time.monotonic() - started:.0f} s (seed {seed}), {len(corpus)} kept for "
        f"{len(lines.seen)} pairs of lines, slowest {slowest:.2f} s, {len(findings)} findings",
        flush=True,
    )
    return len(findings)


def feed(subject: Subject, data: bytes, lines: Lines | None) -> tuple[float, str | None]:
    """Seconds of CPU that it took (a fuzzer may be held), and the place and kind of what went wrong."""
    began = time.process_time()
    try:
        if lines is not None:
            sys.settrace(lines.follow)
        subject.feed(data)
    except Exception as error:
        sys.settrace(None)
        at = traceback.extract_tb(error.__traceback__)[-1]
        return 0.0, f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {str(error)[:200]!a}"
    finally:
        sys.settrace(None)
    took = time.process_time() - began
    return took, f"took {SLOW_SECONDS:g} s" if took > SLOW_SECONDS else None


def report(subject: Subject, finding: str, data: bytes, keep: Path | None) -> None:
    """Say it at once, and keep the input."""
    name = f"{subject.name}-{hashlib.sha1(data).hexdigest()[:10]}"
    print(f"FINDING {name}: {finding}", flush=True)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / name).write_bytes(data)


def again(paths: list[Path]) -> int:
    """Feed files that are named `SUBJECT-…`, recordings to the screen as well; returns the number of findings."""
    findings = 0
    for path in paths:
        name = path.name.partition("-")[0]
        for subject in (SUBJECTS[name], *((SUBJECTS["screen"],) if name == "recording" else ())):
            finding = feed(subject, path.read_bytes(), None)[1]
            findings += finding is not None
            print(f"{subject.name} {path.name}: {finding or 'as it should be'}")
    return findings


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("subject", nargs="*", choices=[*SUBJECTS, []], help="default: all")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each subject (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=CORPUS, help="folder for the inputs of findings (default: corpus)")
    parser.add_argument("--again", type=Path, nargs="*", help="only feed these files, or those of the corpus")
    args = parser.parse_args()
    if args.again is not None:
        return again(args.again or sorted(CORPUS.iterdir()))
    chosen = [SUBJECTS[name] for name in args.subject or SUBJECTS]
    findings = sum(fuzz(subject, 60 * args.minutes, args.seed, args.keep) for subject in chosen)
    spread = f"{args.minutes:g} min each: {', '.join(subject.name for subject in chosen)}"
    return publish(args, [Figure("inputs that did what they must not", findings, most=0, spread=spread)])


if __name__ == "__main__":
    sys.exit(main())
