"""latency-tail: the slowest requests are slow for a cause of their own, which held them up and not the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from statistics import median_high
from typing import Literal

import msgspec
from msgspec import structs

from aitop.diagnosis.causes import recompile
from aitop.diagnosis.causes.serving.hold_ups import (
    BY_COUNTERS,
    HoldUp,
    Kind,
    RequestHoldUps,
    Tail,
    Unattended,
    handler_entries,
    hold_ups,
    seconds_of_requests,
    tail_of,
)
from aitop.diagnosis.evidence import (
    AT_WORK,
    MAIN,
    NO_LINES,
    Lines,
    entries_of,
    lead_ledger,
    lines_of,
    main_stacks,
    samples_by_window,
    short_place,
    where_of,
)
from aitop.diagnosis.noise import least_mean
from aitop.diagnosis.rule import MOST_CONFIDENCE, Explanation, rule
from aitop.diagnosis.series import values_since
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.ledger import Activity, Entry, Ledger
from aitop.model.serving import RequestRecord, Serving
from aitop.model.snapshot import Snapshot
from aitop.model.stacks import Frame
from aitop.model.units import duration, factor, percent
from aitop.model.verdict import Fix, NamedShare, Where

# The tail is the slowest 1 % of the requests, at least five: fewer may have been slow by chance. Five of less than
# fifty are no tail.
SLOWEST, LEAST_SLOW, LEAST_REQUESTS = 0.01, 5, 50
# Random arrivals alone make the slowest requests of a half busy server more than twice as long as the usual one.
LEAST_RATIO = 2.0
# A cause that explains less than this part of the extra time is not what makes a tail.
ENTER, LEAVE = 0.3, 0.2
# Of the lines at which requests stand in line, those with a smaller share are not named.
LEAST_STOOD = 0.1
# The code of handlers is claimed if at least this part of its time passes in requests that it makes slow.
MOSTLY = 0.5
# The highest confidence in what is estimated from stack samples.
ESTIMATED = 0.6
# Fewer samples than these may have met one long pause by chance.
LEAST_SAMPLES = 5
# A line comes in bursts if it is seen in fewer windows of stacks than if its samples were spread evenly: in at most the
# part BURSTY of those windows, and in so few that chance does it with a probability of BY_CHANCE at most.
BURSTY, BY_CHANCE = 0.7, 0.001
# In fewer windows one long request looks like a burst.
LEAST_WINDOWS = 5
# Waits for the GIL are due to collections if these take at least this part of the time of the waits.
MOST_WAITS = 0.5

WHAT: dict[Kind, str] = {
    "collector": "garbage collection",
    "compile": "compiling",
    "prefill": "other requests' long prompts in the same batch",
    "quota": "the CPU quota, which stops the process",
    "cores": "waiting for a core that others use",
    "preemption": "being thrown out of the batch and computed again",
    "event-loop": "the event loop, blocked by code that does not await",
    "handler": "the handler's own code",
    "lock": "the interpreter's lock, held by another thread",
    "own-lock": "standing in line for what another thread holds",
    "size": "their own length",
    "queue": "waiting behind other requests",
}


class Burst(msgspec.Struct, frozen=True):
    """Lines that hold requests up now and then, known from stack samples. `seconds` is what they took of the window."""

    kind: Kind
    entries: tuple[Entry, ...]
    seconds: float


class Stop(msgspec.Struct, frozen=True):
    """What holds up every thread of the process for a `share` (0..1) of the time, on which lines.

    `basis` is the evidence in words, `waits` are the waits that come with it.
    """

    kind: Literal["collector", "compile", "quota", "handler"]
    share: float
    basis: str
    lines: tuple[Entry, ...] = ()
    waits: tuple[Entry, ...] = ()


class Times(msgspec.Struct, frozen=True):
    """How often something held requests up (`count`), and the part (0..1) of all requests that it holds up in the long
    run, as the lower 95 % bound (`least`).
    """

    count: int
    least: float


def number_of_slow(requests: int) -> int:
    """The number of requests that count as the tail of `requests` requests."""
    return min(requests, max(LEAST_SLOW, math.ceil(SLOWEST * requests)))


# It needs no steps: its evidence is requests. Its share is of the slowest requests' extra time, not of all time.
@rule("latency-tail", ENTER, LEAVE, scope=Scope(capacity=True), missing=None)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on the slowest requests, from what held them up and not the others."""
    serving = snapshot.serving
    if serving is None or not serving.requests:
        stop = longest_stop(snapshot)
        if stop is not None and stop.share >= SLOWEST * LEAVE / ENTER:
            return _stopped(stop)
        return "how long each request takes was not measured" if snapshot.kind == "inference" else None
    requests = _accounted(snapshot, serving)
    if len(requests) < LEAST_REQUESTS:
        return f"{len(requests)} single requests were seen so far; {LEAST_REQUESTS} are needed to tell slow ones apart"
    slow = number_of_slow(len(requests))
    lengths = sorted(map(attrgetter("seconds"), requests))
    usual = median_high(lengths)
    if usual <= 0.0 or sum(lengths[-slow:]) < LEAST_RATIO * usual * slow:
        return None
    held = hold_ups(snapshot, serving, requests, usual)
    of_requests = RequestHoldUps(held)
    alone = Unattended(requests, [each for each in held if each.owner is None and each.kind not in BY_COUNTERS])
    tail = tail_of(requests, of_requests, alone, slow)
    bursts = _bursts(snapshot, serving)
    explained = _explained(tail, snapshot)
    kinds = dict(explained)
    beside = _beside_requests(tail, alone, requests, snapshot)
    for kind, part in _estimated(tail, bursts, beside, seconds_of_requests(snapshot), len(requests)).items():
        kinds[kind] = kinds.get(kind, 0.0) + part
    for kind, part in tail.at_most.items():
        # While a request waits for something that is known, it does not wait for a core: only the rest can be that.
        kinds[kind] = min(part, max(0.0, 1.0 - tail.size - sum(kinds.values())))
    kinds = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    first = _foremost(kinds)
    if first is None or kinds[first] < LEAVE:
        return None
    part = kinds[first]
    lines = _lines(first, snapshot, bursts)
    measured = explained.get(first, 0.0) >= 0.5 * part
    left = usual + (1.0 - part) * (tail.slowest - usual)
    # The cause is slight if it alone makes requests no longer than random arrivals do. If others take the cores, that
    # is no fault of the server's; if its own threads do, that is cpu-oversubscription.
    slight = tail.slowest - left < (LEAST_RATIO - 1.0) * usual or first == "cores"
    own: Kind = "handler" if first == "event-loop" else first
    times = None
    if measured:
        times = _times([each for each in held if each.kind == own], requests, partial(of_requests.seconds, own), usual)
    elif first == "event-loop" and beside >= 0.5 * part:
        times = _times(alone.held, requests, alone.of, usual)
    slight |= times is not None and times.least < SLOWEST
    return Explanation(
        subtype=first,
        # Only some requests are late: that is never critical, however much of their lateness one cause explains.
        severity="info" if slight else "warning",
        share=part,
        base="tail",
        parts=_parts(kinds, tail),
        gains=False,
        signals=(measured, bool(lines), part >= 0.5),
        most_sure=MOST_CONFIDENCE if measured else ESTIMATED,
        title=f"slowest requests take {factor(tail.slowest / usual)} the usual {duration(usual)}: "
        f"{percent(part)} of that is {WHAT[first]}",
        where=lines,
        claims=() if slight else _claims(first, snapshot, bursts, held),
        evidence=(
            *_evidence(snapshot, serving, len(requests), tail, kinds, left),
            *(_holder(snapshot, lines, held) if first == "own-lock" else ()),
            *_rarity(times, seconds_of_requests(snapshot)),
        ),
        fixes=_fixes(first, lines),
    )


