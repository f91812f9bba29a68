"""How right the diagnosis of servers is, live: id, process, line, percentiles and gains, with the hook and without.

Each case of serving_cases.py is a server of its own under its load; `aitop diagnose` looks at it as a user would, at
tier 3 and then with --no-hook. Its percentiles are held against those that the clients measured in the same seconds,
from the sending of a request until its answer was with their kernel; what the clients saw with their own delays stands
beside them. Where a case has a change (larger batches, another replica) the server is run with it, and the gain in
requests a second is held against the one that was predicted for it.

    python tests/accuracy/serving/serving_verdicts.py
    python tests/accuracy/serving/serving_verdicts.py review_scores:collect --keep FOLDER
    python tests/accuracy/serving/serving_verdicts.py --clients-only      what the clients see, without aitop
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from results import RESULTS, Figure, Pieces, commit, does_enough, options, publish  # isort: split

from serving_cases import CASE_BY_NAME, CASES, VLLM_PYTHON, Case
from serving_run import Answer, Clients, Neighbours, Server, capacity, quantile

RIGHT_BARS = {3: 90.0, 2: 75.0}
LATENCY_BAR, GAIN_BAR = 0.10, 0.25
WARM_SECONDS, GAIN_SECONDS = 4.0, 8.0
LATENCIES = ("p50", "p95", "p99", "TTFT")
WARNS = ("warning", "critical")
STALLED_SECONDS = 5


@dataclass
class Row:
    """What one case got at one tier.

    `right_line` and `right_process` are None where none is expected. `latency` has, for each of LATENCIES, what
    aitop said and what the clients measured, in milliseconds; `seen` has the clients' own delays as well. `alarms` are
    untrue warnings. `gain` is the predicted factor of the change, `real` the measured one; None is not predicted. `to`
    is the value that the prediction is for, None where it names none.
    """

    name: str
    tier: int
    expected: str
    said: str
    right: bool
    right_line: bool | None = None
    right_process: bool | None = None
    where: str | None = None
    latency: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    seen: dict[str, float | None] = field(default_factory=dict)
    basis: str | None = None
    alarms: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    requests: int = 0
    failed: int = 0
    gain: float | None = None
    to: int | None = None
    real: float | None = None
    note: str = ""

    def flawless(self) -> bool:
        """Whether verdict, process and line are right, and nothing else is warned of."""
        return self.right and self.right_line is not False and self.right_process is not False and not self.alarms


def named(verdict: dict[str, Any]) -> str:
    return verdict["id"] + (f"/{verdict['subtype']}" if verdict.get("subtype") else "")


class Bench:
    """The rows so far, and how they are made."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._pieces = Pieces(resume=args.resume)
        self.rows = [Row(**piece) for piece in self._pieces.read()]

    def take(self, case: Case) -> None:
        """Look at a server at each tier, one after the other, while its clients go on."""
        tiers = [t for t in self._args.tiers if not any((r.name, r.tier) == (case.name, t) for r in self.rows)]
        rows: list[Row] = []
        try:
            for tier in tiers:
                # A server of its own each time: what a hook was in before is not the server that a user has.
                with running(case) as server:
                    rows.append(self._watched(case, server, tier))
            if case.change and rows and not self._args.no_gains:
                real = real_gain(case, next((row.to for row in rows if row.to is not None), None))
                for row in rows:
                    row.real = real
        except (RuntimeError, OSError) as failure:
            rows += [Row(case.name, t, wanted(case), "nothing", False, note=f"not run: {failure}"[-300:])
                     for t in tiers[len(rows):]]  # fmt: skip
        for row in rows:
            self.rows.append(row)
            self._pieces.add(asdict(row))
            print(line_of(row), flush=True)

    def _watched(self, case: Case, server: Server, tier: int) -> Row:
        with loaded(case, server, self._args.seconds + 60.0) as clients:
            time.sleep(WARM_SECONDS)
            if case.stopped:
                os.kill(server.model_pid, signal.SIGSTOP)
                # What was under way stays so, and no monitor has seen the moment.
                time.sleep(1.0)
            code, report, until = self._diagnose(case, server, tier)
            # Requests are seen from the moment on at which it is known where they are answered.
            seen = (report.get("serving") or {}).get("window_s") or report.get("window_s") or self._args.seconds
            answers = clients.answers(until - seen, until)
            row = row_of(case, tier, report, answers, server.model_pid)
            if self._args.keep:
                self._kept(case, tier, "json").write_text(json.dumps(report, indent=1))
            if code != int(case.stopped):
                row.note, row.right = f"--fail-on stalled left with {code} {row.note}", False
            if not server.alive():
                row.note, row.right = "the server has ended", False
        return row

    def _diagnose(self, case: Case, server: Server, tier: int) -> tuple[int, dict[str, Any], float]:
        """Exit code, report and the moment at which the look ended."""
        seconds = STALLED_SECONDS if case.stopped else self._args.seconds
        file = server.folder / f"tier{tier}.json"
        command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(server.pid), "--for", f"{seconds:g}s"]
        command += ["--format", "json", "-o", str(file), "--fail-on", "stalled"]
        command += [] if tier == 3 else ["--no-hook"]
        if self._args.keep:
            command += ["--record", str(self._kept(case, tier, "jsonl.gz"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=False)
        until = time.monotonic()
        report = {"note": done.stderr.strip()[-200:]}
        if file.exists():
            # Leaving the server takes a moment, in which it is no longer looked at.
            until -= max(0.0, time.time() - file.stat().st_mtime)
            report = json.loads(file.read_text())
        return done.returncode, report, until

    def _kept(self, case: Case, tier: int, ending: str) -> Path:
        """Where the report or the recording of a look is kept."""
        self._args.keep.mkdir(parents=True, exist_ok=True)
        file: Path = self._args.keep / f"{case.name.replace(':', '_')}.t{tier}.{ending}"
        file.unlink(missing_ok=True)
        return file


def real_gain(case: Case, to: int | None = None) -> float:
    """The factor in requests a second that the change gives: the server as it is and changed, twice in turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for changed in (False, True, True, False):
        with running(case, changed=changed, to=to) as server:
            rates[changed].append(capacity(server, sends_of(case), case.clients or 4, GAIN_SECONDS))
    return sum(rates[True]) / sum(rates[False])


def wanted(case: Case) -> str:
    return case.verdict + (f"/{'|'.join(case.subtypes)}" if case.subtypes else "")


def row_of(case: Case, tier: int, report: dict[str, Any], answers: Sequence[Answer], model: int) -> Row:
    """Hold a report against what is expected, and against what the clients saw in the same seconds."""
    case = case.at(tier)
    verdicts = report.get("verdicts") or []
    warnings = [verdict for verdict in verdicts if verdict["severity"] in WARNS]
    row = Row(case.name, tier, wanted(case), "nothing", False, note=report.get("note", ""))
    serving = report.get("serving") or {}
    good = [answer for answer in answers if answer.status == 200]
    seconds = [answer.served for answer in good if answer.served is not None]
    row.requests, row.failed = len(seconds), len(answers) - len(seconds)
    row.basis = serving.get("basis")
    latency = serving.get("latency_ms") or {}
    for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        theirs = quantile(seconds, part)
        row.latency[name] = latency.get(name), _milliseconds(theirs)
        row.seen[name] = _milliseconds(quantile([answer.seconds for answer in good], part))
    if case.streams:
        firsts = [answer.first for answer in good if answer.first is not None]
        row.latency["TTFT"] = (serving.get("ttft_ms") or {}).get("p50"), _milliseconds(quantile(firsts, 0.5))
    true = case.true_ids()
    row.alarms = [named(verdict) for verdict in warnings if case.healthy() or verdict["id"] not in true]
    if case.healthy():
        row.said = ", ".join(map(named, warnings)) or "nothing"
        row.right = not row.alarms and "window_s" in report
        return row
    row.right_line = False if case.guilty else None
    row.right_process = False if not case.neighbours else None
    if not verdicts:
        return row
    first = verdicts[0]
    row.said, row.others = named(first), [f"{named(verdict)} {verdict['severity']}" for verdict in verdicts[1:]]
    row.right = case.accepts(first["id"], first.get("subtype"))
    places = first.get("where") or []
    if row.right_process is not None:
        row.right_process = model in {*(first.get("processes") or []), *(place["pid"] for place in places)}
    if places:
        row.where = f"{Path(places[0]['file']).name}:{places[0]['line']}"
        if case.guilty:
            row.right_line = row.where in {f"{case.script.name}:{number}" for number in case.guilty_lines()}
    row.gain, row.to = predicted(case, verdicts)
    return row


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def predicted(case: Case, verdicts: Sequence[dict[str, Any]]) -> tuple[float | None, int | None]:
    """What the report expects of the case's change, and the value it expects it of; None where it abstains."""
    for verdict in verdicts:
        for fix in verdict.get("fixes") or []:
            setting = fix.get("setting") or {}
            meant = case.change and case.remedy in (setting.get("name") or fix["text"])
            if meant and fix.get("speedup") is not None:
                return float(fix["speedup"]), setting.get("to")
    return None, None


@contextlib.contextmanager
def running(case: Case, *, changed: bool = False, to: int | None = None) -> Iterator[Server]:
    """The case's server, and the processes beside it."""
    command = case.mended_command(to) if changed else case.command
    python = VLLM_PYTHON if case.python == "vllm" else case.python
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"} if case.python == "vllm" else {}
    field_ = case.sends[case.sends.index("--field") + 1] if "--field" in case.sends else "text"
    body = {field_: "shinesion", **dict(case.body)}
    with Server(command, case.path, body, quota=case.quota, env=env, python=python or sys.executable) as server:
        yield server


@contextlib.contextmanager
def loaded(case: Case, server: Server, seconds: float) -> Iterator[Clients]:
    """The case's clients, and the hungry processes beside the server."""
    sends = sends_of(case)
    if case.load is not None:
        how = ["--rate", f"{case.load * capacity(server, sends):.2f}"]
    else:
        how = ["--clients", str(case.clients)]
    with Neighbours(case.neighbours), Clients(server, [*sends, *how, "--seconds", str(seconds)]) as clients:
        yield clients


def sends_of(case: Case) -> list[str]:
    """The options of serving_load.py for what a request of the case holds."""
    return [*case.sends, "--more", json.dumps(dict(case.body))]


def line_of(row: Row) -> str:
    marks = "right" if row.right else f"WRONG, expected {row.expected}"
    marks += f", UNTRUE {' '.join(row.alarms)}" if row.alarms else ""
    marks += ", WRONG LINE" if row.right_line is False else ""
    marks += ", WRONG PROCESS" if row.right_process is False else ""
    latency = "; ".join(f"{name} {text(ours)} of {text(theirs)} ms" for name, (ours, theirs) in row.latency.items())
    latency += f", clients saw {' and '.join(text(seen) for seen in row.seen.values())}" if row.seen else ""
    gain = f"; gain {text(row.gain)} of {text(row.real)}" if row.real is not None else ""
    about = f"{row.requests} answers, {row.failed} failed; {row.basis or 'no figures'}: {latency}{gain}"
    return f"{row.name} at tier {row.tier}: {row.said} {marks} {row.where or ''} ({about}) {row.others} {row.note}"


def text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def in_markdown(rows: Sequence[Row]) -> str:
    head = ("server", "tier", "expected", "said", "right", "process", "line", *LATENCIES, "gain", "notes")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        pairs = [row.latency.get(name) for name in LATENCIES]
        latency = ["–" if pair is None else f"{text(pair[0])} / {text(pair[1])}" for pair in pairs]
        for place, name in enumerate(LATENCIES):
            latency[place] += f" ({text(row.seen[name])})" if row.seen.get(name) is not None else ""
        marks = [{None: "–", True: "yes", False: "NO"}[mark] for mark in (row.right, row.right_process, row.right_line)]
        gain = f"{text(row.gain)} / {text(row.real)}" if row.real is not None else "–"
        notes = [f"UNTRUE WARNING {' '.join(row.alarms)}"] if row.alarms else []
        notes += [f"{row.failed} failed"] if row.failed else []
        notes += [row.note.replace("\n", " ").replace("|", "/")] if row.note else []
        cells = (row.name, str(row.tier), row.expected.replace("|", " or "), row.said, *marks, *latency, gain)
        lines.append("| " + " | ".join((*cells, "; ".join(notes))) + " |")
    return "\n".join(lines)


def figures(rows: Sequence[Row], *, gains: bool = True) -> Iterator[Figure]:
    """Accuracy, untrue warnings, percentiles and, with `gains`, those of changes at each tier, with their bars."""
    for tier in sorted({row.tier for row in rows}, reverse=True):
        ours = [row for row in rows if row.tier == tier]
        faulty = [row for row in ours if not CASE_BY_NAME[row.name].healthy()]
        yield _share(f"tier {tier}: first verdict right", [row.right for row in faulty], RIGHT_BARS[tier])
        for what, marks in (
            ("process right", [row.right_process for row in faulty]),
            ("line right", [row.right_line for row in faulty]),
        ):
            yield _share(f"tier {tier}: {what}", [mark for mark in marks if mark is not None], RIGHT_BARS[tier])
        healthy = [row for row in ours if CASE_BY_NAME[row.name].healthy()]
        for name, group in (("healthy", healthy), ("faulty", faulty)):
            warned = [row.name for row in group if row.alarms]
            yield _number(f"tier {tier}: {name} servers with an untrue warning", warned, len(group))
        for name in LATENCIES:
            known = {row.name: row.latency.get(name, (None, None)) for row in ours if has_latency(row, name)}
            off = [each for each, pair in known.items() if abs(_error(*pair) or 0.0) > LATENCY_BAR]
            off += [f"{each} unknown" for each, pair in known.items() if _error(*pair) is None]
            yield _number(f"tier {tier}: {name} more than 10 % from the clients'", off, len(known))
        if gains:
            errors = {row.name: _error(row.gain, row.real) for row in ours if has_gain(row)}
            wrong = [f"{name} {error:+.0%}" for name, error in errors.items() if abs(error or 0.0) > GAIN_BAR]
            wrong += [f"{name} unknown" for name, error in errors.items() if error is None]
            yield _number(f"tier {tier}: predicted gains more than 25 % off", wrong, len(errors))
        lost = sum(row.failed for row in ours)
        yield Figure(
            f"tier {tier}: requests that failed", lost, most=0, spread=f"of {sum(row.requests for row in ours)}"
        )


def has_latency(row: Row, name: str) -> bool:
    """Whether aitop should tell this percentile: not of a server that is stopped, and without the hook only of vLLM."""
    case = CASE_BY_NAME[row.name]
    return not case.stopped and (row.tier == 3 or case.python == "vllm") and (name != "TTFT" or case.streams)


def has_gain(row: Row) -> bool:
    """Whether a gain is to be compared: with the hook that of each case with a change, without it what is predicted."""
    return bool(CASE_BY_NAME[row.name].change) and (row.tier == 3 or row.gain is not None)


def _error(ours: float | None, theirs: float | None) -> float | None:
    """How far a figure is from the other, as a part of that; None where one of them was not measured."""
    return ours / theirs - 1 if ours is not None and theirs else None


def _number(what: str, wrong: Sequence[str], of: int) -> Figure:
    """How many of so many are wrong, and which; no bar where none are to be judged."""
    return Figure(
        what, len(wrong) if of else None, most=0 if of else None, spread=f"of {of}{': ' * bool(wrong)}{' '.join(wrong)}"
    )


def _share(what: str, marks: Sequence[bool], least: float) -> Figure:
    value = 100 * sum(marks) / len(marks) if marks else None
    return Figure(what, value, "%", least=least, spread=f"{sum(marks)} of {len(marks)}")


def clients_only(case: Case, seconds: float) -> str:
    """What the clients see of a server that nobody looks at."""
    with running(case) as server, loaded(case, server, seconds + WARM_SECONDS) as clients:
        time.sleep(WARM_SECONDS)
        since = time.monotonic()
        time.sleep(seconds)
        answers = clients.answers(since)
    good = [answer.seconds * 1e3 for answer in answers if answer.status == 200]
    firsts = [answer.first * 1e3 for answer in answers if answer.first is not None]
    parts = [f"p{part:.0f} {text(quantile(good, part / 100))}" for part in (50, 95, 99)]
    rate = len(good) / seconds
    return f"{case.name}: {rate:.1f}/s, {', '.join(parts)} ms, first byte p50 {text(quantile(firsts, 0.5))} ms, " + (
        f"{len(answers) - len(good)} failed"
    )


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases (default: all that can run here)")
    parser.add_argument("--tiers", default=[3, 2], type=lambda words: [int(word) for word in words.split(",")])
    parser.add_argument("--seconds", type=float, default=15.0, help="how long to look")
    parser.add_argument("--no-gains", action="store_true", help="do not run the changes")
    parser.add_argument("--clients-only", action="store_true", help="print what the clients see, without aitop")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep reports and recordings")
    parser.add_argument("--resume", action="store_true", help="go on where the last run was interrupted")
    args = parser.parse_args()
    if unknown := set(args.names) - set(CASE_BY_NAME):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASE_BY_NAME)}")
    # Being ended must end the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [CASE_BY_NAME[name] for name in args.names] or list(CASES)
    for case in [each for each in chosen if each.missing()]:
        print(f"{case.name} left out: {case.missing()}")
    chosen = [each for each in chosen if not each.missing()]
    if args.clients_only:
        for case in chosen:
            print(clients_only(case, args.seconds), flush=True)
        return 0
    bench = Bench(args)
    for case in chosen:
        bench.take(case)
    rows = in_markdown(bench.rows)
    print(rows)
    if args.results == RESULTS and does_enough():
        when = f"{time.strftime('%Y-%m-%d')}, commit {commit() or 'unknown'}"
        Path(__file__).with_name("verdicts.md").write_text(f"# Servers, watched live\n\n{when}\n\n{rows}\n")
    return publish(args, list(figures(bench.rows, gains=not args.no_gains)))


if __name__ == "__main__":
    sys.exit(main())
