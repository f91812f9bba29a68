"""What `aitop export` is made of: turns at sampling, addresses, the text file, systemd, and what it refuses."""

import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import threading
import weakref
from importlib.resources import files

import pytest
from process_numbers import NO_PROCESS
from prometheus_client import CollectorRegistry, Gauge

from aitop import cli
from aitop.commands import export
from aitop.commands.export import notify
from aitop.engine import node
from aitop.engine.live import Options
from aitop.errors import AitopError, NoTargetError, NotPermittedError
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.job import Candidate
from aitop.outputs.prometheus.destinations import Address, parse_address, write_textfile
from aitop.outputs.prometheus.families import JobsCollector
from aitop.sources import devices
from aitop.sources.source import SourceError
from aitop.sources.stacks.pace import NEW_EVERY_SECONDS, NEW_SECONDS, PartOfBudget, SharedBudget

CORES = 0.01
FIRST_WINDOWS = round(NEW_SECONDS / NEW_EVERY_SECONDS)


def test_jobs_that_share_a_budget_stay_within_it_however_many_they_are():
    for count in (1, 8, 50):
        shared, cost, seconds = SharedBudget(CORES), 0.1, 20_000.0
        due = dict.fromkeys(range(count), 0.0)
        parts = [PartOfBudget(shared) for _ in range(count)]
        windows = dict.fromkeys(range(count), 0)
        while min(due.values()) < seconds:
            job = min(due, key=due.__getitem__)
            started = due[job]
            windows[job] += 1
            due[job] = started + max(2.0, parts[job].spend(cost, started, started + 2.0))
        spent = cost * sum(windows.values())
        assert spent <= CORES * seconds + count * cost * (FIRST_WINDOWS + 1)
        assert max(windows.values()) - min(windows.values()) <= 1


def test_a_new_job_is_looked_at_every_ten_seconds_of_its_first_minute_however_many_there_are():
    shared = SharedBudget(CORES)
    old = PartOfBudget(shared)
    for number in range(50):
        old.spend(0.1, 100.0 * number, 100.0 * number + 2.0)
    new, due = PartOfBudget(shared), [5000.0]
    for _ in range(FIRST_WINDOWS):
        due.append(due[-1] + new.spend(0.1, due[-1], due[-1] + 2.0))
    assert due[:-1] == [5000.0 + NEW_EVERY_SECONDS * number for number in range(FIRST_WINDOWS)]
    assert due[-2] < 5060.0
    # What the new one took puts off nobody: the old one comes when it would have come without it.
    assert old.spend(0.1, 5045.0, 5047.0) <= 2 * 0.1 / CORES + 2.0


def test_the_first_minute_of_a_job_begins_once_it_does_more_than_import():
    shared = SharedBudget(CORES)
    shared.reserve(100.0, 0.0)
    new = PartOfBudget(shared)
    imports = [new.spend(0.1, 10.0 * number, 10.0 * number + 2.0, works=False) for number in range(20)]
    works = [new.spend(0.1, 200.0 + 10.0 * number, 202.0 + 10.0 * number) for number in range(FIRST_WINDOWS - 2)]
    assert set(imports + works) == {NEW_EVERY_SECONDS}
    assert new.spend(0.1, 230.0, 232.0) > 1000.0
    # One that shows nothing for minutes gets no more than its turn.
    idle = PartOfBudget(shared)
    pauses = [idle.spend(0.1, 10.0 * number, 10.0 * number + 2.0, works=False) for number in range(60)]
    assert pauses[0] == NEW_EVERY_SECONDS < 1000.0 < pauses[-1]