def _stopped(stop: Stop) -> Explanation:
    """The verdict where single requests are not known: its share is of all time."""
    where = lines_of(stop.lines).where
    return Explanation(
        subtype=stop.kind,
        severity="warning",
        share=stop.share,
        level=ENTER * stop.share / SLOWEST,
        gains=False,
        signals=(False, bool(where)),
        most_sure=ESTIMATED,
        title=f"for {percent(stop.share)} of the time requests are held up: {WHAT[stop.kind]}",
        where=where,
        claims=(*stop.lines, *stop.waits),
        evidence=(
            stop.basis,
            f"requests that come at random meet it as often: {percent(stop.share)} of them wait for it",
            "how long each request takes was not measured",
        ),
        fixes=_fixes(stop.kind, where),
    )


def _accounted(snapshot: Snapshot, serving: Serving) -> tuple[RequestRecord, ...]:
    """The requests for all of whose time it is known what happened.

    Left out are requests that ended after the last reading of the kernel's counters, and those that arrived before the
    first iteration of the engine that was seen.
    """
    read, turns = values_since(snapshot, "run_delay", snapshot.window), serving.iterations
    until = read[-1][0] if read else math.inf
    since = turns[0].end - turns[0].seconds - (turns[0].idle or 0.0) if turns else -math.inf
    return tuple(one for one in serving.requests if one.end - one.seconds >= since and one.end <= until)


