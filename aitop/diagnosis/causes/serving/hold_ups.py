"""What held requests up, and how long: intervals of time, and the time that each request spent in them. Pure.

Every hold-up, of whatever kind, is an interval with a weight (the part of it that is lost), so that all kinds can be
compared alike. A turn is an iteration of the engine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median_high
from typing import Literal

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.evidence import HOST, entries_of, main_stacks, running, stands_in_line
from aitop.diagnosis.series import values_since
from aitop.diagnosis.served import Span, parts_of
from aitop.diagnosis.what_if import least_squares
from aitop.model.ledger import Entry
from aitop.model.phases import Phase
from aitop.model.serving import IterationRecord, RequestRecord, Serving
from aitop.model.snapshot import Snapshot

Kind = Literal[
    "collector",
    "compile",
    "prefill",
    "quota",
    "cores",
    "preemption",
    "event-loop",
    "handler",
    "lock",
    "own-lock",
    "size",
    "queue",
]
# A turn with prompts holds requests up if it takes longer than one without by at least this part of the usual request;
# smaller differences between turns are ordinary.
LEAST_LONGER = 0.1
# This number of requests is enough to tell what is usual.
MOST_OTHERS = 200
# Kinds that are known only from the kernel's counters, which are read once a second.
BY_COUNTERS: frozenset[Kind] = frozenset({"quota", "cores"})
# A turn does not hold up the request to which at least this part of the turn's prompt tokens belongs.
OWN_PROMPT = 0.5
# The tokens of requests explain how long these take if they explain at least this part of the variance.
LEAST_FIT = 0.5
# The phases of a request in which a server works on it; then those of them outside of the model.
PARTS: Mapping[Phase, Callable[[RequestRecord], float | None]] = {
    "preprocess": attrgetter("preprocess"),
    "forward": attrgetter("model"),
    "postprocess": attrgetter("postprocess"),
}
HANDLING: tuple[Phase, ...] = ("preprocess", "postprocess")
# A handler surely works all along if its thread used this part of the time on a CPU.
MOSTLY_WORKED = 0.5
# Less than a nanosecond is the rounding of sums.
ROUNDING = 1e-9


class HoldUp(msgspec.Struct, frozen=True):
    """An interval from `begin` to `until` (monotonic) of which the part `weight` (0..1) was lost.

    `tokens` is the number of prompt tokens of a long turn. `owner` is the request whose handling took so long; other
    requests lose to it only time in which they wait before they are worked on, and none where it waits for a core.
    `worked` is the part (0..1) in which its handler surely ran, as its thread used that much CPU time. `pid` is the
    process whose requests it holds up, None if those of all.
    """

    kind: Kind
    begin: float
    until: float
    weight: float = 1.0
    tokens: int | None = None
    owner: RequestRecord | None = None
    worked: float = 0.0
    pid: int | None = None

    def holds(self, pid: int | None) -> bool:
        """Whether it holds up requests of this process."""
        return self.pid is None or self.pid == pid

    def meets(self, request: RequestRecord) -> bool:
        """Whether the request was under way meanwhile, in a process that this holds up."""
        return self.holds(request.pid) and self.begin < request.end and self.until > request.end - request.seconds


def hold_ups(snapshot: Snapshot, serving: Serving, requests: Sequence[RequestRecord], usual: float) -> list[HoldUp]:
    """The hold-ups measured while these requests were in progress. `usual` is the median length of a request."""
    since = min(request.end - request.seconds for request in requests)
    # Of processes side by side, each holds up its own requests; any other process all of them.
    beside = serving.side_by_side if len(serving.side_by_side) > 1 else frozenset()
    pauses = [
        HoldUp(
            "collector" if pause.kind == "collect" else "compile",
            pause.end - pause.seconds,
            pause.end,
            pid=pause.pid if pause.pid in beside else None,
        )
        for pause in serving.pauses
        if pause.end > since
    ]
    paused = {pid: Lost([each for each in pauses if each.holds(pid)]) for pid in (*serving.side_by_side, None)}
    engine = serving.pid if serving.pid in beside else None
    prefills = _prefills([turn for turn in serving.iterations if turn.end > since], paused[engine], usual, engine)
    own = _own_part(snapshot, requests)
    long = _long_handling(requests, paused, usual, own, alone=not beside)
    handling = _as_seen(long, requests, usual, snapshot)
    if all(request.cpu is not None for request in requests):
        return [*pauses, *prefills, *handling, *_threads_without_core(snapshot, requests, own)]
    return [*pauses, *prefills, *handling, *_without_core(snapshot, requests, usual)]


def _prefills(iterations: Sequence[IterationRecord], paused: Lost, usual: float, pid: int | None) -> list[HoldUp]:
    """Turns that took much longer than those without prompts, because of the prompts in them: of the engine `pid`."""
    decodes = [turn.seconds for turn in iterations if turn.kind == "decode"]
    if not decodes:
        return []
    plain, least = median_high(decodes), LEAST_LONGER * usual
    found = []
    for turn in (turn for turn in iterations if turn.prefill_tokens and turn.seconds - plain >= least):
        begin = turn.end - turn.seconds
        longer = turn.seconds - plain - paused.between(begin, turn.end)
        if longer >= least:
            part = longer / turn.seconds
            found.append(HoldUp("prefill", begin, turn.end, part, turn.prefill_tokens, pid=pid))
    return found


def _long_handling(
    requests: Sequence[RequestRecord],
    paused: Mapping[int | None, Lost],
    usual: float,
    own: Callable[[RequestRecord], float],
    *,
    alone: bool,
) -> list[HoldUp]:
    """Hold-ups by inputs or outputs that took longer to make than a whole request usually takes.

    Only what exceeds the usual length counts, without pauses (`paused`, by process) and without waits for a core
    (`own`). `alone`: no other process answers beside.
    """
    found = []
    for phase in HANDLING:
        seconds_of = PARTS[phase]
        lengths = [made * own(one) for one in _some(requests) if (made := seconds_of(one)) is not None]
        middle = median_high(lengths) if lengths else 0.0
        for request, (begin, until) in _longer(requests, phase, usual):
            length, pauses = until - begin, paused[request.pid].between(begin, until)
            lost = (length - pauses) * own(request) - middle
            # All else of the request took no more CPU time than it took time.
            beside = request.seconds - (request.queue or 0.0) - length
            worked = min(lost, (request.cpu or 0.0) - beside - pauses - middle)
            if lost > 0.0:
                worked = max(0.0, worked) / length
                pid = None if alone else request.pid
                found.append(HoldUp("handler", begin, until, lost / length, owner=request, worked=worked, pid=pid))
    return found


def _own_part(snapshot: Snapshot, requests: Sequence[RequestRecord]) -> Callable[[RequestRecord], float]:
    """Return a function that says which part (0..1) of the time of work on a request was no wait for a core.

    A thread that is off a core waits for one, or for something else. The kernel counts how long it waits for a core per
    second on one, which gives the waits for a core of all requests together. They are divided among the requests in
    proportion to their time off a core.
    """
    had = running(snapshot)
    times = [(one, max(0.0, one.seconds - (one.queue or 0.0) - one.cpu)) for one in requests if one.cpu is not None]
    off = sum(seconds for _, seconds in times)
    waits = (1.0 / had - 1.0) * sum(one.cpu or 0.0 for one, _ in times)
    part = min(1.0, waits / off) if off > 0.0 else 0.0

    def own(request: RequestRecord) -> float:
        worked = request.seconds - (request.queue or 0.0)
        if request.cpu is None or worked <= 0.0:
            return 1.0
        return 1.0 - part * max(0.0, worked - request.cpu) / worked

    return own


def _longer(requests: Iterable[RequestRecord], phase: Phase, least: float) -> Iterator[tuple[RequestRecord, Span]]:
    """The requests of which `phase` took more than `least` seconds, each with the begin and end of that phase."""
    seconds_of = PARTS[phase]
    for request in requests:
        seconds = seconds_of(request)
        if seconds is not None and seconds > least:
            yield request, parts_of(request)[phase]


def _as_seen(
    handling: Sequence[HoldUp], requests: Sequence[RequestRecord], usual: float, snapshot: Snapshot
) -> list[HoldUp]:
    """Long handling, with less weight if stack samples saw little of the handlers' code: it waited for a turn then.

    What its CPU time proves stays. The rest is in part due to a lock of the program's own (`_behind_a_lock`).
    """
    seconds = sum((each.until - each.begin) * each.weight for each in handling)
    if snapshot.stacks is None or seconds <= 0.0:
        return list(handling)
    known = (made for phase in HANDLING for made in map(PARTS[phase], requests) if made is not None)
    short = sum(made for made in known if made <= usual)
    seen = sum(entry.share for entry in handler_entries(snapshot)) * seconds_of_requests(snapshot) - short
    part = min(1.0, max(0.0, seen) / seconds)
    own = [replace(each, weight=max(each.worked, each.weight * part)) for each in handling]
    rests = [
        replace(each, kind="own-lock", weight=each.weight - left.weight, worked=0.0)
        for each, left in zip(handling, own, strict=True)
        if each.weight > left.weight
    ]
    worked = [each for each in own if each.worked >= MOSTLY_WORKED]
    return [*own, *_behind_a_lock(rests, worked, requests, usual, snapshot)]


def _behind_a_lock(
    rests: Sequence[HoldUp],
    worked: Sequence[HoldUp],
    requests: Sequence[RequestRecord],
    usual: float,
    snapshot: Snapshot,
) -> list[HoldUp]:
    """The part of these hold-ups, in which handlers did not run, that waiting in line for another thread explains.

    That is no longer than threads were seen to stand in line, or than another request's handler `worked` meanwhile: by
    their CPU time, the others hardly ran. In a queue, too, requests stand in line, but one after the other is answered:
    only the longest time without an answer counts, beyond that of a usual request.
    """
    process = main_stacks(snapshot)
    pool = process.pool if process is not None else None
    stood = pool.standing * seconds_of_requests(snapshot) if pool is not None else 0.0
    stood += sum(min(each.until - each.begin, _beside(each, worked)) * each.weight for each in rests)
    if stood <= 0.0:
        return []
    ends = sorted(one.end for one in requests)
    found = []
    for each in rests:
        answered = ends[bisect_right(ends, each.begin) : bisect_left(ends, each.until)]
        still = max(later - earlier for earlier, later in pairwise((each.begin, *answered, each.until)))
        part = max(0.0, still - usual) / (each.until - each.begin)
        found.append(replace(each, weight=each.weight * min(1.0, part)))
    whole = sum((each.until - each.begin) * each.weight for each in found)
    part = min(1.0, stood / whole) if whole > 0.0 else 0.0
    return [replace(each, weight=each.weight * part) for each in found if each.weight * part > 0.0]


def _beside(rest: HoldUp, worked: Iterable[HoldUp]) -> float:
    """The seconds of a hold-up in which handlers of other requests worked, those of the same process."""
    others = (each for each in worked if each.owner is not rest.owner and each.pid == rest.pid)
    return sum(overlap(each, rest.begin, rest.until) for each in others)


def seconds_of_requests(snapshot: Snapshot) -> float:
    """How long the window is that the server's requests are from. That of steps and stacks may have another length."""
    served = snapshot.serving.seconds if snapshot.serving is not None else None
    return served or snapshot.window


