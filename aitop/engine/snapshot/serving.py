"""Computes the figures of a server in the window: from the hook's records, else from its own `/metrics`. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter

from msgspec.structs import replace

from aitop.engine.history import (
    CHART_SECONDS,
    LONG_WINDOW_SECONDS,
    SILENT_SECONDS,
    WINDOW_SECONDS,
    History,
    HookHistory,
    ServedHistory,
    ServedSecond,
)
from aitop.engine.snapshot.metrics import BRIEF, REQUEST_SERIES, mean_of, of_metrics, series_of_metrics
from aitop.engine.snapshot.steps import quantile
from aitop.model.serving import IterationRecord, Percentiles, RequestRecord, Serving
from aitop.model.snapshot import Series, series_of
from aitop.model.steps import Kind

ENOUGH_REQUESTS = 30
# The front process reports a request within this time after the process behind it, or never.
LOST_SECONDS = 10.0


def serving(history: History, now: float, kind: Kind) -> Serving | None:
    """The server's figures; None where nothing is served. Where nothing is measured, the Serving has no figures.

    Where hook and metrics both have a figure, the hook's is used, which is exact. Tokens come from the server's counter
    instead, which includes those of requests that have not ended.
    """
    hook = _of_hook(history, now)
    metrics = of_metrics(history.servers, now - WINDOW_SECONDS)
    if hook is None:
        host = history.hosts.last
        serves = host is not None and host.engine is not None and kind != "training"
        return _aged(history, metrics, now) or (Serving(basis="stacks") if serves else None)
    if metrics is None:
        return hook
    missing = {name: getattr(metrics, name) for name in Serving.__struct_fields__ if getattr(hook, name) is None}
    tokens = hook.tokens_per_second if metrics.tokens_per_second is None else metrics.tokens_per_second
    return replace(hook, **{**missing, "tokens_per_second": tokens, "still": _still(history, hook, metrics, now)})


def _aged(history: History, metrics: Serving | None, now: float) -> Serving | None:
    """The figures, with the time since the last look added to `still` while the server does not answer.

    When all looks are older than the window, only what was under way at the last one is left, in processes that live.
    """
    status, host = history.statuses.get("server"), history.hosts.last
    alive = {process.pid for process in host.processes if process.state != "Z"} if host is not None else set()
    last = metrics or of_metrics({pid: looks for pid, looks in history.servers.items() if pid in alive}, -math.inf)
    if status is None or status.state not in ("failed", "stale") or last is None or last.still is None:
        return metrics
    known = metrics or Serving(basis="metrics", pid=last.pid, alive=last.alive)
    return replace(known, still=last.still + _since_look(history, now))


def _since_look(history: History, now: float) -> float:
    return max(0.0, now - max(looks[-1].time for looks in history.servers.values()))


def _still(history: History, hook: Serving, metrics: Serving, now: float) -> float | None:
    """Seconds since the newest progress that hook or metrics saw. The metrics' figure ages from the last look on.

    The hook in an engine sees all progress, and of each engine by itself: then the metrics say nothing more.
    """
    if any(own.served.iterations for own in history.hooks.values()):
        return hook.still
    known = (hook.still, None if metrics.still is None else metrics.still + _since_look(history, now))
    return min((value for value in known if value is not None), default=None)


def request_series(history: History, now: float) -> dict[str, Series]:
    """The series request_p50, request_p99 (milliseconds), request_rate and request_queue over the last minutes.

    Over several processes the p50 is the mean, weighted by their requests, and the p99 the largest.
    """
    served = _served(history)
    chosen = front_processes(history, {pid: list(own.requests) for pid, own in served.items()})
    requests = _by_second(served[pid].done for pid in chosen)
    everywhere = _by_second(own.done for own in served.values())
    if not requests and not everywhere:
        return series_of_metrics(history.servers)
    last = int(now) - 2
    seconds = range(max(min([*requests, *everywhere]), last - CHART_SECONDS), last + 1)
    watched = any(own.watches_requests for own in served.values())
    rows = [_row(second, requests.get(second, []), everywhere.get(second, []), watched=watched) for second in seconds]
    return series_of(REQUEST_SERIES, rows)


def _by_second(histories: Iterable[Iterable[ServedSecond]]) -> dict[int, list[ServedSecond]]:
    by_second: dict[int, list[ServedSecond]] = {}
    for seconds in histories:
        for second in seconds:
            by_second.setdefault(second.second, []).append(second)
    return by_second


def _row(
    second: int, requests: Sequence[ServedSecond], everywhere: Sequence[ServedSecond], *, watched: bool
) -> tuple[float | None, ...]:
    """One row of the charts: the end of a second, its p50 and p99 (milliseconds), its rate, and the queue everywhere.

    `watched` says that requests are watched, and not only iterations.
    """
    answered = sum(own.requests for own in requests)
    weighted = sum(own.requests * own.p50 for own in requests if own.p50 is not None)
    slowest = max((own.p99 for own in requests if own.p99 is not None), default=None)
    waiting = [own.waiting for own in everywhere if own.waiting is not None]
    queued = [own.queue for own in everywhere if own.queue is not None]
    return (
        second + 1.0,
        weighted / answered * 1e3 if answered else None,
        None if slowest is None else slowest * 1e3,
        float(answered) if watched else None,
        sum(waiting) if waiting else sum(queued) if queued else None,
    )


def _served(history: History) -> dict[int, ServedHistory]:
    """The served history of each process in which the hook watches requests or iterations, by pid.

    Requests to a process that trains do not count: they ask how the run goes.
    """
    watched = {pid: hook for pid, hook in history.hooks.items() if hook.served.since is not None}
    return {pid: hook.served for pid, hook in watched.items() if hook.served.iterations or not _trains(hook)}


def _trains(hook: HookHistory) -> bool:
    return bool(hook.steps) and hook.steps[-1].kind == "train"


def _of_hook(history: History, now: float) -> Serving | None:
    """The figures from the hook's records; None where the hook reports no server."""
    served = _served(history)
    if not served:
        return None
    end = _reported_until(history, served, now)
    since = _window(served, end)
    requests = {pid: [request for request in own.requests if request.end >= since] for pid, own in served.items()}
    turns = {pid: [turn for turn in own.iterations if turn.end >= since] for pid, own in served.items()}
    front = front_processes(history, requests)
    inner = _by_end(requests, requests.keys() - set(front))
    engines = {pid for pid, own in served.items() if own.iterations}
    engine = max((pid for pid in turns if turns[pid]), key=lambda pid: (len(turns[pid]), -pid), default=None)
    answered = _joined(_by_end(requests, front), inner, engines)
    if engines:
        answered = _that_reached_an_engine(answered, served, min(engines) if engine is None else engine)
    busiest = max(front, key=lambda pid: (len(requests[pid]), -pid), default=min(served))
    under_way = {pid: own.busy for pid, own in served.items() if own.busy is not None and _heard(own, end)}
    still, still_pid = _standing_still(served, under_way, end)
    sent = [request.first_sent for request in answered if request.first_sent is not None]
    first = [request.first_token for request in answered if request.first_token is not None]
    pauses = [pause for hook in history.hooks.values() for pause in hook.served.pauses if pause.end >= since]
    seconds = end - since
    # While the hook was not in them, processes are taken to have answered as many requests for their CPU time.
    seen = seconds * _part_seen(history, front, since, end)
    iterations = [record for own in turns.values() for record in own]
    return Serving(
        basis="hook",
        seconds=seconds,
        pid=busiest if engine is None else engine,
        requests_per_second=_rate_of_requests(answered, served, seen),
        tokens_per_second=_tokens(answered, iterations, seen, seconds),
        concurrency=_concurrency(
            answered,
            sum(end - max(since, began) for began in under_way.values()),
            _in_engines(turns, served, since, end, _present),
            seen,
        ),
        queue=_queue(answered, _in_engines(turns, served, since, end, attrgetter("waiting")), seen),
        latency=_percentiles([record.seconds for record in answered]),
        first_token=_percentiles(sent or first),
        first_token_basis="answer" if sent else "model" if first else None,
        inter_token=_inter_token(turns.values()),
        batch_mean=mean_of([turn.requests for turn in iterations if turn.requests is not None]),
        kv_used=mean_of([turn.kv_used for turn in iterations if turn.kv_used is not None]),
        preemptions_per_second=_per_second([turn.preempted for turn in iterations], seconds),
        alive=_alive(history, served, end),
        still=still,
        still_pid=still_pid,
        under_way=under_way,
        requests=tuple(answered),
        iterations=() if engine is None else tuple(turns[engine]),
        pauses=tuple(sorted(pauses, key=lambda pause: pause.end)),
        engines=sum(map(bool, turns.values())) or None,
        longest=_longest(served),
    )