def _times(
    held: Sequence[HoldUp],
    requests: Sequence[RequestRecord],
    lost_of: Callable[[RequestRecord], float],
    usual: float,
) -> Times | None:
    """How often these hold-ups made requests long enough for a tail; None where no such moment is known.

    `lost_of` returns the seconds that they took of a request. A single pause may make a whole tail of the few requests
    that meet it, but says next to nothing of the next hour.
    """
    # Only requests that are so long in all can have been made so much longer.
    longer = (one for one in requests if one.seconds >= LEAST_RATIO * usual)
    late = [one for one in longer if lost_of(one) >= (LEAST_RATIO - 1.0) * usual]
    count = sum(any(map(each.meets, late)) for each in held)
    return Times(count, len(late) / len(requests) * least_mean(count) / count) if count else None


def _rarity(times: Times | None, window: float) -> list[str]:
    if times is None or times.least >= SLOWEST:
        return []
    often = "once" if times.count == 1 else f"{times.count} times"
    return [f"it came {often} in {window:.0f} s: too rarely to tell whether a percent of all requests meets it"]


def _holder(snapshot: Snapshot, stood: tuple[Where, ...], held: Sequence[HoldUp]) -> list[str]:
    """Who has what others stand in line for, at the lines `stood`, if any was seen.

    By stacks, that is who works in a function in which others stand, or below it; else a thread that handles no
    requests. Without stacks it may be a request whose handler used the CPU meanwhile.
    """
    ledger = lead_ledger(snapshot)
    if ledger is None or not stood:
        worked = max(((each.until - each.begin) * each.worked for each in held), default=0.0)
        return [f"the handler of another request runs meanwhile, for up to {duration(worked)}"] if worked > 0.0 else []
    at_work = [entry for entry in ledger.entries if entry.pid == ledger.pid and entry.does in AT_WORK]
    past = lines_of(entry for entry in at_work if any(_is_past(entry, line) for line in stood))
    if past.where:
        return [f"the thread that has it works meanwhile, most of it at {short_place(past.where[0])}"]
    beside = [entry for entry in at_work if entry.lane == "producers" and entry.handler is None]
    lines = lines_of(beside)
    if not lines.where:
        return []
    most = next(entry for entry in beside if entry.at == lines.where[0].at)
    return [f"thread {most.thread} works meanwhile, most of it at {short_place(lines.where[0])}"]


def _is_past(entry: Entry, stood: Where) -> bool:
    """Whether a stack is in the function of this line, or below it, at another of its lines."""
    places: tuple[Frame | Where, ...] = (*entry.via, entry.where) if entry.where is not None else entry.via
    function = (stood.file, stood.function)
    return any((place.file, place.function) == function and place.line != stood.line for place in places)


def _foremost(kinds: dict[Kind, float]) -> Kind | None:
    """The largest kind. Kinds with known moments go before waits for a core, which are known for whole seconds only."""
    exact = next((kind for kind, part in kinds.items() if kind not in BY_COUNTERS and part >= ENTER), None)
    return exact or next(iter(kinds), None)


def _explained(tail: Tail, snapshot: Snapshot) -> dict[Kind, float]:
    """The measured parts by kind; `handler` becomes `event-loop` where an event loop calls the handlers."""
    kinds = dict(tail.kinds)
    called = lines_of(handler_entries(snapshot))
    if "handler" in kinds and called.part(lambda entry: entry.handler == "event-loop") > 0.5:
        kinds["event-loop"] = kinds.get("event-loop", 0.0) + kinds.pop("handler")
    return kinds


def _parts(kinds: dict[Kind, float], tail: Tail) -> tuple[NamedShare, ...]:
    """Every part of the slowest requests' extra time that has an explanation, the largest first."""
    explained = {**kinds, "size": tail.size, "queue": _behind_others(kinds, tail)}
    ordered = sorted(explained.items(), key=lambda item: -item[1])
    return tuple(NamedShare(name=kind, share=round(share, 4)) for kind, share in ordered if share > 0.0)


