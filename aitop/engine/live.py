"""The feed of a live run: starts the sources, ticks at each interval, records events, and cleans up at the end."""

from __future__ import annotations

import contextlib
import functools
import queue
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from aitop.engine.core import Engine
from aitop.engine.feed import EventSink, Publish, own_failure
from aitop.engine.growth import GrowthFinder
from aitop.engine.history import KEEP_SECONDS, History, Reach
from aitop.engine.hook_requests import HookRequests, SteppingProcesses, may_step, processes_to_hook, take_out
from aitop.engine.run_history import RunHistory
from aitop.engine.runner import SourceRunner
from aitop.errors import AitopError
from aitop.model.event import Event
from aitop.model.host import HostSample
from aitop.model.ranks import ExchangeNotes
from aitop.model.run import Run
from aitop.model.settings import Options
from aitop.model.snapshot import Snapshot, Target, Tick
from aitop.model.source import SourceName, SourceStatus
from aitop.model.stacks import StackDump, StackWindow
from aitop.model.units import percent
from aitop.sources.devices import SharedDevices, device_source
from aitop.sources.host.job import may_still_run, start_ticks, whole_jobs
from aitop.sources.host.source import HostSource
from aitop.sources.host.target import still_there
from aitop.sources.host.tree import Member
from aitop.sources.ring.source import HookSource
from aitop.sources.servers.recognition import Recogniser, Server
from aitop.sources.servers.source import ServerSource
from aitop.sources.source import Source, SourceError
from aitop.sources.stacks.dump import native_frames, take_dump
from aitop.sources.stacks.pace import SELDOM, IdleCores, PartOfBudget, SharedBudget
from aitop.sources.stacks.source import StackSource
from aitop.stacks.work import step_levels

if TYPE_CHECKING:
    from aitop.engine.torch_profile import TakenProfile

# How long `stop` waits for all sources together.
STOP_SECONDS = 3.0
# How long `conclude` waits for the last stack window, and then for the last Snapshot. Either may take seconds where
# other programs keep all cores busy.
STACKS_SECONDS, CONCLUDE_SECONDS = 2.0, 10.0
# How long putting the hook in may wait for the first look at the process tree, and then for stacks to show which
# processes make steps.
FIRST_LOOK_SECONDS = 2.0
# The judge shows a verdict only after two ticks in a row. So two ticks are made at once for the last Snapshot and, with
# many jobs, after a look at a standstill.
ENOUGH_TICKS = 2
# Seconds after the start; the first ticks come early, so that the screen is not empty for a whole interval.
FIRST_TICKS = (0.1, 0.4, 0.8)
# With many jobs nobody waits for a first frame, so there are no early ticks. Instead a tick follows each of the first
# stack windows, until this many of them came while a process was at work (not only importing). Two ticks make a
# verdict; there are more because windows may come late on a busy machine.
TICKS_AT_WINDOWS = 5
# Where no core is idle, ticks are spaced so that they take at most this part of a core, but at most LATEST_TICK seconds
# apart. At hundreds of requests a second one tick takes some 30 ms of CPU, in the first seconds less than 10.
CORES_OF_TICKS, LATEST_TICK = 0.01, 8.0
# The hook is taken out if it slows the run by more than MOST_SLOWDOWN in this many ticks in a row. The slowdown is the
# hook's own estimate, which assumes cold caches and so is high: 30 % for a run of nothing but forward passes of 16 µs,
# where 11 % were measured, and 1.5 % for passes of 1 ms.
MOST_SLOWDOWN, SLOW_TICKS = 0.15, 3
# How soon an idle feed notices that it is to end.
NOTICE_SECONDS, NOTICE_SECONDS_OF_MANY = 0.25, 1.0
# For one of many jobs. 10 s of stack windows hold some 200 samples of the lead thread, as many as a screen gets in half
# a minute. A standstill is known for KEEP_SECONDS at most, and stacks that are older do not explain it.
REACH_OF_MANY = Reach(sampled=10.0, stale=600.0, again=0.8 * KEEP_SECONDS)


