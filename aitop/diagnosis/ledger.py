"""Makes the ledgers of a Snapshot: where the time of each working process goes, each moment in one entry. Pure.

The hook's clock gives the length of each phase; without the hook, stack samples do. For a server, phases are those of
its engine's iterations, or of its requests (see `served`). Stack samples divide a phase among lines. The kernel's
thread states and GIL samples divide a line among activities (see stacks.activity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec

from aitop.diagnosis.evidence import MAIN, RUNNING, interval, run_delay, share_of_steps, takes_request, where_of
from aitop.diagnosis.served import Served, served
from aitop.model.ledger import Activity, Basis, Entry, Lane, Ledger, Position, Unit
from aitop.model.phases import APART, MEASURED, SERVED, Phase
from aitop.model.snapshot import HotLine, Phases, ProcessStacks, Snapshot
from aitop.model.steps import CallKind, CallSite, StepRecord, measured_in

# An activity of a line that takes less than this share of the lane is added to the line's other activities.
LEAST_PART = 0.004
# A run counts as reinforcement learning if it spends at least this share of the time in an environment.
LEAST_ENVIRONMENT = 0.02
# Entries of a phase are scaled by at most this factor to its measured length; the rest becomes an entry without a line.
MOST_SCALED = 2.0
# If the hook measured less than this part of what was sampled in a phase, the samples are used: the hook missed calls
# (through a saved reference to torch.save, or gradients by torch.func, say).
LEAST_MEASURED = 0.5

# In these phases the hook times certain calls only, and libraries do more around them: a loop that evaluates or saves,
# a loader around a loader.
_AROUND = ("data", *(phase.key for phase in APART))
_PHASES: Mapping[str, Phase] = {"data_wait": "data", "communication": "exchange", "outside": "host"}


def ledgers(snapshot: Snapshot) -> tuple[Ledger, ...]:
    """Make one ledger per working process, the one to show first in front; empty if nothing was sampled or measured."""
    processes = _working(snapshot)
    if not processes:
        alone = _measured_only(snapshot)
        return (alone,) if alone is not None else ()
    return tuple(
        _ledger(snapshot, process, served(snapshot, process.pid), first=index == 0)
        for index, process in enumerate(processes)
    )


def _working(snapshot: Snapshot) -> list[ProcessStacks]:
    """The working processes, the one to show first in front; last an engine whose model runs in another process."""
    processes = {process.pid: process for process in snapshot.stacks.processes} if snapshot.stacks else {}
    serving = snapshot.serving
    engine = serving.pid if serving is not None and serving.iterations else None
    pids = dict.fromkeys((*snapshot.working, engine))
    return [processes[pid] for pid in pids if pid in processes]


def _lines_of(snapshot: Snapshot, process: ProcessStacks) -> list[HotLine]:
    lines = snapshot.stacks.lines if snapshot.stacks else ()
    return [line for line in lines if line.pid == process.pid and line.thread == process.thread]


def _ledger(snapshot: Snapshot, process: ProcessStacks, server: Served | None, *, first: bool) -> Ledger:
    """Build the ledger of one process. `server` is its account as a server, None if it is not one.

    `first`: it is the ledger to show first. Only that one has the measured steps, and the lane of producers.
    """
    steps = snapshot.steps
    records = steps.recent if first and steps is not None and steps.pid == process.pid else ()
    lines = _lines_of(snapshot, process)
    sampled = _entries("main", lines, samples=process.samples)
    if snapshot.kind != "training":
        sampled += _lineless(process)
    if records and snapshot.facts is not None:
        sampled = _at_calls(sampled, snapshot.facts.calls, records)
    in_environment = sum(entry.share for entry in sampled if entry.phase == "environment") >= LEAST_ENVIRONMENT
    if in_environment:
        sampled = [_of_rollout(entry) for entry in sampled]
    measured = _measured(records)
    if server is not None:
        if any(entry.handler == "request-loop" for entry in sampled):
            server = server.of_handlers()
        sampled = [_of_server(entry, server) for entry in sampled]
        before, after = (_sum(sampled, phase) for phase in ("preprocess", "postprocess"))
        measured = dict(server.split_by_stacks(before, after).shares)
    elif measured and in_environment:
        # The hook counts forward passes without gradients as evaluation, but these choose the actions.
        measured["forward"] += measured["evaluation"]
        measured["evaluation"] = 0.0
    requests = server is not None and server.unit == "request"
    if requests and any(record.kind == "generate" for record in records):
        measured = _without_callbacks(measured, sampled)
    main = _fitted(sampled, measured, process, requests=requests) if measured else _filled(sampled, process)
    main = _without_core(main, _run_delay(snapshot, process))
    main = _collecting(main, share_of_steps(records, attrgetter("gc")) or 0.0, process)
    unit, length = (server.unit, server.length) if server is not None else _unit_of_passes(snapshot, records)
    if length is not None:
        main = [msgspec.structs.replace(entry, seconds=entry.share * length) for entry in main]
    others = _others(snapshot, process) if first else []
    ordered = sorted([*main, *others], key=lambda entry: (entry.lane != "main", -entry.share))
    threads = max(1, round(process.pool.there)) if process.pool is not None else 1
    return Ledger(
        pid=process.pid,
        thread=process.thread,
        unit=unit,
        base="step" if snapshot.kind == "training" else "time",
        entries=tuple(ordered),
        length=length,
        threads=threads,
    )


def _unit_of_passes(snapshot: Snapshot, records: Sequence[StepRecord]) -> tuple[Unit, float | None]:
    """What a process that is no server makes, with the mean seconds of one where they are known."""
    if not records:
        return "second", None
    # Stacks may show a backward pass that the hook does not see: torch.func makes it without autograd's.
    trains = records[-1].kind == "train" or snapshot.kind == "training"
    if not trains and snapshot.serving is not None and snapshot.serving.requests:
        # A pass of the model is not one of the server's requests.
        return "second", None
    return "step" if trains else "request", sum(step.seconds for step in records) / len(records)


def _at_calls(sampled: list[Entry], calls: Sequence[CallSite], records: Sequence[StepRecord]) -> list[Entry]:
    """Turn the time of copies to the device and of waits for it, as the hook timed them, into `wait-device` entries.

    The sampler takes such a call for native code at work: the CPU copies, or polls the device. What the hook timed is
    divided among the lines that made the calls.
    """
    kinds: tuple[CallKind, ...] = ("transfer", "blocking")
    for kind in kinds:
        sites: dict[tuple[str, int], float] = {}
        for call in calls:
            if call.kind == kind and call.seconds:
                sites[call.file, call.line] = sites.get((call.file, call.line), 0.0) + call.seconds
        # StepRecord has a field for each of these kinds, with the same name.
        measured, whole = share_of_steps(records, attrgetter(kind)), sum(sites.values())
        if not measured or not whole:
            continue
        left = {at: seconds / whole * measured for at, seconds in sites.items()}
        divided = []
        for entry in sampled:
            taken = min(left.get(entry.at, 0.0), entry.share) if entry.activity in ("native", "wait-lock") else 0.0
            if taken < LEAST_PART:
                divided.append(entry)
                continue
            left[entry.at] -= taken
            if entry.share - taken >= LEAST_PART:
                divided.append(_scaled(entry, 1.0 - taken / entry.share))
            phase: Phase = "transfer" if kind == "transfer" and entry.phase == "host" else entry.phase
            there = _scaled(entry, taken / entry.share)
            divided.append(msgspec.structs.replace(there, phase=phase, activity="wait-device"))
        sampled = divided
    return sampled


def _of_server(entry: Entry, server: Served) -> Entry:
    """Move host code of a server into the phase that was measured for it.

    Code before the model's call is preprocessing, code after it or between two of them postprocessing, as the hook
    counts it, and waiting for requests is idle.
    """
    if entry.phase != "host":
        return entry
    phases: dict[Position | None, Phase] = {"before": "preprocess", "within": "postprocess", "after": "postprocess"}
    phase = "idle" if takes_request(entry) else phases.get(entry.position, "host")
    return msgspec.structs.replace(entry, phase=phase) if phase in server.shares else entry


def _without_callbacks(measured: Mapping[Phase, float], sampled: Sequence[Entry]) -> dict[Phase, float]:
    """Take the user's own code out of the forward pass of requests that call `generate`.

    The hook times the whole call, in which the user's logits processors run as well. Only stacks tell these from the
    model.
    """
    forward, after = measured.get("forward", 0.0), measured.get("postprocess", 0.0)
    moved = max(0.0, min(_sum(sampled, "postprocess") - after, forward - _sum(sampled, "forward")))
    return {**measured, "forward": forward - moved, "postprocess": after + moved} if moved else dict(measured)


def _sum(entries: Iterable[Entry], phase: Phase) -> float:
    return sum(entry.share for entry in entries if entry.phase == phase)


def _of_rollout(entry: Entry) -> Entry:
    """Count evaluation as forward: a model that acts in an environment runs without gradients, too."""
    return msgspec.structs.replace(entry, phase="forward") if entry.phase == "evaluation" else entry


def _measured_only(snapshot: Snapshot) -> Ledger | None:
    """The ledger of a process whose steps are measured but whose stacks cannot be sampled."""
    steps, serving = snapshot.steps, snapshot.serving
    server = served(snapshot, serving.pid) if serving is not None and serving.pid is not None else None
    if serving is not None and serving.pid is not None and server is not None:
        process = ProcessStacks(pid=serving.pid, role="rank", samples=0, phases=Phases())
    elif steps is not None and steps.pid is not None and steps.recent:
        process = ProcessStacks(pid=steps.pid, role="rank", samples=0, phases=steps.phases)
    else:
        return None
    return _ledger(snapshot, process, server, first=True)


def _measured(records: Sequence[StepRecord]) -> dict[Phase, float]:
    """Shares (0..1) of step time by phase, from the hook's clock; "host" is the rest. Empty without steps.

    A phase that was not measured (copies, the exchange) has no key: its time is in "host". The hook starts to time
    copies a few steps after its first one, so if copies were timed in some steps, only those steps count.
    """
    records = measured_in(records, attrgetter("transfer"))[0] or records
    length = sum(step.seconds for step in records)
    if length <= 0:
        return {}
    totals = {phase.key: phase.total(records) for phase in MEASURED}
    shares: dict[Phase, float] = {key: seconds / length for key, seconds in totals.items() if seconds is not None}
    shares["host"] = max(0.0, 1.0 - sum(shares.values()))
    return shares


def _run_delay(snapshot: Snapshot, process: ProcessStacks) -> float:
    """Share of the time in which the main thread was runnable but had no core; 0 where that is not known."""
    if snapshot.host is None or process.thread != MAIN:
        return 0.0
    if snapshot.ranks is None and snapshot.steps is not None and snapshot.steps.pid not in (None, process.pid):
        return 0.0
    return run_delay(snapshot, process.pid) or 0.0


def _entries(lane: Lane, lines: Iterable[HotLine], *, samples: int) -> list[Entry]:
    """One entry per line and activity. The entries of a line add up to its share."""
    entries = []
    for line in lines:
        parts = [part for part in line.parts or ((line.activity, 1.0),) if part[1] > 0.0]
        large = [part for part in parts if part[1] * line.share >= LEAST_PART] or parts[:1]
        whole = sum(share for _, share in large)
        for activity, part in large:
            fraction = part / whole
            share = line.share * fraction
            low, high = interval(share, samples)
            entries.append(
                Entry(
                    lane=lane,
                    phase=_PHASES.get(line.phase, line.phase),  # type: ignore[arg-type]
                    activity=activity,
                    share=share,
                    low=low,
                    high=high,
                    basis="sampled",
                    pid=line.pid,
                    thread=line.thread,
                    role=line.role,
                    samples=line.samples * fraction,
                    where=where_of(line.pid, line),
                    position=line.position,
                    work=line.work,
                    via=line.via,
                    callers=line.callers,
                    by_window=line.by_window,
                    handler=line.handler,
                    below=line.below,
                    closure=line.closure,
                    apart=line.apart,
                )
            )
    return entries


def _lineless(process: ProcessStacks) -> list[Entry]:
    """One entry per phase and activity of the samples that have no line of the user's code on their stack."""
    entries = []
    for one in process.lineless:
        low, high = interval(one.share, process.samples)
        name = _PHASES.get(one.phase, one.phase)
        entry = _entry_without_line(process, name, one.activity, one.share, "sampled")  # type: ignore[arg-type]
        below = ((one.place, 1.0),) if one.place is not None else ()
        samples = one.share * process.samples
        entries.append(msgspec.structs.replace(entry, low=low, high=high, samples=samples, below=below))
    return entries