def _reported_until(history: History, served: Mapping[int, ServedHistory], now: float) -> float:
    """The time until which records are complete: that of the hook's last sample.

    If the hook's source works and nothing came for longer than a record takes to come, nothing happened: it is `now`.
    """
    status = history.statuses.get("hook")
    heard = max(history.hooks[pid].time for pid in served)
    silent = (status is None or status.state == "ok") and now - heard > SILENT_SECONDS
    return now if silent else heard


def _window(served: Mapping[int, ServedHistory], end: float) -> float:
    """The beginning of the window; earlier where a short window has few requests.

    Never before watching began, nor before the oldest of the records that are kept.
    """
    since = end - WINDOW_SECONDS
    if sum(record.end >= since for own in served.values() for record in own.requests) < ENOUGH_REQUESTS:
        since = end - LONG_WINDOW_SECONDS
    watched = min(own.since for own in served.values() if own.since is not None)
    forgotten = [
        records[0].end
        for own in served.values()
        for records in (own.requests, own.iterations)
        if len(records) == records.maxlen
    ]
    return max([since, watched, *forgotten])


def front_processes(history: History, requests: Mapping[int, Sequence[RequestRecord]]) -> tuple[int, ...]:
    """The processes whose requests are those of the users. The same request may be reported twice: by the process that
    takes it from the network and by the one that runs the model.

    Processes with the same part in the server share its requests. The parts to choose from have at least half as many
    requests as the busiest one. A part that runs an engine's loop is behind the others; of the rest, the one whose
    requests last longest contains the others.
    """
    parts, hooks = history.parts, history.hooks
    groups: dict[str | None, list[int]] = {}
    for pid in sorted(requests):
        if requests[pid]:
            groups.setdefault(parts.get(pid), []).append(pid)
    counts = {part: sum(len(requests[pid]) for pid in pids) for part, pids in groups.items()}
    most = max(counts.values(), default=0)

    def outside(part: str | None) -> tuple[bool, float]:
        loops = any(hooks[pid].served.iterations for pid in groups[part])
        return not loops, sum(record.seconds for pid in groups[part] for record in requests[pid]) / counts[part]

    chosen = max((part for part in groups if 2 * counts[part] >= most), key=outside, default=None)
    return tuple(groups.get(chosen, ()))


