"""Measures calls into `torch.distributed`, and reads the figures that DistributedDataParallel logs of itself.

The methods of process groups are wrapped, not the functions of torch.distributed that call them: the program may have
imported those by name, and torch.compile examines them. The waits inside DistributedDataParallel's backward cannot be
seen from here; its own figures contain them.
"""

from __future__ import annotations

import _thread
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...protocol.events import COLLECTIVE, NOT_MEASURED
from ..compiler import keep_from_compiling
from ..errors import raise_if_of_program
from ..journal import started_elsewhere
from ..patches import Patches
from . import Measure
from .callsites import Sites

if TYPE_CHECKING:
    from ..session import Session

# Methods of a process group, and the name of the function of torch.distributed that calls each.
NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_single",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
}
WAIT = "wait"
# The size that is noted for a wait, which does not count as a call.
NO_CALL = -1
MOST_TENSORS = 64
MOST_MODULES = 64
SAMPLES = 16
NS = 1e-9
# Facts go to the ring once a second.
DDP_EVERY_NS = 1_000_000_000
# Fields of `DdpInfo`, and what DistributedDataParallel calls these times in its log (nanoseconds).
DDP_TIMES = {
    "backward": "backward_compute_time",
    "communication": "backward_comm_time",
    "overlap": "backward_compute_comm_overlap_time",
}

_now = time.monotonic_ns
_ident = _thread.get_ident


def _nobody() -> None:
    """Stands in for `Watch.world` while there is no group of all ranks."""


