"""Reads a server's own `/metrics` from its loopback port, every two seconds or more seldom."""

from __future__ import annotations

import time
from collections.abc import Callable

from aitop.model.event import Sample
from aitop.model.source import SourceName
from aitop.sources.servers.exposition import server_sample
from aitop.sources.servers.loopback import get
from aitop.sources.servers.ports import endpoints
from aitop.sources.servers.recognition import Server
from aitop.sources.source import Source, SourceError

# Seldom where the hook already measures the requests, but not so seldom that figures count as stale (after 10 s).
EVERY_SECONDS, SELDOM_SECONDS = 2.0, 8.0
# A server makes its figures in the thread that also answers requests. Where they take long, it is asked less often, so
# that they take no more of its time than this: more only if they take longer than 0.16 s, as the pause stays below 8 s.
MOST_OF_ITS_TIME = 0.02
PATH = "/metrics"


class ServerSource(Source):
    """The source. `server` gives what the watched tree was recognised as; `wait` waits for the first look at it.

    `measured` says whether its requests are measured in another way; `least` is the shortest interval, in seconds.
    """

    name: SourceName = "server"
    interval = EVERY_SECONDS
    patience = 10.0

    def __init__(
        self,
        server: Callable[[], Server | None],
        wait: Callable[[], None],
        measured: Callable[[], bool],
        least: float,
    ) -> None:
        self._server = server
        self._wait = wait
        self._measured = measured
        self._least = least

    def open(self) -> None:
        """Wait until the processes were looked at."""
        self._wait()

    def read(self) -> list[Sample]:
        """A sample for each port. Raises SourceError where no server is recognised, or none answers."""
        server = self._server()
        if server is None:
            raise SourceError("absent", "no serving software was recognised", transient=True)
        software, metrics = server.software, server.software.metrics
        if metrics is None:
            raise SourceError("absent", f"aitop knows no {PATH} of {software.name}", transient=True)
        samples: list[Sample] = []
        failure: SourceError | None = None
        longest = 0.0
        for endpoint in endpoints(server, metrics):
            before = time.monotonic()
            try:
                text = get(endpoint.address, endpoint.port, PATH)
            except SourceError as error:
                failure = error
                continue
            now = time.monotonic()
            longest = max(longest, now - before)
            sample = server_sample(text, metrics, time=now, pid=endpoint.pid)
            if sample is None:
                failure = SourceError("absent", f"{PATH} of port {endpoint.port} has no figures of {software.name}")
            else:
                samples.append(sample)
        if not samples and failure is not None:
            remedy = metrics.absent if failure.state == "absent" else None
            raise SourceError(failure.state, failure.reason, remedy, transient=failure.transient)
        usual = SELDOM_SECONDS if self._measured() else EVERY_SECONDS
        self.interval = max(self._least, min(SELDOM_SECONDS, max(usual, longest / MOST_OF_ITS_TIME)))
        return samples