def _part_seen(history: History, front: Sequence[int], since: float, end: float) -> float:
    """The share (0..1) of the front processes' lives in the window during which the hook was in them; 1 if unknown.

    Workers come and go, and the hook comes into each a little after its start, or never. Lives count by the CPU time
    that a process used, where that is known of all: connections that stay open are seldom shared evenly.
    """
    parts = {history.parts[pid] for pid in front if pid in history.parts}
    looks = [host for host in history.hosts if since <= host.time <= end]
    met: dict[int, list[int]] = {}
    cpu: dict[int, list[float | None]] = {}
    for number, host in enumerate(looks):
        for process in host.processes:
            if history.parts.get(process.pid) in parts and process.state != "Z":
                met.setdefault(process.pid, []).append(number)
                cpu.setdefault(process.pid, []).append(process.cpu)
    used = {pid: mean_of([value for value in values if value is not None]) for pid, values in cpu.items()}
    weights = {pid: value for pid, value in used.items() if value is not None}
    if len(weights) < len(met) or not any(weights.values()):
        weights = dict.fromkeys(met, 1.0)
    lived = watched = 0.0
    for pid, numbers in met.items():
        first, last = numbers[0], numbers[-1]
        # It started and ended between two samples: on average half-way.
        born = (looks[first - 1].time + looks[first].time) / 2 if first else since
        died = (looks[last].time + looks[last + 1].time) / 2 if last + 1 < len(looks) else end
        lived += weights[pid] * (died - born)
        hook = history.hooks.get(pid)
        if hook is not None:
            began = hook.began if hook.served.since is None else min(hook.began, hook.served.since)
            watched += weights[pid] * max(0.0, died - max(born, began))
    return min(1.0, watched / lived) if watched else 1.0


