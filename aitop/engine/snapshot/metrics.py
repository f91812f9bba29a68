"""Computes a server's figures from the differences between looks at its own `/metrics`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from aitop.model.serving import Percentiles, ServerSample, Serving
from aitop.model.snapshot import Series, series_of

# A percentile is given only if the upper bound of its bucket is at most this many times the lower one.
COARSEST = 2.5
# Where requests last longer than this part of the window, those that ended in it do not represent all of them.
BRIEF = 0.25
# While a server works, at least one of these counters increases, or something enters a histogram: some engines count
# a request's tokens only at its end, but time each of them.
PROGRESS = ("iterations", "tokens", "prompt_tokens", "requests")
REQUEST_SERIES = ("request_p50", "request_p99", "request_rate", "request_queue")


def of_metrics(servers: Mapping[int, Sequence[ServerSample]], since: float) -> Serving | None:
    """The figures of all servers together for the time from `since` on; None without a sample since then.

    Rates, counts and queues are sums over the servers, and None where one of them lacks the figure.
    """
    samples = {pid: list(own) for pid, own in servers.items() if own and own[-1].time >= since}
    if not samples:
        return None
    spans = [span for own in samples.values() if (span := _span(own, since)) is not None]
    recent = [sample for own in samples.values() for sample in own if sample.time >= since]
    newest = [own[-1] for own in samples.values()]
    running, waiting = (_sum(sample.gauges.get(name) for sample in newest) for name in ("running", "waiting"))
    latency = _sum(_spent(span, "latency") for span in spans)
    brief = all(_are_brief(span) for span in spans)
    mean_running, mean_waiting = (_mean_gauge(recent, len(newest), name) for name in ("running", "waiting"))
    first_token = _percentiles(spans, "first_token")
    present = mean_running if mean_waiting is None or mean_running is None else mean_running + mean_waiting
    waited = _sum(_spent(span, "queue") for span in spans)
    return Serving(
        basis="metrics",
        seconds=max((after.time - before.time for before, after in spans), default=None),
        pid=min(samples),
        requests_per_second=_sum(_rate(span, "requests") for span in spans),
        tokens_per_second=_sum(_rate(span, "tokens") for span in spans),
        concurrency=latency if latency is not None and (brief or present is None) else present,
        queue=waited if mean_waiting is None else mean_waiting,
        latency=_percentiles(spans, "latency"),
        first_token=first_token,
        first_token_basis=None if first_token is None else "metrics",
        inter_token=_percentiles(spans, "inter_token"),
        batch_mean=mean_of([_each_engine(sample) for sample in recent if sample.gauges.get("running")]),
        kv_used=mean_of([sample.gauges["kv_used"] for sample in recent if "kv_used" in sample.gauges]),
        preemptions_per_second=_sum(_rate(span, "preemptions") for span in spans),
        alive=None if running is None else round(running + (waiting or 0.0)),
        still=min((still for own in samples.values() if (still := _still(own)) is not None), default=None),
    )


def series_of_metrics(servers: Mapping[int, Sequence[ServerSample]]) -> dict[str, Series]:
    """The series for charts, one value per interval between two samples. Only of the server with most samples."""
    own = max(servers.values(), key=len, default=())
    rows = []
    for span in pairwise(own):
        latency = _percentiles([span], "latency")
        p50, p99 = (latency.p50 * 1e3, latency.p99 * 1e3) if latency else (None, None)
        rows.append((span[1].time, p50, p99, _rate(span, "requests"), span[1].gauges.get("waiting")))
    return series_of(REQUEST_SERIES, rows)


Span = tuple[ServerSample, ServerSample]


def _span(samples: Sequence[ServerSample], since: float) -> Span | None:
    """The last sample before `since` (else the very first) and the newest; None where these are the same."""
    before = next((sample for sample in reversed(samples) if sample.time <= since), samples[0])
    return (before, samples[-1]) if samples[-1].time > before.time else None


def _rate(span: Span, name: str) -> float | None:
    """A counter's increase per second; None where one of the two samples lacks it, or where it decreased."""
    before, after = (sample.counters.get(name) for sample in span)
    seconds = span[1].time - span[0].time
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def _spent(span: Span, name: str) -> float | None:
    """The mean number of requests in a state, by Little's law: seconds that requests spent in it, per second."""
    before, after = (sample.histograms.get(name) for sample in span)
    seconds = span[1].time - span[0].time
    if before is None or after is None or after.sum < before.sum or after.count <= before.count or seconds <= 0:
        return None
    return (after.sum - before.sum) / seconds