def handler_entries(snapshot: Snapshot) -> list[Entry]:
    """The entries of code that is called for requests, in all processes, without the model and the lines that call it.

    Lines on which a thread with a request of its own mostly waits for another thread, a process or the network are left
    out: the request only queues there. In an event loop such a wait holds up everybody.
    """
    entries = [entry for entry in entries_of(snapshot) if entry.where is not None]
    models = {entry.at for entry in entries if entry.phase == "forward"}
    lines: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        if entry.handler is not None and entry.phase in HOST and entry.at not in models:
            lines.setdefault(entry.at, []).append(entry)
    return [entry for of_line in lines.values() if not _stands_in_line(of_line) for entry in of_line]


def _stands_in_line(entries: Sequence[Entry]) -> bool:
    """Whether the entries of one line mostly wait for a thread, a process or the network, each for one request."""
    return sum(entry.share for entry in entries if stands_in_line(entry)) > 0.5 * sum(entry.share for entry in entries)


def _threads_without_core(
    snapshot: Snapshot, requests: Sequence[RequestRecord], own: Callable[[RequestRecord], float]
) -> list[HoldUp]:
    """Hold-ups in which the thread of a request waited for a core, each of that request alone."""
    readings = values_since(snapshot, "throttled", snapshot.window)
    throttled = [(before, until) for (before, _), (until, part) in pairwise(readings) if part]
    found = []
    for request in requests:
        begin, waited = request.end - request.seconds + (request.queue or 0.0), 1.0 - own(request)
        if waited > 0.0:
            stopped = any(before < request.end and until > begin for before, until in throttled)
            kind: Kind = "quota" if stopped else "cores"
            found.append(HoldUp(kind, begin, request.end, waited, owner=request))
    return found


