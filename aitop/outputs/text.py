"""The report as plain text for a terminal or a log: the verdict first, then where the time goes and what is missing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from aitop.diagnosis.comparison_words import headline, in_a_sentence
from aitop.diagnosis.run_comparison import compared
from aitop.model.snapshot import Snapshot
from aitop.model.text import printable
from aitop.model.units import duration, factor, factor_range, pace, percent, plural
from aitop.model.verdict import BASES, Fix, Verdict, Where, by_reason
from aitop.outputs.ledger_table import Row, Table, tables
from aitop.outputs.report import NO_STEPS, phase_shares, sources_of

WIDTH = 80
UNBROKEN = "\u00a0"
"""A no-break space: textwrap does not break a line there."""
BAR = 40
PHASE_NAMES = {"data_wait": "data", "communication": "exchange", "outside": "host"}
"""What phases are called where that differs from their key."""
PLACES_SHOWN = PIDS_SHOWN = 4
# Seconds without progress from which on the report mentions it. Whether a server is stalled, the verdicts say.
LEAST_STILL = 1.0


def to_text(snapshot: Snapshot) -> str:
    """The whole report on a Snapshot. Control characters in text of the target (names, command lines) are replaced."""
    parts = [
        _head(snapshot),
        comparison_text(snapshot),
        *[_finding(snapshot, verdict) for verdict in snapshot.diagnosis.verdicts],
        *([] if snapshot.diagnosis.verdicts else [_paragraph(f"NO VERDICT: {no_verdict(snapshot)}")]),
        *map(_table, tables(snapshot)),
        _serving(snapshot),
        _step(snapshot),
        _section("Not measured:", gaps(snapshot)),
        _section("Could not be judged:", abstentions(snapshot)),
        _paragraph(costs(snapshot)),
    ]
    text = "\n\n".join(part for part in parts if part)
    return "".join(f"{printable(line)}\n" for line in text.split("\n"))


def comparison_text(snapshot: Snapshot) -> str:
    """How fast the run is compared with an earlier one. That this cannot be told is only said to a user who asked."""
    comparison = compared(snapshot)
    words = in_a_sentence(comparison) if comparison is not None else None
    if words is not None:
        return f"{words[0].upper()}{words[1:]}."
    if comparison is None or not comparison.before.command:
        return ""
    return "\n".join(headline(comparison.change, comparison.after.unit or "unit"))


def measured_phases(snapshot: Snapshot) -> list[tuple[str, float]]:
    """Key and share of every phase that was measured, in the order of a step."""
    return [(key, share) for key, share in phase_shares(snapshot.phases).items() if share is not None]


def step_figures(snapshot: Snapshot) -> list[str]:
    """What is known about the pace: step/s, tokens/s or else samples/s, MFU, p50, p95, number of steps."""
    steps = snapshot.steps or NO_STEPS
    return _known(
        (steps.per_second, lambda per_s: f"{pace(per_s)} step/s"),
        (steps.tokens_per_second, "{:,.0f} tokens/s".format),
        (
            steps.samples_per_second if steps.tokens_per_second is None else None,
            lambda per_s: f"{pace(per_s)} samples/s",
        ),
        (steps.mfu, lambda share: f"{percent(share)} MFU"),
        (steps.p50, lambda length: f"{duration(length)} p50"),
        (steps.p95, lambda length: f"{duration(length)} p95"),
        (steps.count, "{:,} steps seen".format),
    )


def _known(*figures: tuple[float | None, Callable[[float], str]]) -> list[str]:
    """The figures that were measured, each in its words."""
    return [words(value) for value, words in figures if value is not None]


def serving_figures(snapshot: Snapshot) -> list[str]:
    """What a server does, as far as it is known: rate, queue, batch, cache."""
    serving = snapshot.serving
    if serving is None:
        return []
    return _known(
        (serving.requests_per_second, lambda per_s: f"{pace(per_s)} requests/s"),
        (serving.tokens_per_second, "{:,.0f} tokens/s".format),
        (serving.concurrency, "{:.3g} under way".format),
        (serving.queue, "{:.3g} waiting".format),
        (serving.batch_mean, "batch {:.3g}".format),
        (serving.kv_used, lambda share: f"KV cache {percent(share)}"),
        (serving.preemptions_per_second or None, "{:.3g} preemptions/s".format),
    )


def serving_times(snapshot: Snapshot) -> list[tuple[str, tuple[str, str, str]]]:
    """Name, and p50, p95 and p99 in words, of each kind of time of a request that was measured."""
    serving = snapshot.serving
    if serving is None:
        return []
    named = {"latency": serving.latency, "first token": serving.first_token, "between tokens": serving.inter_token}
    return [
        (name, (duration(times.p50), duration(times.p95), duration(times.p99)))
        for name, times in named.items()
        if times is not None
    ]


def serving_state(snapshot: Snapshot) -> str | None:
    """How many requests are under way, and for how long without progress; None where they do get on."""
    serving = snapshot.serving
    if serving is None or not serving.alive or serving.still is None or serving.still < LEAST_STILL:
        return None
    return f"{serving.alive} under way, without progress for {duration(serving.still)}"


def gaps(snapshot: Snapshot) -> list[str]:
    """One line for each source that does not work, with the reason and the remedy."""
    lines = []
    for name, source in sources_of(snapshot).items():
        # Where nothing is served, no metrics of a server are missing.
        if source.state != "ok" and (name != "server" or snapshot.serving is not None):
            reason = f": {printable(source.reason)}" if source.reason else ""
            remedy = f" → {printable(source.remedy)}" if source.remedy else ""
            lines.append(f"{name} {source.state}{reason}{remedy}")
    return lines


def abstentions(snapshot: Snapshot) -> list[str]:
    """One line for each reason why rules could not judge, with the verdicts concerned."""
    return [f"{reason}: {', '.join(ids)}" for reason, ids in by_reason(snapshot.diagnosis.abstained)]


def no_verdict(snapshot: Snapshot) -> str:
    """Why there is no verdict: no single cause, too little evidence, or nothing that stands out."""
    if any(ledger.entries for ledger in snapshot.ledgers):
        return "no single cause stands out. Where the time goes is listed below."
    return (
        "not enough was seen to say what costs time."
        if snapshot.diagnosis.abstained
        else "nothing that was seen stands out."
    )


def costs(snapshot: Snapshot) -> str:
    """What watching cost, as far as it was measured, and the notes of sources that work; empty without either."""
    unit = "forward pass" if snapshot.kind == "inference" else "step"
    measured = _known(
        (snapshot.cost.monitor_cpu, lambda cores: f"{percent(cores, 1)} of a core"),
        (snapshot.cost.hook_us_per_step, f"{{:.1f}} µs a {unit} in the target".format),
        (snapshot.cost.target_slowdown, lambda share: f"{percent(share, 2)} of its step time"),
    )
    cost = [f"Watching cost {', '.join(measured)}."] if measured else []
    notes = [
        f"{name}: {printable(of.reason)}."
        for name, of in sources_of(snapshot).items()
        if of.state == "ok" and of.reason
    ]
    return " ".join((*cost, *notes))


def losses(snapshot: Snapshot, verdict: Verdict) -> list[str]:
    """The numbers of a verdict in words: what is lost, what would be gained, how certain the cause is.

    Where several processes do the work, also which of them lose the time.
    """
    parts = []
    if verdict.share is not None:
        parts.append(f"{percent(verdict.share)} of {BASES[verdict.base]}")
    if verdict.speedup is not None:
        parts.append(_gain(verdict.speedup, verdict.speedup_range))
    parts.append(f"cause {percent(verdict.confidence)} certain")
    if verdict.processes and len(snapshot.ledgers) > 1:
        parts.append(_pids(verdict.processes))
    return parts


def _pids(pids: Sequence[int]) -> str:
    """pid 4242, or pids 1, 2, 3, 4 and 60 more."""
    named = ", ".join(map(str, pids[:PIDS_SHOWN]))
    more = f" and {len(pids) - PIDS_SHOWN} more" if len(pids) > PIDS_SHOWN else ""
    return f"pid{'s' if len(pids) > 1 else ''} {named}{more}"


def _gain(speedup: float, interval: tuple[float, float] | None) -> str:
    """The gain, as a range where that is known: a certain cause does not make the gain exact."""
    low, high = interval or (1.0, speedup)
    if high <= 1.0 or (interval is None and speedup <= 1.0):
        return "no faster without it alone"
    gain = f"up to {factor(high)}" if low <= 1.0 else factor_range(low, high)
    return f"{gain} faster without it"


def place_text(place: Where) -> str:
    """function  file:line, with the share where it is known."""
    share = f"  {percent(place.share)}" if place.share is not None else ""
    return printable(f"{place.function}  {place.file}:{place.line}{share}  pid {place.pid}")


def fix_text(fix: Fix) -> str:
    """The change, and what it would give."""
    return printable(fix.text) + (f" (predicted: {factor(fix.speedup)})" if fix.speedup is not None else "")


def target_facts(snapshot: Snapshot) -> list[str]:
    """What was watched: pid, engine, kind of work, ranks, loader workers, and for how long."""
    workers = sum(process.role == "loader-worker" for process in snapshot.processes)
    ranks = len({process.rank for process in snapshot.processes if process.role == "rank"})
    facts = [f"pid {snapshot.target.pid}", snapshot.engine, snapshot.kind if snapshot.kind != "unknown" else None]
    facts += [f"{ranks} ranks" if ranks > 1 else None, plural(workers, "loader worker") if workers else None]
    return [fact for fact in (*facts, f"{snapshot.window:.0f} s watched") if fact]


def _head(snapshot: Snapshot) -> str:
    target = snapshot.target
    lines = [*_indented(target.command, ""), " · ".join(target_facts(snapshot))]
    return "\n".join([*lines, *(_indented(target.ended, "") if target.ended else [])])


def _finding(snapshot: Snapshot, verdict: Verdict) -> str:
    name = verdict.id.upper() + (f" · {verdict.subtype}" if verdict.subtype else "")
    lines = [f"{name}   [{verdict.severity}]", *_indented(verdict.title), *_listed("  ", losses(snapshot, verdict))]
    for place in verdict.where[:PLACES_SHOWN]:
        lines.append(f"  at   {place_text(place)}")
        if place.text:
            lines.append(trimmed(f"         {printable(place.text.strip())}", WIDTH))
    for fact in verdict.evidence:
        lines += _indented(fact, "  why  ")
    for fix in verdict.fixes:
        lines += _indented(fix_text(fix), "  fix  ")
    return "\n".join(lines)


def _table(table: Table) -> str:
    """Share, phase, activity and place in columns; the source line below its place."""
    phase = max(len(row.phase) for row in table.rows)
    activity = max(len(row.activity) for row in table.rows)
    lines = [*_indented(f"{table.title}:", "")]
    for row in table.rows:
        lines += _row_lines(row, phase, activity)
    return "\n".join([*lines, *([f"    {table.rest}"] if table.rest else [])])


def _row_lines(row: Row, phase: int, activity: int) -> list[str]:
    start = f"  {percent(row.share):>5}  {row.phase:<{phase}}  {row.activity:<{activity}}  "
    lines = [trimmed(start + printable(row.place), WIDTH).rstrip()]
    source = trimmed(printable(row.source), WIDTH - len(start) - 2)
    return [*lines, *([" " * (len(start) + 2) + source] if source else [])]


def trimmed(text: str, width: int) -> str:
    """The text, cut to this width."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _step(snapshot: Snapshot) -> str:
    phases = measured_phases(snapshot)
    if not phases and not step_figures(snapshot):
        return ""
    basis = f" (from {printable(snapshot.steps.basis)})" if snapshot.steps is not None else ""
    lines = _listed(f"Step{basis}: ", step_figures(snapshot) or ["no step was timed"])
    lines += [f"  {PHASE_NAMES.get(key, key):<14} {percent(share):>6}  {_bar(share)}".rstrip() for key, share in phases]
    return "\n".join(lines)


