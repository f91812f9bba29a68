"""A monitor with a short lease: `lone_monitor.py PID LEASE`. It lets the hook in and reads until it is killed."""

from __future__ import annotations

import sys
import time

from aitop.attach.entrance import install
from aitop.sources.ring.reader import HookRing

if __name__ == "__main__":
    pid, lease = int(sys.argv[1]), float(sys.argv[2])
    install(pid, timeout=20.0)
    ring = HookRing(pid)
    while True:
        ring.renew(lease)
        print(len(ring.read(time.monotonic()).steps), flush=True)
        time.sleep(lease / 10)