def test_without_a_host_only_this_machine_is_answered():
    known = {"9464": "127.0.0.1", ":9464": "127.0.0.1", "0.0.0.0:9464": "0.0.0.0", "[::1]:9464": "::1", "n:9464": "n"}
    assert {text: parse_address(text) for text in known} == {text: Address(host, 9464) for text, host in known.items()}
    for text in ("", "host", "host:", "host:0", "host:70000", "host:-1", "1.2.3.4:http"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_address(text)


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("aitop_jobs", "AI jobs.", registry=registry).set(3)
    return registry


def test_the_text_file_is_replaced_whole_and_all_may_read_it(registry, tmp_path):
    path = tmp_path / "aitop.prom"
    ended = threading.Event()
    seen = set()

    def read():
        while not ended.is_set():
            seen.add(path.read_text())

    before = os.umask(0o077)
    try:
        write_textfile(registry, path)
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(20):
            write_textfile(registry, path)
        ended.set()
        reader.join()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert len(seen) == 1
    assert "aitop_jobs 3.0" in seen.pop()
    assert os.listdir(tmp_path) == ["aitop.prom"]


def test_a_text_file_that_cannot_be_written_leaves_nothing_behind(registry, tmp_path):
    (tmp_path / "aitop.prom").mkdir()
    with pytest.raises(OSError):
        write_textfile(registry, tmp_path / "aitop.prom")
    assert os.listdir(tmp_path) == ["aitop.prom"]


def test_systemd_hears_of_it_where_it_asked(tmp_path, monkeypatch):
    notify("READY=1")
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
        assert receiver.recv(100) == b"READY=1"
    notify("WATCHDOG=1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say which jobs"),
        (["--all", "--pid", "1"], "say which jobs"),
        (["--all"], "say where to"),
        (["--all", "--prometheus", "nonsense"], "not HOST:PORT"),
        (["--all", "--prometheus", "9464", "--tls-cert", "x"], "--tls-key"),
        (["--all", "--prometheus", "9464", "--tls-cert", "/no/c", "--tls-key", __file__], "cannot read /no/c: No such"),
        (["--all", "--prometheus", "9464", "--tls-cert", __file__, "--tls-key", __file__], f"no HTTPS with {__file__}"),
        (["--all", "--textfile", "x.prom", "--tls-cert", "c", "--tls-key", "k"], "need --prometheus"),
        (["--all", "--prometheus", "192.0.2.1:9464"], "cannot listen on 192.0.2.1:9464: "),
        (["--all", "--textfile", "metrics.txt"], "end in .prom"),
        (["--all", "--textfile", "/nowhere/aitop.prom"], "cannot write"),
    ],
)
def test_wrong_options_of_export_are_refused_with_a_sentence(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr("aitop.engine.node.candidates", lambda gpu_users: [])
    assert cli.run(["export", *arguments]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize(("words", "seconds"), [("--hook --every 60s", 15.0), ("--every 60s", 60.0), ("--hook", 15.0)])
def test_looks_overlap_where_the_hook_tells_of_requests_however_seldom_they_are_exported(
    words, seconds, tmp_path, monkeypatch
):
    intervals = []

    class Ended(node.Node):
        over = True

        def __init__(self, pids, options, *more):
            intervals.append(options.interval)
            super().__init__([], options, *more)

    monkeypatch.setattr("aitop.engine.node.Node", Ended)
    assert cli.run(["export", "--all", *words.split(), "--textfile", f"{tmp_path}/aitop.prom"]) == 0
    assert intervals == [seconds]


def test_ctrl_c_ends_it_with_0_and_removes_the_text_file(tmp_path, monkeypatch):
    def interrupt(watching):
        (tmp_path / "aitop.prom").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(node.Node, "update", interrupt)
    assert cli.run(["export", "--all", "--textfile", f"{tmp_path}/aitop.prom"]) == 0
    assert not os.listdir(tmp_path)


def test_a_library_that_is_missing_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    for name in [name for name in sys.modules if name.startswith("aitop.outputs.prometheus.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(AitopError, match=r"pip install '\.\[export\]'"):
        export.new_collector("n1")


def test_the_hook_stays_out_whatever_the_settings_say():
    args = cli.parse(["export", "--all", "--textfile", "x.prom"])
    assert not args.settings.hook
    assert cli.parse(["export", "--all", "--hook"]).settings.hook


def test_every_deployment_is_printed(capsys):
    folder = files("aitop.commands").joinpath("deployments")
    assert {file.name for file in folder.iterdir()} == set(export.DEPLOYMENTS.values())
    for name in export.DEPLOYMENTS:
        assert cli.run(["export", "--print", name]) == 0
        assert "aitop" in capsys.readouterr().out


class Driver(devices.Source):
    name = "gpu"

    def __init__(self):
        self.reads = 0

    def read(self):
        self.reads += 1
        processes = (GpuProcess(pid=1), GpuProcess(pid=2))
        return [GpuSample(time=1e9, devices=(GpuDevice(index=0, processes=processes), GpuDevice(index=1)))]


def test_devices_are_read_once_for_all_jobs_and_each_sees_its_own(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    shared = devices.SharedDevices(15.0)
    one, other = shared.of(lambda: frozenset({1})), shared.of(lambda: frozenset({3}))
    (mine,), (theirs,) = one.read(), other.read()
    assert driver.reads == 1
    assert [device.mine for device in mine.devices] == [True, False]
    assert [process.mine for process in mine.devices[0].processes] == [True, False]
    assert not any(device.mine for device in theirs.devices)
    assert theirs.devices[1] == mine.devices[1]


@pytest.mark.parametrize("listed", [None, (GpuProcess(pid=NO_PROCESS),)])
def test_in_a_container_a_device_is_the_jobs_that_has_it_open(monkeypatch, listed):
    driver = Driver()
    driver.read = lambda: [GpuSample(time=1e9, devices=(GpuDevice(index=0, minor=3, processes=listed),))]
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    monkeypatch.setattr("aitop.sources.procfs.open_devices", lambda pid: {f"/dev/nvidia{pid}"})
    shared = devices.SharedDevices(15.0)
    for pid, mine in ((3, True), (4, False)):
        (sample,) = shared.of(lambda pid=pid: frozenset({pid})).read()
        (device,) = sample.devices
        assert device.mine is mine and [each.mine for each in device.processes or ()] == [mine] * len(listed or ())


@pytest.mark.parametrize("many", [False, True], ids=["one job", "all jobs"])
def test_a_lost_device_is_the_jobs_that_used_it(monkeypatch, many):
    samples = [
        GpuSample(time=1.0, devices=tuple(GpuDevice(index=i, processes=(GpuProcess(pid=1),)) for i in (0, 1))),
        GpuSample(time=2.0, devices=(GpuDevice(index=0, processes=()), GpuDevice(index=1, lost=True))),
        GpuSample(time=3.0, devices=(GpuDevice(index=0, processes=()), GpuDevice(index=1, lost=True))),
    ]
    driver = Driver()
    driver.read = lambda: [samples.pop(0)]
    monkeypatch.setattr(devices, "all_devices", lambda *own: driver)
    shared = devices.SharedDevices(-1.0)
    source_of = shared.of if many else devices.device_source
    job = source_of(lambda: frozenset({1}))
    seen = [[device.mine for device in job.read()[0].devices] for _ in range(3)]
    assert seen == [[True, True], [False, True], [False, True]]
    samples.append(GpuSample(time=4.0, devices=(GpuDevice(index=1, lost=True),)))
    assert not source_of(lambda: frozenset({2})).read()[0].devices[0].mine


def test_a_driver_that_was_opened_in_part_is_closed(monkeypatch):
    driver, calls = Driver(), []

    def refuse():
        calls.append("open")
        raise SourceError("absent", "the NVIDIA driver is here, but no GPU")

    driver.open, driver.close = refuse, lambda: calls.append("close")
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    shared = devices.SharedDevices(15.0)
    for _ in range(2):
        with pytest.raises(SourceError, match="no GPU"):
            shared.read()
    assert calls == ["open", "close"] * 2


def test_jobs_do_not_wait_for_a_driver_that_hangs_in_the_read_of_another(monkeypatch):
    driver, reads, goes_on = Driver(), threading.Event(), threading.Event()

    def hang():
        reads.set()
        goes_on.wait(30)
        return []

    driver.read = hang
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    shared = devices.SharedDevices(15.0)
    shared.patience = 0.05
    first = threading.Thread(target=shared.read, daemon=True)
    first.start()
    assert reads.wait(30)
    at_last = threading.Timer(5.0, goes_on.set)
    at_last.start()
    with pytest.raises(SourceError, match="has not come back") as raised:
        shared.read()
    assert raised.value.state == "stale"
    goes_on.set()
    at_last.cancel()
    first.join()
    assert shared.read() == []


@pytest.fixture
def job(monkeypatch):
    """A process that `export --all` finds."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        found = {"user": "ada", "framework": "torch", "ranks": 1, "workers": 0, "age": 1.0}
        running = [Candidate(pid=process.pid, command="train.py", **found)]
        monkeypatch.setattr(node, "candidates", lambda gpu_users: running if process.poll() is None else [])
        monkeypatch.setattr(node, "SEARCH_SECONDS", 0.0)
        yield process
        process.kill()


@pytest.mark.parametrize(("error", "closed"), [(NotPermittedError, True), (NoTargetError, False)])
def test_a_job_that_is_not_watched_is_told_once_and_is_down_only_if_it_may_not_be_looked_into(
    job, monkeypatch, error, closed
):
    said, collector = [], JobsCollector("n1")

    def refuse(pid, *, even_stopped):
        raise error(f"process {pid} is not one for us")

    monkeypatch.setattr(node, "look", refuse)
    watching = node.Node(None, Options(gpu=False), collector, said.append)
    for _ in range(3):
        watching.update()
    up = [sample for family in collector.collect() if family.name == "aitop_up" for sample in family.samples]
    assert [(sample.labels["pid"], sample.value) for sample in up] == ([(str(job.pid), 0.0)] if closed else [])
    job.communicate(b"\n")
    watching.update()
    watching.stop()
    assert said == [f"process {job.pid} is not one for us"]
    assert [family.name for family in collector.collect()] == ["aitop_jobs"]


class Feed:
    """A feed that watches nothing."""

    pids = frozenset()

    def __init__(self, targets, options, shared):
        self.targets = targets

    def start(self, publish):
        self.publish = publish

    def stop(self):
        pass


def test_a_job_that_a_signal_has_stopped_is_watched(job, monkeypatch):
    said = []
    monkeypatch.setattr(node, "LiveFeed", Feed)
    job.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WNOWAIT)
    watching = node.Node(None, Options(gpu=False), JobsCollector("n1"), said.append)
    watching.update()
    assert said == [f"watching the job of process {job.pid}"]


def test_jobs_that_end_together_are_ended_side_by_side(monkeypatch):
    said, together = [], threading.Barrier(3, timeout=20)
    monkeypatch.setattr(Feed, "stop", lambda feed: together.wait())
    watching = node.Node([], Options(gpu=False), JobsCollector("n1"), said.append)
    for top in range(3):
        watching._watched[top] = node._Watched(Feed((), None, None), top, "n1", JobsCollector("n1"))
        watching._watched[top].ended.set()
    watching.update()
    assert watching.ended == len(said) == 3 and watching.over


MANY_THREADS = """
import ctypes, re, threading
from aitop.commands.export import use_one_arena
{call}
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
together = threading.Barrier(8)
def work():
    taken = [bytearray(4000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
text, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(len(re.findall(rb"<heap nr=", text.value)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has several arenas")
def test_all_threads_take_memory_from_one_arena():
    arenas = []
    for call in ("use_one_arena()", ""):
        words = [sys.executable, "-c", MANY_THREADS.format(call=call)]
        arenas.append(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
    assert arenas[0] == 1 < arenas[1]


class Job:
    """Something that holds itself, as a job's threads and what they call do."""

    def __init__(self):
        self.itself = self


def test_what_an_ended_job_left_is_freed_at_once():
    gone = weakref.ref(Job())
    assert gone() is not None
    export.give_memory_back()
    assert gone() is None
