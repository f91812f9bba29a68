"""The limits of a control group: they bound the run, and what aitop calls full."""

from __future__ import annotations

import os

from aitop.commands.doctor.check import Check, not_needed, works
from aitop.model.host import CgroupSample
from aitop.model.units import size
from aitop.sources.host.cgroup import Cgroup


def check(pid: int) -> Check:
    """The tightest limits that hold for process `pid`."""
    return judge(Cgroup(pid).read())


def check_own() -> Check:
    """The limits that hold for aitop itself."""
    return check(os.getpid())


def judge(sample: CgroupSample | None) -> Check:
    """In words; `sample` None where no control group can be read."""
    if sample is None:
        return not_needed("cgroup", "no control group can be read; the machine's own limits count")
    found = []
    if sample.cpu_quota is not None:
        found.append(f"{sample.cpu_quota:.3g} cores")
    if sample.memory_limit is not None:
        used = "" if sample.memory_used is None else f", {size(sample.memory_used)} of it used"
        found.append(f"{size(sample.memory_limit)} of memory{used}")
    return works("cgroup", f"v{sample.version}; limits: {'; '.join(found) if found else 'none'}")
