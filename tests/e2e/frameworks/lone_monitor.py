"""A monitor with a short lease: `lone_monitor.py PID LEASE`. It lets the hook in and reads until it is killed."""

from __future__ import annotations

import sys
import time

from aitop.attach.entrance import install
from aitop.sources.ring import reader
from aitop.sources.ring.reader import HookRing
from aitop.sources.source import SourceError


def hooked(pid: int) -> HookRing:
    """The ring of the hook, which may leave just when it is found to be there: then it is put in again."""
    while True:
        install(pid, timeout=20.0)
        try:
            return HookRing(pid)
        except SourceError:
            continue


if __name__ == "__main__":
    pid, lease = int(sys.argv[1]), float(sys.argv[2])
    reader.LEASE_SECONDS = lease
    ring = hooked(pid)
    while True:
        ring.renew()
        print(len(ring.read(time.monotonic()).steps), flush=True)
        time.sleep(lease / 10)
