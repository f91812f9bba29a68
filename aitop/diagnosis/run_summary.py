"""Makes the summary of a run up to a Snapshot: its units of work, where their time goes, its settings. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from random import Random

from msgspec.structs import replace

from aitop.diagnosis.evidence import lead_ledger
from aitop.model.ledger import QUEUE_WAITS, Entry, Ledger
from aitop.model.run import LineShare, Run, Scalar, StackNode, Units
from aitop.model.snapshot import CallNode, Snapshot, Stacks
from aitop.model.steps import HookFacts
from aitop.model.verdict import Verdict, Where
from aitop.stacks.call_tree import merged
from aitop.stacks.origin import origin_of

# Facts of the hook that a user sets, or that follow from what a user installs.
FACTS = (
    "torch", "python", "cuda", "threads", "optimizers", "foreach", "fused", "parameters", "parameter_dtypes",
    "input_dtypes", "autocast", "matmul_precision", "world_size",
)  # fmt: skip
LOADER_FACTS = ("workers", "batch_size", "prefetch", "pin_memory", "persistent")
# A line with a smaller share of its phase is counted to the rest of the phase; a function with a smaller share of the
# stack samples, to its caller.
LEAST_SHARE = 0.01


def run_of(snapshot: Snapshot, file: str = "") -> Run:
    """The run from its start to this Snapshot."""
    ledger = lead_ledger(snapshot)
    units = _units(snapshot, ledger)
    entries = _entries(ledger)
    phases = units.phases if units is not None else {}
    rest: dict[str, float] = {}
    for entry in entries:
        if entry.lane == "main" and entry.phase not in phases:
            rest[entry.phase] = rest.get(entry.phase, 0.0) + entry.share
    whole = sum(rest.values())
    return Run(
        kind=snapshot.kind,
        watched=snapshot.so_far.seconds,
        ended=snapshot.wall,
        command=snapshot.target.command,
        script=PurePath(snapshot.target.script).name if snapshot.target.script else None,
        units=units,
        rest={phase: share / whole for phase, share in rest.items()} if whole > 0 else {"host": 1.0},
        lines=_lines(entries),
        verdicts=snapshot.diagnosis.verdicts,
        settings=_settings(snapshot),
        cores=snapshot.so_far.cores,
        concurrency=snapshot.so_far.concurrency,
        latency=snapshot.serving.latency if snapshot.serving is not None else None,
        stacks=_stacks(snapshot.stacks) if snapshot.stacks is not None else {},
        file=file,
    )


def anonymous(run: Run) -> Run:
    """The run without its command, and with digests in place of source text."""
    lines = tuple(replace(line, where=_anonymous_place(line.where)) for line in run.lines)
    return replace(run, command="", lines=lines, verdicts=tuple(map(anonymous_verdict, run.verdicts)))


def _anonymous_place(where: Where) -> Where:
    text = digest(where.text.strip()) if where.text else None
    return Where(pid=where.pid, file=PurePath(where.file).name, line=where.line, function=where.function, text=text)


def anonymous_verdict(verdict: Verdict) -> Verdict:
    """The verdict without its sentences, with its first line only, and a digest in place of the line's source text."""
    return Verdict(
        id=verdict.id,
        subtype=verdict.subtype,
        severity=verdict.severity,
        title="",
        confidence=verdict.confidence,
        share=verdict.share,
        base=verdict.base,
        where=tuple(_anonymous_place(where) for where in verdict.where[:1]),
    )


def digest(text: str) -> str:
    """Sixteen hexadecimal digits that identify a text without revealing it."""
    # Seeded with the text's SHA-512. hashlib would load OpenSSL: 4 MB in every monitor.
    return f"{Random(text.encode(errors='replace')).getrandbits(64):016x}"  # noqa: S311


def _units(snapshot: Snapshot, ledger: Ledger | None) -> Units | None:
    """The timed units of the ledger's kind; if there are none, the kind of which most were timed."""
    unit = ledger.unit if ledger is not None else None
    return max(snapshot.so_far.units, key=lambda units: (units.kind == unit, units.count), default=None)