def _without_core(snapshot: Snapshot, requests: Sequence[RequestRecord], usual: float) -> list[HoldUp]:
    """Hold-ups in which the main thread could run but had no core.

    The kernel's counters say how long that was between two readings. When in between, requests tell: where one of their
    phases took longer than usual. Time that they do not account for is spread evenly.
    """
    throttled = dict(values_since(snapshot, "throttled", snapshot.window))
    delays = values_since(snapshot, "run_delay", snapshot.window)
    slow = _longer_parts(requests, usual) if any(delay > 0.0 for _, delay in delays) else []
    found = []
    for (begin, _), (until, delay) in pairwise(delays):
        if delay <= 0.0:
            continue
        kind: Kind = "quota" if throttled.get(until) else "cores"
        there = [each for each in slow if each.begin < until and each.until > begin]
        lost, longer = min(1.0, delay) * (until - begin), sum(overlap(each, begin, until) for each in there)
        part = min(1.0, lost / longer) if longer > 0.0 else 0.0
        found += [HoldUp(kind, max(begin, each.begin), min(until, each.until), each.weight * part) for each in there]
        found.append(HoldUp(kind, begin, until, max(0.0, lost - longer) / (until - begin)))
    return found


def _longer_parts(requests: Sequence[RequestRecord], usual: float) -> list[HoldUp]:
    """The phases of requests that took clearly longer than usual; the weight is the part that is beyond the usual."""
    found = []
    for phase, seconds_of in PARTS.items():
        lengths = [seconds for request in _some(requests) if (seconds := seconds_of(request)) is not None]
        middle = median_high(lengths) if lengths else 0.0
        for _, (begin, until) in _longer(requests, phase, middle + LEAST_LONGER * usual):
            found.append(HoldUp("cores", begin, until, 1.0 - middle / (until - begin)))
    return found