def _standing_still(
    served: Mapping[int, ServedHistory], under_way: Mapping[int, float], end: float
) -> tuple[float, int | None]:
    """For how many seconds there has been no progress with the requests under way, and in which engine, if in one. If
    no process has any, the seconds since one of them ended anything.

    Each engine that has requests makes iterations, so the one that has made none for longest counts: whoever asks how
    the server is does not get it on. Without an engine all processes count together, since a single request may take
    long for reasons of its own.
    """
    turned = {pid: own.iterations[-1].end for pid, own in served.items() if own.iterations}
    engines = {pid: max(turned[pid], since) for pid, since in under_way.items() if pid in turned}
    if engines:
        pid = min(engines, key=lambda pid: (engines[pid], pid))
        return max(0.0, end - engines[pid]), pid
    ends = [*turned.values(), *(own.requests[-1].end for own in served.values() if own.requests)]
    if under_way:
        return max(0.0, end - max([min(under_way.values()), *ends])), None
    watched = min(own.since for own in served.values() if own.since is not None)
    return max(0.0, end - max(ends, default=watched)), None


def _heard(own: ServedHistory, end: float) -> bool:
    return own.heard is not None and own.heard >= end - SILENT_SECONDS


def _that_reached_an_engine(
    answered: Sequence[RequestRecord], served: Mapping[int, ServedHistory], engine: int
) -> list[RequestRecord]:
    """The requests that reached an engine.

    Once one request has reached an engine, later ones that reach none are probes or scrapes and are dropped. Earlier
    ones are kept and count as this `engine`'s, since the hook may not have been in it yet.
    """
    firsts = (next((one.end for one in own.requests if _computed(one)), math.inf) for own in served.values())
    first = min(firsts, default=math.inf)
    known = (one if _computed(one) else replace(one, pid=engine) if one.end < first else None for one in answered)
    return [one for one in known if one is not None]


def _computed(request: RequestRecord) -> bool:
    """Whether it is known what a model did for a request."""
    return request.tokens is not None or request.model is not None


def _by_end(requests: Mapping[int, Sequence[RequestRecord]], pids: Iterable[int]) -> list[RequestRecord]:
    """The requests of these processes by their ends."""
    return sorted((record for pid in pids for record in requests[pid]), key=lambda one: one.end)


def _joined(
    outer: Sequence[RequestRecord], inner: Sequence[RequestRecord], engines: Collection[int]
) -> list[RequestRecord]:
    """The requests of the front (`outer`), each with what the process that runs the model reports of it (`inner`).

    Both are sorted by their ends. No id links the two records of a request. Requests leave the front in the order in
    which their answers come, so each takes the first free record of the model's side that lies within it. An answer
    may be out before the process that computed it notes its end, but not before its model was done: so the
    postprocessing of an inner record may end later.
    """
    left, joined, coming = list[RequestRecord](), [], deque(inner)
    for whole in outer:
        begin = whole.end - whole.seconds
        while coming and coming[0].end - (coming[0].postprocess or 0.0) <= whole.end:
            left.append(coming.popleft())
        part = next((record for record in left if record.end - record.seconds >= begin), None)
        if part is not None:
            left = [record for record in left if record is not part and record.end > whole.end - LOST_SECONDS]
        joined.append(whole if part is None else _within(whole, part, part.pid if part.pid in engines else whole.pid))
    return joined


def _within(whole: RequestRecord, part: RequestRecord, pid: int | None) -> RequestRecord:
    """Merge two records of a request that one process took from the network (`whole`) and another answered (`part`).
    It becomes one of the process `pid`.

    The time before `part` counts as queue; the time of the answer's way back counts as no phase.
    """
    before = part.end - part.seconds - (whole.end - whole.seconds)
    return replace(
        part,
        end=whole.end,
        seconds=whole.seconds,
        queue=None if part.queue is None else part.queue + before,
        first_token=None if part.first_token is None else part.first_token + before,
        first_sent=whole.first_sent,
        pid=pid,
    )


def _alive(history: History, served: Mapping[int, ServedHistory], end: float) -> int | None:
    """The number of requests under way at `end`, in the part that has most: it takes them first and lets them go last.

    A process with requests under way reports at every read of its hook, so a silent one has none.
    """
    parts = history.parts
    alive: dict[str | None, int] = {}
    for pid, own in served.items():
        if own.alive is not None:
            alive[parts.get(pid)] = alive.get(parts.get(pid), 0) + (own.alive if _heard(own, end) else 0)
    return max(alive.values(), default=None)


def _rate_of_requests(
    answered: Sequence[RequestRecord], served: Mapping[int, ServedHistory], seconds: float
) -> float | None:
    """Requests answered per second; None where only iterations are watched, as requests may be answered unseen."""
    watched = any(own.watches_requests for own in served.values())
    return len(answered) / seconds if watched and seconds > 0 else None


