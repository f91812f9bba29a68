"""Estimates when a request arrived: the kernel knows, but only in ticks, which are too coarse for one request.

Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import math
import struct
import time
from typing import Any

# getsockopt(TCP_INFO), and offsets in the kernel's tcp_info of how long ago data was last sent and received (ms).
IPPROTO_TCP, TCP_INFO, SENT_AT, CAME_AT = 6, 11, 44, 52
_AGO = struct.Struct("=I")
MILLISECOND = 1_000_000
LONGEST_WAIT_NS = 600 * 10**9
# The kernel counts these times in ticks. This clock advances at each tick.
CLOCK_MONOTONIC_COARSE = 6

# An event loop that takes a request up within this time after a handler has run did not wait for it.
AT_ONCE_NS = 500_000
# Cutting an exponential distribution off beyond this many means does not change its mean.
MOST_CUT = 50.0
# Length, in requests, of the moving averages of how long requests wait.
LEARNT_FROM = 128

coarse_ns = time.clock_gettime_ns


class Ticks:
    """Tells how long ago the kernel's last tick was, from its coarse clock, which changes at each tick.

    That clock may be `behind` the ticks by some nanoseconds. The offset is learnt from the fact that the last tick is
    at most one tick (`length`, ns) ago.
    """

    def __init__(self) -> None:
        self.length = int(time.clock_getres(CLOCK_MONOTONIC_COARSE) * 1e9)
        self.behind = 0

    def since(self, now: int) -> int:
        """Return the nanoseconds since the last tick."""
        shown = now - coarse_ns(CLOCK_MONOTONIC_COARSE)
        self.behind = min(shown, max(self.behind, shown - self.length))
        return shown - self.behind


class Loop:
    """Estimates when the requests arrived that this process's event loop takes up.

    While a handler runs, the loop reads no socket. So a request that it takes up right afterwards arrived after the
    loop last took one up, and after the previous answer on the same connection. The kernel knows the arrival within
    that interval only in ticks, 4 ms on most machines. That is too coarse for one request but right on average, so the
    averages give the share of its interval for which a request usually waits.

    Times are CLOCK_MONOTONIC nanoseconds.

    took        when the loop took up the last request
    since       `took` when the last handler ran: what the loop takes up after that handler arrived later
    ran         when a handler last gave an answer
    answers     the same by connection (file descriptor)
    at_once     the loop took up a request right after a handler had run
    waited      running sum, over about LEARNT_FROM requests, of their waits by the kernel's ticks
    held        the same of the intervals in which they could have arrived
    """

    def __init__(self, tick_ns: int) -> None:
        self.tick_ns = tick_ns
        self.took = self.since = self.ran = 0
        self.answers: dict[int, int] = {}
        self.at_once = False
        self.waited = self.held = 0.0

    def answered(self, now: int, connection: int) -> None:
        """Note that a handler has given its answer."""
        self.ran = now
        if connection >= 0:
            self.answers[connection] = now

    def arrival(self, now: int, ticks_ns: int, phase: int, connection: int = -1) -> int:
        """Return when the request arrived that is taken up at `now`.

        The kernel has counted `ticks_ns` of whole ticks since the arrival, the last of them `phase` nanoseconds ago.
        """
        if self.ran >= self.took:
            # A handler ran since the last request was taken up. Else both were there when the loop looked.
            self.since, self.at_once = self.took, now - self.ran < AT_ONCE_NS
        self.took = now
        held = now - max(self.since, self.answers.get(connection, 0))
        if not self.at_once or not self.since or ticks_ns > held + self.tick_ns:
            # A single tick may have happened right after the arrival, so it does not prove a wait.
            return now - ticks_ns if ticks_ns > self.tick_ns else now
        self.waited += ticks_ns - self.waited / LEARNT_FROM
        self.held += held - self.held / LEARNT_FROM
        usual = held * self.waited / self.held
        # It arrived within one tick length before the first of the counted ticks.
        least = phase + ticks_ns - self.tick_ns if ticks_ns else 0
        return now - int(min(max(usual, least), phase + ticks_ns, held))


class Threads:
    """Estimates when the requests arrived that threads take up (a thread for each connection, or a pool).

    The kernel counts in ticks how long a request has waited in its socket. The mean of many such counts is the usual
    wait. Within the tick of its arrival, a request's wait is taken to be exponentially distributed with that mean. Of
    waits that last more than a tick, each is a case of its own, such as a pause of the whole process. It tells nothing
    of the usual wait, and the request may have come at any moment of its tick.
    """

    def __init__(self, tick_ns: int) -> None:
        self.tick_ns = tick_ns
        self.mean = 0.0

    def arrival(self, now: int, ticks_ns: int, phase: int) -> int:
        """Return when the request arrived that is taken up at `now`. See `Loop.arrival`."""
        least = phase + ticks_ns - self.tick_ns if ticks_ns else 0
        if ticks_ns > self.tick_ns:
            return now - least - self.tick_ns // 2
        self.mean += (ticks_ns - self.mean) / LEARNT_FROM
        return now - int(least + _usual_within(phase + ticks_ns - least, self.mean))


def _usual_within(width: int, mean: float) -> float:
    """Return the mean of an exponential distribution with this `mean`, truncated at `width`."""
    if mean <= 0.0 or width <= 0:
        return 0.0
    cut = width / mean
    return mean - width / math.expm1(cut) if cut < MOST_CUT else mean


def ticks_since(socket: Any, at: int = CAME_AT) -> int:
    """Return how long ago data last arrived (or another time, at offset `at` in tcp_info), in nanoseconds.

    The kernel counts it in whole ticks. 0 if it does not say.
    """
    try:
        (ago,) = _AGO.unpack_from(socket.getsockopt(IPPROTO_TCP, TCP_INFO, 104), at)
    except (AttributeError, OSError, TypeError, struct.error):
        # Not TCP, or no socket that can be asked.
        return 0
    waited: int = ago * MILLISECOND
    return waited if waited < LONGEST_WAIT_NS else 0
