"""Numbers as people read them: short, fixed width, None as a dash."""

from __future__ import annotations

from datetime import datetime

NOT_SUPPORTED = "–"
NOT_YET = "…"

_PREFIXES = ("", "K", "M", "G", "T", "P")


def size(count: float | None) -> str:
    """Bytes in powers of 1024, three digits at most: 812 B, 4.1 GB, 39 GB."""
    return _scaled(count, 1024.0, "B")


def rate(per_second: float | None) -> str:
    """Bytes per second: 12 MB/s."""
    return _scaled(per_second, 1024.0, "B/s")


def operations(per_second: float | None) -> str:
    """Floating-point operations per second: 41 GFLOP/s."""
    return _scaled(per_second, 1000.0, "FLOP/s")


def count(number: float | None) -> str:
    """A plain quantity with thousands separators up to a million, then 1.2 M."""
    if number is None:
        return NOT_SUPPORTED
    if abs(number) < 1e6:
        return f"{number:,.0f}"
    return _scaled(number, 1000.0, "")


def plural(number: int, word: str, several: str | None = None) -> str:
    """1 rank, 2 ranks; `several` is the plural where an s does not make it."""
    return f"{number} {word}" if number == 1 else f"{number} {several or word + 's'}"


def pace(number: float) -> str:
    """How many in a second, three digits or all whole ones: 0.42, 4.2, 31, 32,700."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share (0..1) as a percentage: 64 %."""
    return NOT_SUPPORTED if share is None else f"{share * 100:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """A duration with the unit that fits: 850 µs, 21 ms, 1.25 s, 4 m 10 s, 3 h 12 m."""
    if seconds is None:
        return NOT_SUPPORTED
    # Each limit is where rounding reaches the next unit, or makes another digit.
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        milliseconds = seconds * 1e3
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"
    whole = round(seconds)
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} m {whole % 60:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def period(seconds: float) -> str:
    """A round time as it was asked for: 1 h, 90 m, 30 s."""
    for unit, name in ((3600.0, "h"), (60.0, "m")):
        if seconds % unit == 0:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:g} s"


def factor(speedup: float | None) -> str:
    """A predicted factor: 2.8×, or 1.04× where a tenth would hide it."""
    if speedup is None:
        return NOT_SUPPORTED
    return f"{speedup:.2f}×" if speedup < 1.2 else f"{speedup:.1f}×"


def factor_range(low: float, high: float) -> str:
    """The interval of a predicted factor: 1.9–2.4×; a single factor where both ends read the same."""
    first, last = factor(low), factor(high)
    return last if first == last else f"{first.removesuffix('×')}–{last}"


def _scaled(number: float | None, base: float, unit: str) -> str:
    if number is None:
        return NOT_SUPPORTED
    value, prefix = float(number), 0
    while abs(value) >= 999.5 and prefix < len(_PREFIXES) - 1:
        value, prefix = value / base, prefix + 1
    digits = 1 if prefix and abs(value) < 9.95 else 0
    return f"{value:.{digits}f} {_PREFIXES[prefix]}{unit}".rstrip()


def moment(then: float, now: float) -> str:
    """A time of the last days as people say it: 18:02, yesterday 18:02, Mon 18:02, 3 Nov 18:02."""
    day, today = datetime.fromtimestamp(then), datetime.fromtimestamp(now)
    days = (today.date() - day.date()).days
    if days == 0:
        return f"{day:%H:%M}"
    named = "yesterday" if days == 1 else f"{day:%a}" if 1 < days < 7 else f"{day.day} {day:%b}"
    return f"{named} {day:%H:%M}"