def _tokens(
    answered: Sequence[RequestRecord], turns: Sequence[IterationRecord], seen: float, seconds: float
) -> float | None:
    """Tokens per second: of the requests that ended in `seen` seconds, or of all iterations in `seconds` where requests
    last too long for that.
    """
    # A probe of the server's health has no tokens, and no model computes for it.
    counted = [one for one in answered if _computed(one)]
    if counted and sum(one.seconds for one in counted) / len(counted) <= BRIEF * seen:
        return _per_second([one.tokens for one in counted], seen)
    return _per_second([record.decode_tokens for record in turns], seconds)


def _concurrency(
    answered: Sequence[RequestRecord], present: float, in_engines: float | None, seconds: float
) -> float | None:
    """The mean number of requests in progress: rate times latency (Little's law), or the engines' own count.

    The engines' count is used where requests last so long that few of them ended. `present`: for so many seconds, of
    all processes together, at least one request that has not ended was under way.
    """
    total = sum(record.seconds for record in answered)
    if answered and seconds > 0 and total / len(answered) <= BRIEF * seconds:
        return max(total, present) / seconds
    if in_engines is not None:
        return in_engines
    return max(total, present) / seconds if (answered or present) and seconds > 0 else None


def _queue(answered: Sequence[RequestRecord], in_engines: float | None, seconds: float) -> float | None:
    """The mean number of waiting requests: as the engines counted them, else from the waits of the requests."""
    return _per_second([record.queue for record in answered], seconds) if in_engines is None else in_engines


def _present(turn: IterationRecord) -> int | None:
    """The requests in an engine when this turn ended, those that waited too."""
    return None if turn.running is None else turn.running + (turn.waiting or 0)


def _in_engines(
    turns: Mapping[int, Sequence[IterationRecord]],
    served: Mapping[int, ServedHistory],
    since: float,
    end: float,
    count: Callable[[IterationRecord], int | None],
) -> float | None:
    """The sum over all engines of the mean number of requests that they `count`; None where none of them does."""
    means = []
    for pid, own in turns.items():
        counted = [(turn, number) for turn in own if (number := count(turn)) is not None]
        mean = _over_time(counted, since, end if served[pid].alive == 0 else None)
        means += [] if mean is None else [mean]
    return sum(means) if means else None


def _over_time(counted: Sequence[tuple[IterationRecord, int]], since: float, rests_until: float | None) -> float | None:
    """The mean over the time from `since` on of what an engine counted in its turns.

    It is 0 while the engine idles, and until `rests_until` if it has rested since its last turn.
    """
    if not counted:
        return None
    (first, _), (last, _) = counted[0], counted[-1]
    idle = sum(turn.idle or 0.0 for turn, _ in counted[1:])
    idle += min(first.idle or 0.0, max(0.0, first.end - first.seconds - since))
    rest = 0.0 if rests_until is None else max(0.0, rests_until - last.end)
    whole = sum(turn.seconds for turn, _ in counted) + idle + rest
    return sum(number * turn.seconds for turn, number in counted) / whole if whole > 0.0 else None


def _longest(served: Mapping[int, ServedHistory]) -> float | None:
    """The longest seconds of an iteration that is remembered, else of a request; None where there are too few."""
    turned = [turn.seconds for own in served.values() for turn in own.iterations]
    lengths = turned or [request.seconds for own in served.values() for request in own.requests]
    return max(lengths) if len(lengths) > 1 else None


def _inter_token(turns: Iterable[Sequence[IterationRecord]]) -> Percentiles | None:
    """Percentiles of the time between tokens: from iteration to iteration, weighted by the tokens decoded."""
    gaps = [
        (max(0.0, turn.seconds if turn.idle is None else turn.end - before.end - turn.idle), turn.decode_tokens)
        for own in turns
        for before, turn in pairwise(own)
        if turn.decode_tokens
    ]
    gaps.sort()
    passed = list(accumulate(number for _, number in gaps))
    if not passed:
        return None
    p50, p95, p99 = (gaps[bisect_right(passed, share * passed[-1])][0] for share in (0.5, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return Percentiles(p50=quantile(ordered, 0.5), p95=quantile(ordered, 0.95), p99=quantile(ordered, 0.99))


def _per_second(values: Sequence[float | None], seconds: float) -> float | None:
    """The sum of the values per second; None where some are not measured."""
    known = [value for value in values if value is not None]
    return sum(known) / seconds if known and len(known) == len(values) and seconds > 0 else None
