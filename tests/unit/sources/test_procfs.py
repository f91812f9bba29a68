"""Reading /proc: the parsers on real and on random text."""

import os

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_numbers import BEYOND_EVERY_PROCESS

from aitop.sources import procfs
from aitop.sources.host.command_lines import RankNumbers, rank_numbers
from aitop.sources.host.machine import Machine, interface_bytes

LINE = (
    b"4242 (a (b) c) S 17 4242 17 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 7 0 123456 1000000 2048 "
    b"18446744073709551615 1 1 140724066827760 0 0 0 0 0 0\n"
)


def test_stat_line_with_brackets_and_spaces_in_the_name():
    stat = procfs.parse_stat(LINE)
    assert (stat.pid, stat.comm, stat.state, stat.ppid) == (4242, "a (b) c", "S", 17)
    assert (stat.user, stat.system, stat.threads, stat.start) == (250, 50, 7, 123456)
    assert (stat.vsize, stat.rss, stat.stack) == (1000000, 2048, 140724066827760)


def test_reading_an_endless_file_stops_at_the_limit():
    """A process can have its command line read out of all of its memory."""
    assert len(procfs.read("/dev/zero", 1 << 20) or b"") == 1 << 20
    assert len(procfs.read("/proc/self/maps", 4096) or b"") >= 4096


@pytest.mark.parametrize("length", [0, 3, 10, 20, 80])
def test_a_cut_stat_line_is_none(length):
    assert procfs.parse_stat(LINE[:length]) is None


@given(st.binary(max_size=200) | st.lists(st.sampled_from(LINE.split(b" ")), max_size=60).map(b" ".join))
def test_parsers_never_raise(data):
    procfs.parse_stat(data)
    procfs.framework_of(data)
    procfs.parse_schedstat(data)
    interface_bytes(data.decode("utf-8", "replace"))


def test_this_process():
    stat = procfs.stat(os.getpid())
    assert stat is not None and stat.ppid == os.getppid() and stat.stack
    assert procfs.user_id(os.getpid()) == os.geteuid()
    assert os.getpid() in procfs.pids()
    assert (procfs.environ(os.getpid()) or {}).get("PATH") == os.environ["PATH"]


def test_the_machine_has_the_name_of_its_processor():
    with open("/proc/cpuinfo") as file:
        names = {line.partition(":")[2].strip() for line in file if line.startswith("model name")}
    assert {Machine().read().model} == (names or {None})


def test_the_ticks_of_each_core_are_those_that_psutil_reads():
    theirs = psutil.cpu_times(percpu=True)
    ours = procfs.core_ticks()
    assert len(ours) == len(theirs)
    for ticks, core in zip(ours.values(), theirs, strict=True):
        seconds = [number / procfs.TICKS_PER_SECOND for number in ticks]
        assert seconds == pytest.approx([sum(core) - core.guest - core.guest_nice, core.idle, core.iowait], abs=1.0)


@pytest.mark.parametrize("pid", [0, -1, BEYOND_EVERY_PROCESS])
def test_a_pid_without_a_process_gives_nothing_and_no_error(pid):
    assert procfs.stat(pid) is None
    assert procfs.argv(pid) == () and procfs.environ(pid) is None and procfs.status(pid) == {}
    assert procfs.user_id(pid) is None and procfs.thread_names(pid) == procfs.open_devices(pid) == frozenset()


def test_asking_about_devices_is_not_computing_on_one(monkeypatch):
    files = {3: "/dev/nvidiactl", 4: "/dev/nvidia0", 5: "/dev/nvidia-uvm", 6: "/dev/nvidia12", 7: "/tmp/dev/nvidia1"}
    monkeypatch.setattr(procfs, "descriptors", lambda pid: files)
    assert procfs.open_devices(1) == {"/dev/nvidia0", "/dev/nvidia12"}


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, RankNumbers(3, 1, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, RankNumbers(2, None, 4)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, RankNumbers(1, 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, RankNumbers()),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, RankNumbers(1, 1, 2)),
        ({"LOCAL_RANK": "1", "NODE_RANK": "1"}, RankNumbers(None, 1, None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, RankNumbers(1, 1, 4, 2)),
        ({"PMIX_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, RankNumbers(5, None, 8)),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, RankNumbers(0, None, 2, 2)),
        ({"RANK": "first"}, RankNumbers()),
        ({"RANK": "1" * 5000, "WORLD_SIZE": "4000000000"}, RankNumbers()),
        ({}, RankNumbers()),
    ],
)
def test_rank_numbers(environment, numbers):
    assert rank_numbers(environment) == numbers


def test_virtual_interfaces_do_not_count_twice():
    text = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "    lo: 1000 1 0 0 0 0 0 0 1000 1 0 0 0 0 0 0\n"
        "  eth0: 300 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
    )
    for name in ("docker0", "br0", "vmbr0", "eth0.100", "team0", "wg0", "tailscale0"):
        text += f"{name}: 300 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
    assert interface_bytes(text) == (300, 200)
    assert interface_bytes("") is None


def test_the_pid_in_a_container_and_the_environment_of_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    (tmp_path / "42").mkdir()
    for words, inner in (("NSpid:\t42\t7\t1\n", 1), ("NSpid:\t42\n", 42), ("Name:\tpython\n", 42)):
        (tmp_path / "42" / "status").write_text(words)
        assert procfs.inner_pid(42) == inner
    assert procfs.inner_pid(43) == 43, "it is gone"
    (tmp_path / "42" / "environ").write_bytes(b"A=1\0B=2\0A=\0nothing\0")
    assert procfs.environ(42) == {"A": "1", "B": "2"}, "the first value counts, as for the process itself"