def _fitted(
    sampled: list[Entry], measured: dict[Phase, float], process: ProcessStacks, *, requests: bool
) -> list[Entry]:
    """Scale the entries so that each phase gets its measured share. `requests`: the phases are those of requests."""
    by_phase: dict[Phase, list[Entry]] = {}
    for entry in sampled:
        by_phase.setdefault(entry.phase if entry.phase in measured else "host", []).append(entry)
    seen_in = {phase: sum(entry.share for entry in entries) for phase, entries in by_phase.items()}
    measured = dict(measured)
    over = {phase: seen_in.get(phase, 0.0) - share for phase, share in measured.items()}
    # The hook counts forward passes without gradients as forward if they come in every step, as a teacher's do. Stacks
    # tell by their place which of them evaluate.
    evaluating = max(0.0, min(over.get("evaluation", 0.0), -over.get("forward", 0.0)))
    if evaluating:
        measured["evaluation"] += evaluating
        measured["forward"] -= evaluating
    for phase in (key for key in ("backward", "optimizer", *_AROUND) if key in measured):
        beyond = seen_in.get(phase, 0.0) - measured[phase]
        # Measured host time that no sample of the host accounts for is what these phases take around the timed calls.
        unseen = measured["host"] - seen_in.get("host", 0.0) if phase in _AROUND else 0.0
        missed = measured[phase] < LEAST_MEASURED * seen_in.get(phase, 0.0)
        moved = max(0.0, min(beyond, measured["host"] if missed else unseen))
        measured[phase] += moved
        measured["host"] -= moved
    # The hook's clock of the optimizer runs through the code of a closure, but for the model's passes in it.
    closures = sum(entry.share for entry in by_phase.get("host", ()) if entry.closure)
    closures = max(0.0, min(closures, measured.get("optimizer", 0.0) - seen_in.get("optimizer", 0.0)))
    if closures:
        measured["optimizer"] -= closures
        measured["host"] += closures
    held = 0.0
    if requests:
        held = min(seen_in.get("idle", 0.0) - measured.get("idle", 0.0), measured["host"] - seen_in.get("host", 0.0))
    if held > 0.0:
        # The thread rested for longer than there were no requests, so for the rest of that time requests under way
        # waited for something else: a queue.
        by_phase["queue"] = [msgspec.structs.replace(entry, phase="queue") for entry in by_phase["idle"]]
        seen_in["queue"], measured["queue"] = seen_in["idle"], held
        measured["host"] -= held
    # A coroutine that awaits is on no stack: what the thread rested beyond that passed in handlers. An engine rested
    # where it makes its batches, with requests in them: it waits for more.
    rested = max(0.0, seen_in.get("idle", 0.0) - measured["idle"] - max(0.0, held)) if "idle" in measured else 0.0
    awaiting: tuple[Phase, ...] = ("preprocess", "postprocess") if requests else ("schedule",)
    fitted = []
    for phase, share in measured.items():
        entries = by_phase.get(phase, [])
        seen = seen_in.get(phase, 0.0)
        scale = min(MOST_SCALED, share / seen) if seen > 0 else 0.0
        samples = sum(entry.samples for entry in entries)
        for entry in entries:
            low, high = interval(entry.share / seen, round(samples))
            fitted.append(
                msgspec.structs.replace(
                    entry, share=entry.share * scale, low=low * scale * seen, high=high * share, basis="measured"
                )
            )
        rest = share - scale * seen
        waits = min(rest, rested) if phase in awaiting else 0.0
        if waits > 1e-9:
            fitted.append(_entry_without_line(process, phase, "wait" if requests else "wait-queue", waits, "measured"))
            rested, rest = rested - waits, rest - waits
        if rest > 1e-9:
            fitted.append(_entry_without_line(process, phase, _activity_of_rest(phase, measured), rest, "measured"))
    return fitted