class Shared(NamedTuple):
    """Shared by the feeds of several jobs, so that they take turns at sampling stacks and read each device once."""

    budget: SharedBudget
    devices: SharedDevices


class LiveFeed:
    """Watches one or more live processes and their trees. With `shared` it is one of many feeds and uses less CPU."""

    def __init__(
        self,
        targets: Sequence[Target],
        options: Options,
        sink: EventSink | None = None,
        shared: Shared | None = None,
    ) -> None:
        self.target = targets[0]
        self._shared = shared
        self._pids = whole_jobs([target.pid for target in targets])
        self._tops = {pid: start_ticks(pid) for pid in self._pids}
        self._options = options
        self._sink = sink
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._concluding = threading.Event()
        self._stop_once = threading.Lock()
        self._engine = Engine(self.target, History(self.target, REACH_OF_MANY) if shared else None)
        self._history = RunHistory(self.target) if options.history else None
        self._before: Run | None = None
        self._mark: Snapshot | None = None
        self._growth = GrowthFinder(self.target.pid, self._events.put)
        self._hook_requests = HookRequests(lambda: self._host.seen.fronts)
        self._slow_ticks = 0
        self._stepping_processes = SteppingProcesses()
        self._recogniser = Recogniser()
        self._host = HostSource(
            self._pids,
            interval=options.interval,
            stepping=self._stepping_processes.pids,
            recognise=self._recognised,
        )
        self._runners: dict[SourceName, SourceRunner] = {}
        self._thread: threading.Thread | None = None
        self._snapshot: Snapshot | None = None
        self._looked = self._began = 0.0
        self._look: threading.Thread | None = None

    @property
    def pids(self) -> frozenset[int]:
        """The processes of the job: those at its top, and all that were alive at the last look."""
        return self._host.seen.pids.union(self._pids)

    def start(self, publish: Publish) -> None:
        self._began = time.monotonic()
        for source in self._sources():
            self._runners[source.name] = SourceRunner(source, self._events.put)
        for name, reason in self._switched_off():
            self._events.put(SourceStatus(time=time.monotonic(), source=name, state="absent", reason=reason))
        for runner in list(self._runners.values()):
            runner.start()
        self._thread = threading.Thread(target=self._run, args=(publish,), name="aitop-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if not self._stop_once.acquire(blocking=False):
            return
        self._stopping.set()
        # A request left queued in the target would put the hook in after aitop has ended.
        self._hook_requests.give_up()
        for runner in list(self._runners.values()):
            runner.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for runner in list(self._runners.values()):
            runner.join(max(0.1, deadline - time.monotonic()))
        if "hook" in self._runners:
            self._take_out()
        thread = self._thread
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join(2.0)
        if self._sink is not None:
            self._sink.close()
        if self._history is not None and self._snapshot is not None:
            self._history.keep(self._snapshot, self._mark)

    def conclude(self) -> None:
        """Publish the last Snapshot, with the stacks that are being sampled now in it; `stop` is still to be called."""
        runner, thread = self._runners.get("stacks"), self._thread
        if runner is not None:
            runner.finish()
            runner.join(STACKS_SECONDS)
        self._concluding.set()
        if thread is not None:
            thread.join(CONCLUDE_SECONDS)

    # What a screen may ask for.

    def marked(self) -> Snapshot | None:
        """The Snapshot that the user marked in this session, else the mark that the script's last session left."""
        return self._mark

    def mark(self, snapshot: Snapshot | None) -> None:
        """Set the mark that is kept with the run; None removes it."""
        self._mark = snapshot

    def detach(self) -> bool:
        """Take the hook out and go on without it. Raises AitopError where there is none.

        Returns False where a hook stays that came with the program or that another monitor uses.
        """
        if "hook" not in self._runners:
            raise AitopError("there is no hook to take out")
        return self._detach("detached on request")

    def _detach(self, reason: str) -> bool:
        runner = self._runners.pop("hook", None)
        if runner is None:
            return True
        self._hook_requests.give_up()
        runner.ask_to_stop()
        runner.join(STOP_SECONDS)
        is_out = self._take_out()
        self._events.put(SourceStatus(time=time.monotonic(), source="hook", state="absent", reason=reason))
        return is_out

    def _take_out(self) -> bool:
        """Take the hook out of all processes that have it in from us; see `take_out`."""
        return take_out({*self._hook_requests.hooked, *self._hook_pids()})

    def profile(self, steps: int, progress: Callable[[str], None]) -> TakenProfile:
        """Run torch.profiler for `steps` steps in the process whose steps are shown. Raises AitopError."""
        from aitop.engine.torch_profile import take_profile  # noqa: PLC0415 - few ask for a profile

        shown = self._snapshot.steps if self._snapshot else None
        pid = (shown.pid if shown else None) or self.target.pid
        return take_profile(pid, steps, wanted=lambda: not self._stopping.is_set(), progress=progress)

    def dump(self) -> StackDump:
        """Read all stacks of all processes now. May take seconds; raises AitopError."""
        with self._stacks_wanted():
            pids = [pid for pid, start in self._tops.items() if may_still_run(pid, start)]
            if not pids:
                raise SourceError("absent", f"process {self.target.pid} has ended")
            dump = take_dump(pids, script=self.target.script, wanted=lambda: not self._stopping.is_set())
        self._events.put(dump)
        return dump

    def native(self, pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Read the native frames of main threads, by pid. Stops each for tenths of a second; raises AitopError."""
        with self._stacks_wanted():
            return native_frames(pids)

    @contextlib.contextmanager
    def _stacks_wanted(self) -> Iterator[None]:
        """Raise an AitopError if stacks are switched off, and turn a SourceError of the block into an AitopError."""
        off = next((reason for name, reason in self._switched_off() if name == "stacks"), None)
        if off is not None:
            raise AitopError(f"stacks are {off}: they are not looked at")
        try:
            yield
        except SourceError as error:
            raise AitopError(error.reason, error.remedy) from error

    # The sources.

    def _sources(self) -> list[Source]:
        off = {name for name, _ in self._switched_off()}
        sources: list[Source] = [self._host]
        shared = self._shared
        if "gpu" not in off:
            devices = shared.devices.of if shared else device_source
            sources.append(devices(lambda: self._host.seen.pids))
        if "stacks" not in off:
            working, stepping = self._stepping_processes.working, self._stepping_processes.pids
            budget = PartOfBudget(shared.budget) if shared else None
            sources.append(
                StackSource(
                    self._pids,
                    script=self.target.script,
                    working=working,
                    stepping=stepping,
                    measured=self._hook_measures,
                    budget=budget,
                )
            )
        if "hook" not in off:
            sources.append(
                HookSource(
                    self._hook_pids,
                    self._hook_requests.bring_in,
                    self._hook_requests.withdraw,
                    seldom=shared is not None,
                )
            )
        if "server" not in off:
            wait = functools.partial(self._host.wait_for_look, FIRST_LOOK_SECONDS)
            least = self._options.interval if shared else 0.0
            sources.append(ServerSource(lambda: self._host.seen.server, wait, self._hook_measures_requests, least))
        return sources

    def _recognised(self, processes: Sequence[Member]) -> Server | None:
        """The server that these processes form; None if they form none.

        A plain web server beside a training run does not count: it only shows how the run goes.
        """
        server = self._recogniser.look(processes)
        trains = self._snapshot is not None and self._snapshot.kind == "training"
        return None if server is not None and server.software.web and trains else server

    def _hook_measures(self) -> bool:
        """Whether the last Snapshot has steps or requests that the hook measured."""
        steps = self._snapshot.steps if self._snapshot else None
        return (steps is not None and steps.basis == "hook") or self._hook_measures_requests()

    def _hook_measures_requests(self) -> bool:
        """Whether the last Snapshot has requests of a server that the hook measured."""
        serving = self._snapshot.serving if self._snapshot else None
        return serving is not None and bool(serving.requests)

    def _switched_off(self) -> list[tuple[SourceName, str]]:
        """The sources that the user switched off, each with the reason in words."""
        options = self._options
        off: list[tuple[SourceName, str]] = [] if options.gpu else [("gpu", "switched off by --no-gpu")]
        touching: list[tuple[SourceName, bool, str]] = [
            ("stacks", options.stacks, "--no-stacks"),
            ("hook", options.hook, "--no-hook"),
            ("server", options.metrics, "--no-metrics"),
        ]
        for name, wanted, switch in touching:
            if options.passive or not wanted:
                off.append((name, f"switched off by {'--passive' if options.passive else switch}"))
        return off

    # Which processes get the hook.

    def _hook_pids(self) -> tuple[int, ...]:
        if not self._host.seen.ranks:
            self._host.wait_for_look(FIRST_LOOK_SECONDS)
        known = self._known_to_step()
        # A server may have been recognised meanwhile.
        return processes_to_hook(self._host.seen, self._pids, known)

    def _known_to_step(self) -> frozenset[int] | None:
        """The processes that have shown that they make steps; None where stacks, which would show it, are not sampled.

        Where every process that may step has children, and none has the hook yet, it is waited for.
        """
        pids = may_step(self._host.seen, self._pids)
        if not pids or not self._stacks_tell() or self._stopping.is_set():
            return None
        hooked = self._hook_requests.hooked
        if not hooked and self._host.seen.parents.issuperset(pids):
            self._stepping_processes.wait_until_known(FIRST_LOOK_SECONDS)
        return self._stepping_processes.pids() | hooked

    def _stacks_tell(self) -> bool:
        """Whether stacks are sampled here, or will soon be."""
        status = self._snapshot.sources.get("stacks") if self._snapshot else None
        return "stacks" in self._runners and (status is None or status.state == "ok")

    # The engine's thread.

    def _run(self, publish: Publish) -> None:
        try:
            self._tick_until_stopped(publish)
        except Exception as error:
            publish(own_failure(self.target, error, time=time.monotonic(), wall=time.time()))
        finally:
            # Nothing empties the queue any more, so the sources must stop filling it.
            for runner in list(self._runners.values()):
                runner.ask_to_stop()

    def _tick_until_stopped(self, publish: Publish) -> None:
        started = time.monotonic()
        early: tuple[float, ...] = () if self._shared else FIRST_TICKS
        at_windows = TICKS_AT_WINDOWS if self._shared else 0
        notice = NOTICE_SECONDS_OF_MANY if self._shared else NOTICE_SECONDS
        due = [started + seconds for seconds in early if seconds < self._options.interval]
        next_tick = due.pop(0) if due else started + self._options.interval
        cpu, idle = CpuMeter(), IdleCores()
        if self._history is not None:
            self._before, self._mark = self._history.last(), self._history.mark()
        while not self._stopping.is_set():
            wait, last = next_tick - time.monotonic(), self._concluding.is_set()
            ticks = ENOUGH_TICKS if last else 1
            if wait > 0 and not last:
                try:
                    event = self._events.get(timeout=min(wait, notice))
                except queue.Empty:
                    continue
                self._take(event, publish)
                if at_windows and isinstance(event, StackWindow):
                    at_windows -= bool(self._snapshot and self._snapshot.working)
                elif self._shared and isinstance(event, ExchangeNotes):
                    # A look at a standstill has ended. Its verdict takes two ticks, and regular ones are far apart.
                    ticks = ENOUGH_TICKS
                else:
                    continue
                next_tick = time.monotonic()
            for runner in list(self._runners.values()):
                runner.check(time.monotonic())
            self._drain(publish)
            self._end_of_target(publish)
            seldom, before = idle.last() < SELDOM, time.thread_time()
            for _ in range(ticks):
                tick = Tick(time=time.monotonic(), wall=time.time(), monitor_cpu=cpu.cores(), seldom=seldom)
                self._take(tick, publish)
            if self.target.ended or last:
                break
            pause = self._options.interval
            if seldom:
                pause = max(pause, min(LATEST_TICK, (time.thread_time() - before) / CORES_OF_TICKS))
            next_tick = due.pop(0) if due else max(next_tick + pause, time.monotonic())

    def _look_if_still(self) -> None:
        """Dump all stacks if the job stands still. Only one dump runs at a time, as some take long."""
        now = time.monotonic()
        if self._look is not None and self._look.is_alive():
            return
        if not self._engine.wants_look(now, self._looked):
            return
        self._looked = now

        def look() -> None:
            # The state of the stack source already tells why stacks cannot be read.
            with contextlib.suppress(AitopError, OSError):
                self.dump()
            ranks = self._snapshot.ranks if self._snapshot else None
            numbers = {view.pid: view.rank for view in ranks.ranks} if ranks else {}
            with contextlib.suppress(OSError):
                self._events.put(exchange_notes(numbers))

        self._look = threading.Thread(target=look, name="aitop-look", daemon=True)
        self._look.start()

    def _drain(self, publish: Publish) -> None:
        with contextlib.suppress(queue.Empty):
            for _ in range(1000):
                self._take(self._events.get_nowait(), publish)

    def _take(self, event: Event, publish: Publish) -> None:
        if self._sink is not None:
            self._sink.write(event)
        if isinstance(event, StackWindow):
            self._recogniser.count(event)
        snapshot = self._engine.handle(event)
        if isinstance(event, HostSample):
            self._look_if_still()
        if snapshot is not None and not self._stopping.is_set():
            if self._before is not None:
                snapshot = msgspec.structs.replace(snapshot, before=self._before)
            self._snapshot = snapshot
            self._growth.consider(snapshot)
            self._learn(snapshot)
            self._spare_the_run(snapshot)
            publish(snapshot)

    def _learn(self, snapshot: Snapshot) -> None:
        """Tell the sources which processes do the work: they are sampled first, and the hook goes into them."""
        steps = snapshot.steps
        counted = {steps.pid: steps.recent[-1].kind} if steps and steps.pid is not None and steps.recent else {}
        self._stepping_processes.update(step_levels(snapshot.stacks, counted), snapshot.working, self._host.seen.pids)

    def _spare_the_run(self, snapshot: Snapshot) -> None:
        """Take the hook out where it takes more than MOST_SLOWDOWN of a step, by its own estimate, for SLOW_TICKS."""
        slowdown = snapshot.cost.target_slowdown
        slow = "hook" in self._runners and slowdown is not None and slowdown > MOST_SLOWDOWN
        self._slow_ticks = self._slow_ticks + 1 if slow else 0
        if slowdown is not None and self._slow_ticks >= SLOW_TICKS:
            self._slow_ticks = 0
            reason = f"taken out: by its own estimate it took {percent(slowdown)} of steps that are this short"
            # In a thread, because it waits for the runner and for the processes to drop the hook.
            threading.Thread(target=self._detach, args=(reason,), name="aitop-detach", daemon=True).start()

    def _end_of_target(self, publish: Publish) -> None:
        ended = still_there(self.target)
        # If only one rank has ended, the rest of the job is still watched.
        if ended is not None and not any(may_still_run(pid, begun) for pid, begun in self._tops.items()):
            self.target = msgspec.structs.replace(self.target, ended=ended, time=time.monotonic())
            self._take(self.target, publish)


def exchange_notes(ranks: Mapping[int, int | None]) -> ExchangeNotes:
    """What torch's Flight Recorder says of these ranks (rank numbers by pid), and whether all are on this machine.

    Only files and /proc are read. Takes some seconds.
    """
    # Imported only here: few jobs stand still.
    from aitop.sources.exchange.flight_recorder import flight_record  # noqa: PLC0415
    from aitop.sources.exchange.tcp_table import meet_on_this_machine  # noqa: PLC0415

    records = (flight_record(pid, rank) for pid, rank in ranks.items() if rank is not None)
    flights = tuple(record for record in records if record is not None)
    return ExchangeNotes(time=time.monotonic(), flights=flights, local=meet_on_this_machine(ranks))


class CpuMeter:
    """CPU use of this process and of its finished children since the last call, in cores."""

    def __init__(self) -> None:
        self._last_time = time.monotonic()
        self._last_used = self._total()

    def cores(self) -> float | None:
        now, used = time.monotonic(), self._total()
        elapsed, spent = now - self._last_time, used - self._last_used
        self._last_time, self._last_used = now, used
        return spent / elapsed if elapsed > 0 else None

    @staticmethod
    def _total() -> float:
        usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)
