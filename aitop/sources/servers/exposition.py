"""Reads the Prometheus text format into the figures of a ServerSample.

What a server sends is foreign: a line that cannot be read is left out, and nothing here raises or grows without bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from aitop.model.serving import Histogram, ServerSample
from aitop.sources.servers.engines import Metrics, Names

MOST_LINES, LONGEST_LINE = 100_000, 4096
MOST_BUCKETS = 256
SHARES = frozenset({"kv_used"})
# No server counts that far; float() reads larger numbers as well.
LARGEST = 1e15
_BOUND = re.compile(r'(?:^|[,{ ])le="(?P<bound>[^"\\]*)"')


class Values(NamedTuple):
    """Values of metrics by name: `plain` has one for each set of labels, `buckets` sums over these by upper bound."""

    plain: dict[str, list[float]]
    buckets: dict[str, dict[float, float]]


def parse(text: str, wanted: Collection[str]) -> Values:
    """The samples with these names; those whose names end in `_bucket` are summed by their bound."""
    values = Values({}, {})
    for line in text.split("\n", MOST_LINES)[:MOST_LINES]:
        if len(line) > LONGEST_LINE or line.startswith("#"):
            continue
        name, labels, rest = _divided(line)
        # A timestamp may follow the value.
        value = _number(rest[0]) if name in wanted and 1 <= len(rest) <= 2 else None
        if value is None or not 0 <= value <= LARGEST:
            continue
        if name.endswith("_bucket"):
            _add_bucket(values.buckets.setdefault(name, {}), labels, value)
        else:
            values.plain.setdefault(name, []).append(value)
    return values


def _divided(line: str) -> tuple[str, str, list[str]]:
    """Name, labels, and the words after them. A label's value may hold brackets, so the last one ends the labels."""
    opening, closing = line.find("{"), line.rfind("}")
    if 0 <= opening < closing:
        return line[:opening].strip(), line[opening + 1 : closing], line[closing + 1 :].split()
    words = line.split()
    return words[0] if words else "", "", words[1:]


def _add_bucket(buckets: dict[float, float], labels: str, value: float) -> None:
    match = _BOUND.search(labels)
    bound = _number(match["bound"]) if match else None
    if bound is not None and bound > 0 and (bound in buckets or len(buckets) < MOST_BUCKETS):
        buckets[bound] = buckets.get(bound, 0.0) + value


def _number(text: str) -> float | None:
    """A number of the format, `+Inf` among them; None for NaN and for what is no number."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value


def server_sample(text: str, metrics: Metrics, *, time: float, pid: int) -> ServerSample | None:
    """Make a sample of the text; None if it has none of the engine's metrics."""
    values = parse(text, wanted_names(metrics))
    histograms = {ours: _histogram(values, names) for ours, names in metrics.histograms.items()}
    histograms |= {ours: _from_sums(values, *pair) for ours, pair in metrics.sums.items()}
    sample = ServerSample(
        time=time,
        pid=pid,
        counters=_sums(values, metrics.counters),
        gauges=_sums(values, metrics.gauges),
        histograms={ours: histogram for ours, histogram in histograms.items() if histogram is not None},
        engines=_engines_at_work(values, metrics),
    )
    return sample if sample.counters or sample.gauges or sample.histograms else None


def _engines_at_work(values: Values, metrics: Metrics) -> int | None:
    """How many engines have running requests; None if the text does not say.

    An engine may report `running` several times, once for each priority, say; as each has one KV cache, the count is at
    most the number of caches.
    """
    running, caches = (_scaled(values, metrics.gauges.get(name, Names(()))) for name in ("running", "kv_used"))
    at_work = sum(number > 0 for number in running)
    return (min(at_work, len(caches)) if caches else at_work) if running else None


def wanted_names(metrics: Metrics) -> frozenset[str]:
    """Every metric name of the engine that one of our figures is made of."""
    single = [*metrics.counters.values(), *metrics.gauges.values()]
    single += [names for pair in metrics.sums.values() for names in pair]
    wanted = {name for names in single for name in names.names}
    for names in metrics.histograms.values():
        wanted.update(name + end for name in names.names for end in ("_bucket", "_sum", "_count"))
    return frozenset(wanted)


def _scaled(values: Values, names: Names) -> list[float]:
    """The values under the first of the names that is there, in our unit; empty where none is."""
    plain: list[float] = next((values.plain[name] for name in names.names if name in values.plain), [])
    return [names.scale * value for value in plain]


def _sums(values: Values, table: Mapping[str, Names]) -> dict[str, float]:
    """The sum of each figure over all labels; of shares, which do not add up, the mean."""
    scaled = {ours: _scaled(values, names) for ours, names in table.items()}
    return {ours: sum(numbers) / (len(numbers) if ours in SHARES else 1) for ours, numbers in scaled.items() if numbers}


def _from_sums(values: Values, total: Names, number: Names) -> Histogram | None:
    totals, numbers = _scaled(values, total), _scaled(values, number)
    if not totals or not numbers:
        return None
    return Histogram(bounds=(), counts=(), sum=sum(totals), count=sum(numbers))


def _histogram(values: Values, names: Names) -> Histogram | None:
    for name in names.names:
        total, number = values.plain.get(f"{name}_sum"), values.plain.get(f"{name}_count")
        if total is None or number is None:
            continue
        buckets = values.buckets.get(f"{name}_bucket", {})
        bounds = sorted(bound for bound in buckets if bound < math.inf)
        return Histogram(
            bounds=tuple(names.scale * bound for bound in bounds),
            counts=tuple(buckets[bound] for bound in bounds),
            sum=names.scale * sum(total),
            count=sum(number),
        )
    return None
