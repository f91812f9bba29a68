"""The limits of a control group, which bound the run, and aitop's own: its descriptors."""

from __future__ import annotations

import os
import resource
import threading

from aitop.commands.doctor.check import Check, fault, not_needed, works
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


FEWEST_DESCRIPTORS, MANY_DESCRIPTORS = 12, 64
LARGEST_WRITTEN = 16 << 20
THREADS = 12


def check_descriptors() -> Check:
    """How many files aitop may have open: it needs a few, and some more for each process of the job."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MANY_DESCRIPTORS:
        return works("descriptors", f"{'any number' if soft == resource.RLIM_INFINITY else soft} may be open")
    if soft >= FEWEST_DESCRIPTORS:
        return works("descriptors", f"only {soft} may be open: few for a job of many processes (see ulimit -n)")
    words = f"only {soft} may be open"
    if 0 <= hard < FEWEST_DESCRIPTORS:
        words += ", and the hard limit is as low"
        return fault("descriptors", words, "in a container: --ulimit nofile=1024; else see limits.conf")
    return fault("descriptors", words, f"ulimit -n {1024 if hard < 0 else min(hard, 1024)}")


def check_files() -> Check | None:
    """How large a file aitop may make, memory without a file included; None where that is large enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or soft >= LARGEST_WRITTEN:
        return None
    words = f"a file may not be larger than {size(soft)}, and what py-spy and the hook's way in need counts as one"
    higher = hard == resource.RLIM_INFINITY or hard >= LARGEST_WRITTEN
    return fault("file-size", words, "ulimit -S -f unlimited" if higher else "raise the hard limit (limits.conf)")


def check_threads() -> Check | None:
    """Whether aitop may start as many threads as it needs, tried out; None where it may."""
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(THREADS):
            thread = threading.Thread(target=over.wait, name="aitop-doctor", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        words = f"only {len(started)} threads may be started, and aitop needs up to {THREADS}"
        return fault("threads", words, "ulimit -u 4096, or a higher limit of processes for the container (pids)")
    finally:
        over.set()
        for thread in started:
            thread.join()
    return None