def _behind_others(kinds: Mapping[Kind, float], tail: Tail) -> float:
    """The part (0..1) of the slowest requests' extra time in the queue that nothing else explains."""
    return max(0.0, min(tail.queue, 1.0 - tail.size - sum(kinds.values())))


def _evidence(  # noqa: PLR0917
    snapshot: Snapshot, serving: Serving, requests: int, tail: Tail, kinds: dict[Kind, float], left: float
) -> list[str]:
    parts: list[tuple[Kind, float]] = [*kinds.items(), ("size", tail.size), ("queue", _behind_others(kinds, tail))]
    named = [f"{WHAT[kind]} {percent(part)}" for kind, part in parts if part >= 0.05]
    evidence = [
        f"the {tail.slow} slowest of {requests} requests take {duration(tail.slowest)} on average, "
        f"the median {duration(tail.usual)}",
        f"of the difference: {', '.join(named)}",
        f"without it the slowest would take about {duration(left)}",
    ]
    for kind, what in (("collect", "collections"), ("compile", "compilations")):
        pauses = [pause.seconds for pause in serving.pauses if pause.kind == kind]
        if pauses and kinds.get("collector" if kind == "collect" else "compile", 0.0) >= LEAVE:
            count = f"{len(pauses)} {what if len(pauses) > 1 else what[:-1]}"
            evidence.append(f"{count} in {seconds_of_requests(snapshot):.0f} s, the longest {duration(max(pauses))}")
    twice = computed_twice(serving)
    if twice is not None and "preemption" in kinds:
        evidence.append(f"about {percent(twice)} of all tokens are computed a second time")
    return evidence


def computed_twice(serving: Serving) -> float | None:
    """About which share of the computed tokens was computed again after a preemption; None without any.

    A preempted request loses its prompt and what it has of its answer: half of that, as it may happen at any time.
    """
    known = [
        (one.preempted, one.prompt_tokens, one.tokens)
        for one in serving.requests
        if one.preempted is not None and one.prompt_tokens is not None and one.tokens is not None
    ]
    again = sum(preempted * (prompt + answer / 2) for preempted, prompt, answer in known)
    once = sum(prompt + answer for _, prompt, answer in known)
    return again / (once + again) if again else None


def _bursts(snapshot: Snapshot, serving: Serving) -> list[Burst]:
    """Lines that take time in bursts: in code that handles requests, or in a thread that holds the GIL meanwhile."""
    ledger = lead_ledger(snapshot)
    if ledger is None:
        return []
    entries = [entry for entry in ledger.entries if entry.where is not None and bursty(entry.by_window)]
    called = [entry for entry in handler_entries(snapshot) if bursty(entry.by_window)]
    loop = [entry for entry in called if entry.handler == "event-loop"]
    handlers = [entry for entry in called if entry.handler != "event-loop"]
    own = {ledger.pid, serving.pid}
    locks = [
        entry
        for entry in entries
        if entry.lane == "producers" and entry.pid in own and entry.handler is None and entry.does == "python"
    ]
    kinds: tuple[tuple[Kind, list[Entry]], ...] = (("event-loop", loop), ("handler", handlers), ("lock", locks))
    return [
        Burst(kind, tuple(found), sum(entry.share for entry in found) * seconds_of_requests(snapshot))
        for kind, found in kinds
        if found
    ]


def _beside_requests(tail: Tail, alone: Unattended, requests: Iterable[RequestRecord], snapshot: Snapshot) -> float:
    """The part (0..1) of the extra time in which an event loop ran something else than requests.

    Stacks have to show that it ran: a process without a core lets requests wait, too.
    """
    if not tail.unattended:
        return 0.0
    in_loop = sum(entry.share for entry in handler_entries(snapshot) if entry.handler == "event-loop")
    handling = sum(request.seconds - (request.queue or 0.0) - (request.model or 0.0) for request in requests)
    other = max(0.0, in_loop * seconds_of_requests(snapshot) - handling)
    return tail.unattended * min(1.0, other / alone.seconds)


