"""One look at the processes of a job."""

from __future__ import annotations

import os

from aitop.sources.host import source
from aitop.sources.host.roles import Place


def test_a_launcher_is_told_from_a_rank(monkeypatch):
    own = os.getpid()
    monkeypatch.setattr(
        source, "places_of", lambda members, _: {member.stat.pid: Place("launcher") for member in members}
    )
    host = source.HostSource([own])
    assert host.seen.launchers == frozenset() and not host._looked.is_set()
    host.open()
    host.wait_for_look(0.0)
    assert own in host.seen.launchers and host.seen.ranks == () and host._looked.is_set()