class Collectives(Measure):
    """Measures collectives. It patches nothing before the program has joined a process group."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._patches = patches
        self._sites = Sites("collective", torch)
        self._facts = session.facts
        self._ddp, self._ddp_due = DdpLog(self._facts), 0
        self._watch = Watch(session, self._sites)
        self.look(0)

    def look(self, now: int) -> None:
        if self.watches:
            self._sites.tick()
            if now > self._ddp_due:
                self._ddp_due = now + DDP_EVERY_NS
                self._ddp.look()
            self._watch.follow(sys.modules.get("torch.distributed"))
            return
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        own = sys.modules["torch._C._distributed_c10d"]
        watch = self._watch
        watch.follow(distributed)
        for method, name in NAMES.items():
            if method in vars(own.ProcessGroup):
                self._patches.put(own.ProcessGroup, method, partial(wrap_call, method=method, name=name, watch=watch))
        self._patches.put(own.Work, "wait", partial(wrap_wait, watch=watch))
        self.watches = ("collective",)
        self._facts.changed = True

    def facts(self) -> dict[str, Any]:
        return {"calls": self._sites.facts(), "ddp": self._ddp.facts()}


class Watch:
    """State of the wrappers.

    `dispatched` is the id of the `Work` that the newest call returned, `name` is that call's name. `world` returns the
    process group of all ranks, or None: it is a weak reference. That group numbers its collectives itself.
    """

    def __init__(self, session: Session, sites: Sites) -> None:
        self.session = session
        self.journal = session.journal
        self.sites = sites
        self.dispatched = 0
        self.name = ""
        self.world: Callable[[], Any] = _nobody
        self._numbered = True

    def follow(self, distributed: Any) -> None:
        """Find out which group has all ranks. A program may destroy it and join another one."""
        world = getattr(getattr(distributed, "group", None), "WORLD", None)
        if world is not self.world():
            self.world = _nobody if world is None else weakref.ref(world)
            self._numbered = True

    def begins(self, group: Any) -> None:
        """Write the sequence number of a collective to the ring before it starts, because it may never end."""
        try:
            ring = self.session.ring
            if ring is not None and self._numbered and group is self.world():
                ring.write_sequence(group._get_sequence_number_for_group() + 1)
        except Exception:
            raise_if_of_program()
            self._numbered = False  # this kind of group has no sequence numbers

    def counts(self) -> bool:
        """Return whether a call in this thread belongs to the steps.

        That is so in the owner, and while it is busy in threads of autograd's engine.
        """
        ident, journal = _ident(), self.journal
        return ident == journal.owner or (journal.busy != 0 and started_elsewhere(ident))

    def called(self, name: str, start: int, work: Any, args: tuple[Any, ...]) -> None:
        """Note a call of a collective that returns now. The collective itself may still be running."""
        try:
            end = _now()
            size = max((size_of(value) for value in args[:2]), default=0)
            self.dispatched, self.name = id(work), name
            self.journal.note(COLLECTIVE, start, end, size)
            if self.sites.wants_next():
                self.sites.add(name, end - start, size)
        except Exception:
            self.session.failed()

    def waited(self, start: int, work: Any) -> None:
        """Note a wait that ends now. If it is for the newest call, its time is added to the line of that call."""
        try:
            end = _now()
            own = id(work) == self.dispatched
            self.dispatched = 0
            self.journal.note(COLLECTIVE, start, end, NO_CALL)
            if self.sites.wants_next():
                self.sites.add(self.name if own else WAIT, end - start, counted=not own)
        except Exception:
            self.session.failed()


keep_from_compiling(Watch.counts.__code__)
keep_from_compiling(Watch.begins.__code__, Watch.called.__code__, Watch.waited.__code__, inner=True)


def wrap_call(original: Callable[..., Any], method: str, name: str, watch: Watch) -> Callable[..., Any]:
    """Wrap a method of a process group; `name` is the call that people know."""
    compiling, counts = watch.session.compiling, watch.counts

    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or not counts():
            return original(self, *args, **kwargs)
        watch.begins(self)
        start = _now()
        work = original(self, *args, **kwargs)
        watch.called(name, start, work, args)
        return work

    # pybind11 calls the method of a subclass in Python anew, without end, unless the calling code has its name.
    collective.__code__ = collective.__code__.replace(co_name=method)
    return collective


def wrap_wait(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """Wrap `Work.wait`."""
    compiling, counts = watch.session.compiling, watch.counts

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or not counts():
            return original(self, *args, **kwargs)
        start = _now()
        done = original(self, *args, **kwargs)
        watch.waited(start, self)
        return done

    return wait


def size_of(value: Any) -> int:
    """Return the bytes of a tensor, or of the tensors in (nested) lists, up to `MOST_TENSORS` items each; else 0."""
    if isinstance(value, (list, tuple)):
        return sum(size_of(item) for item in value[:MOST_TENSORS])
    numel = getattr(value, "numel", None)
    return numel() * value.element_size() if numel is not None else 0


class DdpLog:
    """Reads the figures that DistributedDataParallel logs of itself.

    DistributedDataParallel times its first ten iterations, and after that one in a hundred.
    """

    def __init__(self, facts: Any) -> None:
        self._facts = facts
        self._iteration = -1
        self._settings: dict[str, Any] = {}
        self._samples: deque[tuple[int, ...]] = deque(maxlen=SAMPLES)
        # The only sample is the first look's. It may be of the first iterations, so it goes when a newer one comes.
        self._first_only = False

    def look(self) -> None:
        """Read the times of the newest iteration that DistributedDataParallel has timed since the last look."""
        logger = getattr(self._module(), "logger", None)
        if logger is None:
            return
        data = logger._get_ddp_logging_data()
        numbers, texts = data.ints_map, data.strs_map
        if numbers.get("iteration", -1) == self._iteration:
            return
        self._iteration = numbers.get("iteration", -1)
        self._settings = {
            "backend": texts.get("backend_name"),
            "bucket_cap_mb": numbers["bucket_cap_bytes"] / 2**20 if numbers.get("bucket_cap_bytes", -1) > 0 else None,
            "gradient_bytes": numbers.get("total_parameter_size_bytes"),
        }
        times = tuple(numbers.get(name, NOT_MEASURED) for name in DDP_TIMES.values())
        if numbers.get("backward_compute_time", 0) > 0 and NOT_MEASURED not in times:
            if self._first_only:
                self._samples.clear()
            self._first_only = not self._samples and not self._first_only
            self._samples.append(times)

    def facts(self) -> dict[str, Any] | None:
        """Return settings and mean times (seconds) by the fields of `DdpInfo`; None without DistributedDataParallel."""
        if not self._settings:
            return None
        if not self._samples:
            return self._settings
        means = [sum(values) * NS / len(self._samples) for values in zip(*self._samples, strict=True)]
        return self._settings | dict(zip(DDP_TIMES, means, strict=True))

    def _module(self) -> Any:
        """Return the DistributedDataParallel in the root module, None if there is none."""
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        root = self._facts.root_module
        module = root() if root is not None else None
        if parallel is None or module is None:
            return None
        for number, inner in enumerate(module.modules()):
            if number >= MOST_MODULES:
                break
            if isinstance(inner, parallel.DistributedDataParallel):
                return inner
        return None