def _estimated(tail: Tail, bursts: Iterable[Burst], beside: float, window: float, requests: int) -> dict[Kind, float]:
    """The parts of the extra time that stack samples explain: what an event loop does `beside` requests, and bursts.

    Each moment of a burst holds up all requests that are under way.
    """
    under_way = max(1.0, requests * tail.usual / window) if window > 0 else 1.0
    explained: dict[Kind, float] = {"event-loop": beside} if beside else {}
    # Requests that queue behind one that is held up are held up with it.
    left = max(0.0, tail.open + tail.queue - beside) * tail.extra
    for burst in sorted(bursts, key=lambda burst: -burst.seconds):
        seconds = burst.seconds * under_way
        if burst.kind == "event-loop":
            seconds = max(0.0, seconds - beside * tail.extra)
        seconds = min(left, seconds)
        explained[burst.kind] = explained.get(burst.kind, 0.0) + (seconds / tail.extra if tail.extra > 0 else 0.0)
        left -= seconds
    return explained


def _lines(kind: Kind, snapshot: Snapshot, bursts: Iterable[Burst]) -> tuple[Where, ...]:
    """The lines that a kind comes from, heaviest first, where stack samples tell."""
    entries = [entry for entry in entries_of(snapshot) if entry.where is not None]
    if kind in ("collector", "compile"):
        activity = "collect" if kind == "collector" else "compile"
        return lines_of(entry for entry in entries if entry.activity == activity).where
    if kind == "own-lock":
        process = main_stacks(snapshot)
        stood = process.pool.lines if process is not None and process.pool is not None else ()
        heavy = [line for line in stood[:3] if line is stood[0] or line.share >= LEAST_STOOD]
        return tuple(structs.replace(where_of(line.pid, line), share=line.share) for line in heavy)
    found = lines_of(entry for burst in bursts if burst.kind == kind for entry in burst.entries).where
    if not found and kind in ("event-loop", "handler"):
        return lines_of(handler_entries(snapshot)).where
    return found


def _claims(kind: Kind, snapshot: Snapshot, bursts: Iterable[Burst], held: Iterable[HoldUp]) -> tuple[Entry, ...]:
    """The entries that take their time mostly while they hold requests up: no other cause has to explain them."""
    came = tuple(entry for burst in bursts if burst.kind == kind for entry in burst.entries)
    if came or kind not in ("event-loop", "handler"):
        return came
    handling = tuple(handler_entries(snapshot))
    seconds = sum(each.until - each.begin for each in held if each.kind == "handler")
    return handling if seconds >= MOSTLY * lines_of(handling).share * seconds_of_requests(snapshot) else ()


def _fixes(kind: Kind, where: tuple[Where, ...]) -> tuple[Fix, ...]:
    place = short_place(where[0]) if where else ""
    at = f" at {place}" if place else ""
    words: dict[Kind, tuple[str, ...]] = {
        "collector": (
            f"leave out gc.collect(){at}"
            if where
            else "gc.collect(); gc.freeze() once the model is loaded: its objects are never walked over again",
            "gc.set_threshold(50_000, 50, 50): long collections come less often",
        ),
        "compile": (
            f"run every shape once before serving{at}, or pad inputs to a few fixed shapes",
            "torch._dynamo.mark_dynamic on the size that varies, or torch.compile(dynamic=True)",
        ),
        "prefill": (
            "prefill long prompts in smaller pieces: a lower max_num_batched_tokens with chunked prefill",
            "send long prompts to replicas of their own",
        ),
        "quota": ("raise the CPU limit of the container", "use fewer threads than the quota has cores"),
        "cores": ("give the server cores of its own (taskset, cpuset), or look for stray processes on this machine",),
        "preemption": (
            "a larger KV cache (gpu_memory_utilization, kv_cache_dtype fp8), or a lower max_num_seqs: "
            "requests then wait instead of being computed twice",
        ),
        "event-loop": (
            f"do not block in the event loop{at}: await it, or run it with asyncio.to_thread",
            "a handler without async runs in a thread of its own (FastAPI, Starlette)",
        ),
        "handler": (f"make {place or 'the slow part of the handler'} cheaper, or cache results that repeat",),
        "lock": (f"move that thread's work{at} into a process of its own",),
        "own-lock": (
            f"hold what requests wait for{at} for less: compute beside it, and take it only to put the result in place",
            "give requests a copy that is replaced as a whole: then they wait for nothing",
        ),
    }
    return tuple(fix(text) for text in words.get(kind, ()))


# --- where single requests are not known ------------------------------------------------------------------------------
#
# Requests that come at random meet a pause of the whole process with a probability that equals its share of the time.
# What stops the process for 1 % of the time makes the slowest 1 % (SLOWEST) of requests, however long they usually
# take.