def _activity_of_rest(phase: Phase, measured: Mapping[Phase, float]) -> Activity:
    """The activity assumed for the part of a measured phase that no sample covers."""
    if phase in ("data", "idle"):
        return "wait-queue"
    if phase == "host" and "idle" in measured:
        return "native"
    return "native" if any(row.computes for row in (*MEASURED, *SERVED) if row.key == phase) else "wait"


def _entry_without_line(process: ProcessStacks, phase: Phase, activity: Activity, share: float, basis: Basis) -> Entry:
    return Entry(
        lane="main",
        phase=phase,
        activity=activity,
        share=share,
        low=share,
        high=share,
        basis=basis,
        pid=process.pid,
        thread=process.thread,
        role=process.role,
    )


def _filled(sampled: list[Entry], process: ProcessStacks) -> list[Entry]:
    """Make the sampled entries add up to 1: what they lack, stacks without a line of the user's, becomes one entry."""
    whole = sum(entry.share for entry in sampled)
    if whole >= 1.0:
        return [
            msgspec.structs.replace(entry, share=entry.share / whole, low=entry.low / whole, high=entry.high / whole)
            for entry in sampled
        ]
    if whole < 1.0 - 1e-6:
        return [*sampled, _entry_without_line(process, "host", "wait", 1.0 - whole, "sampled")]
    return sampled