def _serving(snapshot: Snapshot) -> str:
    figures, times, state = serving_figures(snapshot), serving_times(snapshot), serving_state(snapshot)
    if snapshot.serving is None or not (figures or times or state):
        return ""
    lines = _listed(f"Serving (from {printable(snapshot.serving.basis)}): ", figures)
    if times:
        lines.append(f"  {'':<16}{'p50':>9}{'p95':>9}{'p99':>9}")
        lines += [f"  {name:<16}{''.join(f'{value:>9}' for value in values)}" for name, values in times]
    return "\n".join([*lines, *([f"  {state}"] if state else [])])


def _bar(share: float) -> str:
    """A bar, BAR cells wide for a whole step. Limited to that, as a recording may say anything."""
    return "█" * round(min(max(share, 0.0), 1.0) * BAR)


def _section(title: str, lines: Sequence[str]) -> str:
    """A title with lines below it; empty without lines."""
    return "\n".join([title, *(row for line in lines for row in _indented(line))]) if lines else ""


def _paragraph(text: str) -> str:
    return "\n".join(_indented(text, ""))


def _listed(start: str, parts: list[str]) -> list[str]:
    """The parts after `start`, wrapped between parts and never within one."""
    whole = f"{UNBROKEN}· ".join(printable(part).replace(" ", UNBROKEN) for part in parts)
    lines = textwrap.wrap(whole, WIDTH, initial_indent=start, subsequent_indent="  ", break_long_words=False)
    return [line.replace(UNBROKEN, " ") for line in lines]


def _indented(text: str, prefix: str = "  ") -> list[str]:
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=prefix, subsequent_indent=" " * len(prefix), break_long_words=False
    )