def _entries(ledger: Ledger | None) -> Sequence[Entry]:
    """The entries of a ledger that take time, without a server's idle phase: no request is under way there."""
    if ledger is None:
        return ()
    idle = ledger.unit in ("request", "iteration")
    return [entry for entry in ledger.entries if entry.share > 0 and not (idle and entry.phase == "idle")]


def _lines(entries: Sequence[Entry]) -> tuple[LineShare, ...]:
    """The lines of each phase, each with its share of it.

    Time in which the main thread waits for a queue is divided among the lines of those who work for it, if there are
    any.
    """
    main = [entry for entry in entries if entry.lane == "main"]
    makers = [entry for entry in entries if entry.lane == "producers" and entry.activity not in QUEUE_WAITS]
    made = sum(entry.share for entry in makers)
    lines: dict[tuple[str, str, int], LineShare] = {}

    def add(entry: Entry, phase: str, share: float, off: float) -> None:
        if entry.where is not None and share > 0:
            key = (phase, entry.file, entry.line)
            line = lines.get(key) or LineShare(phase=phase, where=entry.where, share=0.0, off=0.0)
            lines[key] = replace(line, share=line.share + share, off=math.hypot(line.off, off))

    for phase in dict.fromkeys(entry.phase for entry in main):
        own = [entry for entry in main if entry.phase == phase]
        whole = sum(entry.share for entry in own)
        for entry in own:
            share, off = entry.share / whole, (entry.high - entry.low) / 2 / whole
            if entry.activity != "wait-queue" or not made:
                add(entry, phase, share, off)
                continue
            for maker in makers:
                part = maker.share / made
                add(maker, phase, share * part, math.hypot(off * part, share * (maker.high - maker.low) / 2 / made))
    return tuple(line for line in lines.values() if line.share >= LEAST_SHARE)


def _stacks(stacks: Stacks) -> dict[str, StackNode]:
    """The call trees of all processes, merged by role."""
    trees: dict[str, list[CallNode]] = {}
    for process in stacks.processes:
        if process.tree is not None:
            tree = process.tree
            trees.setdefault(process.role, []).extend(tree.children if not tree.file else [tree])
    nodes = {role: merged(roots) for role, roots in trees.items()}
    samples = {role: sum(root.samples for root in roots) for role, roots in nodes.items()}
    return {
        role: StackNode("all", "", "", samples[role], tuple(_node(root, LEAST_SHARE * samples[role]) for root in roots))
        for role, roots in nodes.items()
    }


def _node(node: CallNode, least: float) -> StackNode:
    place = f"{PurePath(node.file).name}:{node.line}"
    children = tuple(_node(child, least) for child in node.children if child.samples >= least)
    return StackNode(node.function, place, origin_of(node.file, node.user), node.samples, children)


def _settings(snapshot: Snapshot) -> dict[str, Scalar]:
    """The settings that a user may have changed, by the names that users know; unknown ones are left out."""
    named: dict[str, object] = {"engine": snapshot.engine}
    host = snapshot.host
    if host is not None:
        roles = [process.role for process in host.processes]
        named |= {"ranks": roles.count("rank") or None, "loader workers": roles.count("loader-worker")}
        named |= {"cores": host.machine.cores, "usable cores": host.usable_cores}
        named |= {"CPU": host.machine.model}
    if snapshot.gpu is not None:
        named["GPU"] = tuple(sorted({device.name for device in snapshot.gpu.devices if device.name}))
    if snapshot.facts is not None:
        named |= _facts(snapshot.facts)
    return {name: _scalar(value) for name, value in named.items() if value not in (None, ())}


def _facts(facts: HookFacts) -> dict[str, object]:
    named: dict[str, object] = {name.replace("_", " "): getattr(facts, name) for name in FACTS}
    if (loader := facts.main_loader) is not None:
        named |= {f"loader {name.replace('_', ' ')}": getattr(loader, name) for name in LOADER_FACTS}
    return named


def _scalar(value: object) -> Scalar:
    if isinstance(value, (int, float, str, bool)):
        return value
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