def _without_core(entries: list[Entry], share: float) -> list[Entry]:
    """Move `share` of the lane from running entries to `wait-core` entries of the same lines, in proportion."""
    part = _part_of_running(entries, share)
    if part is None:
        return entries
    divided: list[Entry] = []
    for entry in entries:
        if entry.activity not in RUNNING:
            divided.append(entry)
            continue
        divided.append(_scaled(entry, 1.0 - part))
        waits = _scaled(entry, part)
        divided.append(msgspec.structs.replace(waits, activity="wait-core", instead=entry.activity))
    return divided


def _collecting(entries: list[Entry], share: float, process: ProcessStacks) -> list[Entry]:
    """Move time from running entries to garbage collection (`collect`), which takes `share` of the lane in all.

    Collections that a line asks for have their entries already. The others start by themselves and interrupt whatever
    allocates: they are taken from all running entries in proportion, and become one entry per phase.
    """
    share -= sum(entry.share for entry in entries if entry.activity == "collect")
    part = _part_of_running(entries, share)
    if part is None:
        return entries
    rest: list[Entry] = []
    taken: dict[Phase, float] = {}
    for entry in entries:
        if entry.does in RUNNING:
            taken[entry.phase] = taken.get(entry.phase, 0.0) + entry.share * part
            entry = _scaled(entry, 1.0 - part)  # noqa: PLW2901 - the part that is not collection
        rest.append(entry)
    return rest + [_entry_without_line(process, phase, "collect", mass, "measured") for phase, mass in taken.items()]


def _part_of_running(entries: list[Entry], share: float) -> float | None:
    """Convert `share` of the lane into a part (0..1) of its running entries; None if it is too small for an entry."""
    running = sum(entry.share for entry in entries if entry.does in RUNNING)
    return min(0.95, share / running) if share >= LEAST_PART and running > 0 else None


def _scaled(entry: Entry, part: float) -> Entry:
    return msgspec.structs.replace(
        entry,
        share=entry.share * part,
        low=entry.low * part,
        high=entry.high * part,
        samples=entry.samples * part,
    )


def _others(snapshot: Snapshot, lead: ProcessStacks) -> list[Entry]:
    """Entries of all other threads and processes but ranks, which make nothing for this one.

    Each share is of that thread's own time.
    """
    if snapshot.stacks is None:
        return []
    samples = {process.pid: process.samples for process in snapshot.stacks.processes}
    lines = [
        line
        for line in snapshot.stacks.lines
        if (line.role != "rank" or line.pid == lead.pid) and (line.pid, line.thread) != (lead.pid, lead.thread)
    ]
    return _entries("producers", lines, samples=min(samples.values(), default=0))