def overlap(hold_up: HoldUp, begin: float, until: float) -> float:
    """The seconds that a hold-up took between two moments."""
    return max(0.0, min(until, hold_up.until) - max(begin, hold_up.begin)) * hold_up.weight


class Lost:
    """The sum of hold-ups: how many seconds they took together between any two moments."""

    def __init__(self, found: Sequence[HoldUp]) -> None:
        changes = [(each.begin, each.weight) for each in found] + [(each.until, -each.weight) for each in found]
        # For each of these moments: the seconds lost up to it, and the part of the time that is lost from it on.
        self._times: list[float] = []
        self._sums: list[float] = []
        self._parts: list[float] = []
        lost = part = before = 0.0
        for time, change in sorted(changes):
            lost += part * (time - before)
            part += change
            before = time
            self._times.append(time)
            self._sums.append(lost)
            self._parts.append(part)

    def between(self, begin: float, until: float) -> float:
        """The seconds that were lost between two moments."""
        lost = self._until(until) - self._until(begin) if until > begin else 0.0
        return lost if lost > ROUNDING else 0.0

    def _until(self, time: float) -> float:
        place = bisect_right(self._times, time) - 1
        return self._sums[place] + self._parts[place] * (time - self._times[place]) if place >= 0 else 0.0


class RequestHoldUps:
    """All hold-ups. `of` gives the seconds that each kind of them took of one request, `seconds` those of one kind."""

    def __init__(self, found: Iterable[HoldUp]) -> None:
        """Sum up by kind what holds up all requests; keep single what depends on the request (prompts, handlers)."""
        alike: dict[Kind, dict[int | None, list[HoldUp]]] = {}
        self._single: dict[Kind, list[HoldUp]] = {}
        for hold_up in found:
            if hold_up.tokens is None and hold_up.owner is None:
                alike.setdefault(hold_up.kind, {}).setdefault(hold_up.pid, []).append(hold_up)
            else:
                self._single.setdefault(hold_up.kind, []).append(hold_up)
        self._alike = {kind: {pid: Lost(each) for pid, each in by_pid.items()} for kind, by_pid in alike.items()}
        for single in self._single.values():
            single.sort(key=lambda each: each.until)
        self._untils = {kind: [each.until for each in single] for kind, single in self._single.items()}
        self._longest = {kind: max(each.until - each.begin for each in single) for kind, single in self._single.items()}
        self._kinds = tuple(dict.fromkeys((*alike, *self._single)))

    def of(self, request: RequestRecord) -> dict[Kind, float]:
        """The seconds that each kind took of a request."""
        return {kind: lost for kind in self._kinds if (lost := self.seconds(kind, request)) > 0.0}

    def seconds(self, kind: Kind, request: RequestRecord) -> float:
        """The seconds that hold-ups of one kind took of a request."""
        end, pid = request.end, request.pid
        begin = end - request.seconds
        seconds = 0.0
        for held_pid, lost in self._alike.get(kind, {}).items():
            if held_pid is None or held_pid == pid:
                seconds += lost.between(begin, end)
        single = self._single.get(kind, ())
        if not single:
            return seconds
        for hold_up in single[bisect_left(self._untils[kind], begin) :]:
            if hold_up.until - self._longest[kind] >= end:
                break
            own = hold_up.tokens is not None and (request.prompt_tokens or 0) >= OWN_PROMPT * hold_up.tokens
            if own or not hold_up.holds(pid):
                continue
            behind = hold_up.owner is not None and hold_up.owner is not request
            if behind and kind in BY_COUNTERS:
                continue
            seconds += overlap(hold_up, begin, begin + (request.queue or 0.0) if behind else end)
        return seconds