def longest_stop(snapshot: Snapshot) -> Stop | None:
    """What stops the server for the largest share of the time; None where nothing was seen to stop it."""
    ledger = lead_ledger(snapshot)
    if snapshot.kind != "inference" or ledger is None:
        return None
    stops = [_collector(snapshot, ledger), _compiler(snapshot, ledger), _quota(snapshot), _handler(snapshot, ledger)]
    return max((stop for stop in stops if stop is not None), key=lambda stop: stop.share, default=None)


def _collector(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Collections that a line asks for, in any thread: the collector holds the GIL meanwhile."""
    share, lines, basis = _sampled(snapshot, ledger, "collect")
    waits = [entry for entry in ledger.entries if entry.activity == "wait-gil"]
    come_with_it = share >= MOST_WAITS * sum(entry.share for entry in waits if entry.lane == "main")
    return Stop("collector", share, basis, lines.lines, tuple(waits) if come_with_it else ()) if lines.lines else None


def _compiler(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Compiling that goes on while there are requests. Compiling before the first request holds up none."""
    share, lines, basis = _sampled(snapshot, ledger, "compile")
    return Stop("compile", share, basis, lines.lines) if recompile.takes_turns(snapshot, lines, least=SLOWEST) else None


def _handler(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Lines of handlers in threads that run for long in few requests: other threads wait for the GIL meanwhile."""
    called = [entry for entry in handler_entries(snapshot) if entry.handler != "event-loop" and entry.does in AT_WORK]
    by_line: dict[tuple[int, str, int], list[Entry]] = {}
    for entry in called:
        by_line.setdefault((entry.pid, *entry.at), []).append(entry)
    found = [entry for entries in by_line.values() if bursty(samples_by_window(entries)) for entry in entries]
    share, lines, basis = _share(snapshot, ledger, found)
    return Stop("handler", share, basis, lines.lines) if lines.lines else None


def _sampled(snapshot: Snapshot, ledger: Ledger, activity: Activity) -> tuple[float, Lines, str]:
    entries = [entry for entry in ledger.entries if entry.pid == ledger.pid and entry.activity == activity]
    return _share(snapshot, ledger, entries)


def _share(snapshot: Snapshot, ledger: Ledger, entries: Iterable[Entry]) -> tuple[float, Lines, str]:
    """The share of the time in which some thread is at one of these entries, the entries, and the evidence in words.

    Threads of a pool have one entry together, whose share is of the time of all of them. So samples are divided by the
    number of samples of the main thread instead.
    """
    lines = lines_of(entries)
    samples = sum(entry.samples for entry in lines.lines)
    threads = snapshot.stacks.threads if snapshot.stacks is not None else ()
    looks = next((each.samples for each in threads if (each.pid, each.thread) == (ledger.pid, MAIN)), 0)
    if samples < LEAST_SAMPLES or not looks:
        return 0.0, NO_LINES, ""
    return min(1.0, samples / looks), lines, f"{samples:.0f} of {looks} looks at the process"


def _quota(snapshot: Snapshot) -> Stop | None:
    """Waits of the main thread for a core while the control group has used up its quota."""
    throttled = dict(values_since(snapshot, "throttled", snapshot.window))
    delays = values_since(snapshot, "run_delay", snapshot.window)
    lost = sum(min(1.0, part) * (now - before) for (before, _), (now, part) in pairwise(delays) if throttled.get(now))
    times = sum(1 for part in throttled.values() if part)
    basis = f"the control group was stopped in {times} of {len(throttled)} readings"
    return Stop("quota", lost / snapshot.window, basis) if lost > 0.0 else None


def bursty(by_window: Sequence[int]) -> bool:
    """Whether a line was sampled in clearly fewer windows of stacks than it would be if its time were spread evenly.

    If samples are spread evenly, the probability that a window has none of them is that of a Poisson distribution.
    """
    windows, samples = len(by_window), sum(by_window)
    if not samples or windows < LEAST_WINDOWS:
        return False
    none = math.exp(-samples / windows)
    seen = sum(map(bool, by_window))
    so_few = sum(math.comb(windows, k) * (1.0 - none) ** k * none ** (windows - k) for k in range(seen + 1))
    return seen <= BURSTY * windows * (1.0 - none) and so_few <= BY_CHANCE