def _are_brief(span: Span) -> bool:
    """Whether the requests that ended in the span lasted for a small part of it, in the mean."""
    before, after = (sample.histograms.get("latency") for sample in span)
    if before is None or after is None or after.count <= before.count:
        return False
    mean = (after.sum - before.sum) / (after.count - before.count)
    return mean <= BRIEF * (span[1].time - span[0].time)


def _percentiles(spans: Iterable[Span], name: str) -> Percentiles | None:
    """Percentiles of the values added to the histograms in these spans; None where a bucket is too wide for one.

    Servers may have different buckets: only up to a bound that all of them have can their values be added up.
    """
    added: dict[float, list[float]] = defaultdict(list)
    total, histograms = 0.0, 0
    for before, after in ((span[0].histograms.get(name), span[1].histograms.get(name)) for span in spans):
        if before is None or after is None or before.bounds != after.bounds or after.count < before.count:
            return None
        total += after.count - before.count
        histograms += 1
        for bound, earlier, count in zip(after.bounds, before.counts, after.counts, strict=False):
            added[bound].append(count - earlier)
    if total <= 0:
        return None
    buckets = [(bound, sum(counts)) for bound, counts in sorted(added.items()) if len(counts) == histograms]
    p50, p95, p99 = (_within(buckets, share * total) for share in (0.5, 0.95, 0.99))
    return None if p50 is None or p95 is None or p99 is None else Percentiles(p50=p50, p95=p95, p99=p99)


def _within(buckets: Sequence[tuple[float, float]], rank: float) -> float | None:
    """The value at this rank of the cumulative counts, spread evenly over its bucket; None if the bucket is wide."""
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if lower <= 0 or bound > COARSEST * lower or count <= below:
                return None
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return None


def _mean_gauge(samples: Sequence[ServerSample], servers: int, name: str) -> float | None:
    """The mean over the samples, times the number of servers: the sum of a gauge over all servers."""
    mean = mean_of([sample.gauges[name] for sample in samples if name in sample.gauges])
    return None if mean is None else mean * servers


def _each_engine(sample: ServerSample) -> float:
    """How many requests run in an engine, on average over those that have any."""
    return sample.gauges["running"] / (sample.engines or 1)


def _still(samples: Sequence[ServerSample]) -> float | None:
    """Seconds from the last progress to the newest sample; None where there is only one sample.

    From the arrival of the requests now under way, if they came after that progress.
    """
    if len(samples) < 2:
        return None
    backwards = list(pairwise(reversed(samples)))
    moved = next((later.time for later, earlier in backwards if _progress(later) != _progress(earlier)), 0.0)
    begun = next((later.time for later, earlier in backwards if _present(later) and not _present(earlier)), 0.0)
    return max(0.0, samples[-1].time - max(moved, begun if _present(samples[-1]) else 0.0, samples[0].time))


def _present(sample: ServerSample) -> bool:
    """Whether requests are under way."""
    return any(sample.gauges.get(name) for name in ("running", "waiting"))


def _progress(sample: ServerSample) -> list[float | None]:
    """Numbers that change while the server works."""
    counts = [histogram.count for _, histogram in sorted(sample.histograms.items())]
    return [*map(sample.counters.get, PROGRESS), *counts]


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None where one of the values is not measured, or there is none."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return sum(values) / len(values) if values else None