class Unattended:
    """The times in which requests of a process waited and none was worked on: its thread did something else.

    `held` has them, as hold-ups by an event loop. Of each, known pauses do not count.
    """

    def __init__(self, requests: Iterable[RequestRecord], known: Sequence[HoldUp]) -> None:
        moments: dict[int | None, list[tuple[float, int, int]]] = {}
        for request in requests:
            begin = request.end - request.seconds
            begun = begin + (request.queue or 0.0)
            moments.setdefault(request.pid, []).extend([(begin, 1, 0), (begun, -1, 1), (request.end, 0, -1)])
        self.held: list[HoldUp] = []
        self._lost: dict[int | None, Lost] = {}
        for pid, changes in moments.items():
            pauses = Lost([each for each in known if each.holds(pid)])
            own = [
                HoldUp("event-loop", begin, until, left / (until - begin), pid=pid)
                for begin, until in _waits_alone(sorted(changes))
                if (left := until - begin - pauses.between(begin, until)) > 0.0
            ]
            self.held += own
            self._lost[pid] = Lost(own)

    @property
    def seconds(self) -> float:
        """How long that was in all."""
        return sum((each.until - each.begin) * each.weight for each in self.held)

    def of(self, request: RequestRecord) -> float:
        """The seconds in which this request waited so."""
        begin = request.end - request.seconds
        return self._lost[request.pid].between(begin, begin + (request.queue or 0.0))


def _waits_alone(changes: Iterable[tuple[float, int, int]]) -> Iterator[tuple[float, float]]:
    """The spans in which requests wait and none is worked on.

    `changes` are in order: (time, change in the number of those that wait, of those that are worked on).
    """
    waiting = working = 0
    since: float | None = None
    for time, waits, works in changes:
        waiting, working = waiting + waits, working + works
        alone = waiting > 0 and working == 0
        if not alone and since is not None and time > since:
            yield since, time
        since = (time if since is None else since) if alone else None


class Tail(msgspec.Struct, frozen=True):
    """The slowest requests compared with the usual one. `usual` and `slowest` are the seconds that the median request
    takes, and the `slow` ones on average; `extra` is how many seconds longer these took together. `kinds` has the parts
    (0..1) of `extra` that each kind explains, the largest first; `size` is the part that their tokens explain, `queue`
    that of their waits in the queue, and `unattended` that of those in which no request was worked on. `at_most` bounds
    the parts of BY_COUNTERS: the kernel's counters say how much of a second was lost, not when.
    """

    usual: float
    slowest: float
    slow: int
    extra: float
    kinds: Mapping[Kind, float]
    size: float
    queue: float
    unattended: float
    at_most: Mapping[Kind, float]

    @property
    def open(self) -> float:
        """The part of the extra time (0..1) that nothing explains."""
        return max(0.0, 1.0 - sum(self.kinds.values()) - self.size - self.queue)


def tail_of(requests: Sequence[RequestRecord], held: RequestHoldUps, alone: Unattended, slow: int) -> Tail:
    """Compare the `slow` slowest of the requests with the others."""
    ordered = sorted(requests, key=attrgetter("seconds"))
    usual = ordered[len(ordered) // 2].seconds
    slowest, others = ordered[-slow:], ordered[: -slow or None]
    some = _some(others)
    expected, rates = _expected(some, usual), _rates(some, held)
    waits = [request.queue for request in some if request.queue is not None]
    wait = median_high(waits) if waits else 0.0
    sums: dict[Kind, float] = {}
    allowed: dict[Kind, float] = {}
    extra = unattended = 0.0
    for request in slowest:
        longer = max(0.0, request.seconds - usual)
        extra += longer
        size = min(longer, max(0.0, expected(request) - usual))
        left = longer - size
        # Hold-ups that are usual in a request of this length do not explain why it took longer.
        lost = {
            kind: max(0.0, seconds - rates.get(kind, 0.0) * (usual + size))
            for kind, seconds in held.of(request).items()
        }
        for kind in BY_COUNTERS & lost.keys():
            allowed[kind] = allowed.get(kind, 0.0) + min(left, lost.pop(kind))
        whole = sum(lost.values())
        scale = min(1.0, left / whole) if whole > 0.0 else 0.0
        for kind, seconds in lost.items():
            sums[kind] = sums.get(kind, 0.0) + seconds * scale
        left -= whole * scale
        if request.preempted:
            sums["preemption"] = sums.get("preemption", 0.0) + left
            left = 0.0
        queued = min(left, max(0.0, (request.queue or 0.0) - wait))
        sums["queue"] = sums.get("queue", 0.0) + queued
        unattended += min(queued, alone.of(request))
        sums["size"] = sums.get("size", 0.0) + size
    parts = {kind: seconds / extra for kind, seconds in sums.items()} if extra > 0.0 else {}
    size, queue = parts.pop("size", 0.0), parts.pop("queue", 0.0)
    kinds = dict(sorted(parts.items(), key=lambda item: -item[1]))
    mean = sum(request.seconds for request in slowest) / len(slowest)
    at_most = {kind: seconds / extra for kind, seconds in allowed.items()} if extra > 0.0 else {}
    unattended = unattended / extra if extra > 0.0 else 0.0
    return Tail(usual, mean, len(slowest), extra, kinds, size, queue, unattended, at_most)


def _some(requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
    """Every n-th of these requests, so that about MOST_OTHERS of them tell what is usual."""
    return requests[:: max(1, len(requests) // MOST_OTHERS)]


def _rates(requests: Sequence[RequestRecord], held: RequestHoldUps) -> dict[Kind, float]:
    """The part (0..1) of ordinary requests' time that each kind of hold-up takes."""
    whole, sums = sum(request.seconds for request in requests), dict[Kind, float]()
    for request in requests:
        for kind, seconds in held.of(request).items():
            sums[kind] = sums.get(kind, 0.0) + seconds
    return {kind: seconds / whole for kind, seconds in sums.items()} if whole > 0.0 else {}


def _expected(requests: Sequence[RequestRecord], usual: float) -> Callable[[RequestRecord], float]:
    """Return a function that predicts the seconds of a request from its tokens; `usual` where these say too little."""
    known = [request for request in requests if request.tokens is not None]
    if not known:
        return lambda request: usual
    rows = [_size(request) for request in known]
    # A column of equal values cannot be told from the constant one.
    columns = [index for index in range(3) if index == 0 or len({row[index] for row in rows}) > 1]
    factors = least_squares([[row[index] for index in columns] for row in rows], [request.seconds for request in known])
    if factors is None or min(factors[1:], default=0.0) < 0.0:
        return lambda request: usual

    def fitted(request: RequestRecord) -> float:
        row = _size(request)
        return sum(factor * row[index] for factor, index in zip(factors, columns, strict=True))

    mean = sum(request.seconds for request in known) / len(known)
    spread = sum((request.seconds - mean) ** 2 for request in known)
    left = sum((request.seconds - fitted(request)) ** 2 for request in known)
    if spread <= 0.0 or left > (1.0 - LEAST_FIT) * spread:
        return lambda request: usual
    return lambda request: usual if request.tokens is None else fitted(request)


def _size(request: RequestRecord) -> tuple[float, float, float]:
    return 1.0, float(request.tokens or 0), float(request.prompt_tokens or 0)
