"""Control groups of version 1 and 2 in folders made for the purpose."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aitop.sources.host.cgroup import Cgroup

PID = 4242
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)


@pytest.fixture
def machine(tmp_path):
    """`machine(membership, mounts, {path: text})` lays out a root and gives the reader of PID's groups."""

    def lay(membership, mounts, files):
        files = {f"proc/{PID}/cgroup": membership, "proc/self/mountinfo": mounts, **files}
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return Cgroup(PID, root=str(tmp_path))

    return lay


def test_version_2_takes_the_tightest_level(machine):
    group = machine(
        "0::/jobs/train\n",
        V2_MOUNT,
        {
            "sys/fs/cgroup/jobs/train/cpu.max": "max 100000\n",
            "sys/fs/cgroup/jobs/train/memory.max": "8000000000\n",
            "sys/fs/cgroup/jobs/train/memory.current": "3000000000\n",
            "sys/fs/cgroup/jobs/train/memory.stat": "anon 1\ninactive_file 1000000000\n",
            "sys/fs/cgroup/jobs/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/jobs/cpu.stat": "usage_usec 1\nnr_periods 100\nnr_throttled 10\n",
            "sys/fs/cgroup/jobs/memory.max": "9000000000\n",
            "sys/fs/cgroup/jobs/memory.current": "8500000000\n",
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
        },
    )
    sample = group.read()
    assert (sample.version, sample.cpu_quota, sample.throttled) == (2, 2.5, None)
    assert (sample.memory_limit, sample.memory_used) == (9_000_000_000, 8_500_000_000)


def test_throttling_is_the_share_of_periods_between_two_reads(machine, tmp_path):
    stat = "sys/fs/cgroup/job/cpu.stat"
    files = {"sys/fs/cgroup/job/cpu.max": "100000 100000\n", stat: "nr_periods 100\nnr_throttled 10\n"}
    group = machine("0::/job\n", V2_MOUNT, files)
    assert group.read().throttled is None
    (tmp_path / stat).write_text("nr_periods 120\nnr_throttled 15\n")
    assert group.read().throttled == 0.25
    assert group.read().throttled is None  # no period went by


def test_without_limits_the_use_is_that_of_the_group(machine):
    files = {
        "sys/fs/cgroup/job/memory.max": "max\n",
        "sys/fs/cgroup/job/memory.current": "500\n",
        "sys/fs/cgroup/job/memory.stat": "inactive_file 150\nactive_file 50\n",
        "sys/fs/cgroup/job/memory.pressure": "some avg10=12.50 avg60=1.0 avg300=0.00 total=9\nfull avg10=2.00\n",
    }
    sample = machine("0::/job\n", V2_MOUNT, files).read()
    assert (sample.cpu_quota, sample.throttled, sample.memory_limit, sample.memory_used) == (None, None, None, 300)
    assert sample.memory_stalled == 0.125


def test_version_1_beside_an_empty_version_2(machine):
    group = machine(
        "8:memory:/job/step\n1:cpu,cpuacct:/job\n0::/elsewhere\n",
        V1_MOUNTS.format(root="/"),
        {
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/step/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 100\n",
        },
    )
    sample = group.read()
    assert (sample.version, sample.cpu_quota) == (1, 0.5)
    assert (sample.memory_limit, sample.memory_used) == (4096000, 900)


def test_inside_a_container_the_mount_is_the_groups_own_folder(machine):
    group = machine(
        "8:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
        V1_MOUNTS.format(root="/docker/abc"),
        {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert group.read().cpu_quota == 2.0


@pytest.mark.parametrize("membership", ["0::/../other\n", "0::/gone\n"])
def test_of_a_group_outside_what_is_mounted_here_nothing_is_known(machine, membership):
    """As from a sidecar: what is mounted there are the limits of the sidecar."""
    assert machine(membership, V2_MOUNT, {"sys/fs/cgroup/cpu.max": "300000 100000\n"}).read() is None


@pytest.mark.parametrize(("membership", "mounts"), [("", ""), ("0::/\n", ""), ("", V2_MOUNT), ("junk\n", "junk\n")])
def test_no_control_groups(machine, membership, mounts):
    assert machine(membership, mounts, {}).read() is None


JUNK = st.text(alphabet="0123456789 max:/-.,\n²x", max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(JUNK, JUNK, JUNK, JUNK)
def test_reading_a_control_group_never_raises(machine, membership, maximum, stat, memory):
    files = {
        "sys/fs/cgroup/job/cpu.max": maximum,
        "sys/fs/cgroup/job/cpu.stat": stat,
        "sys/fs/cgroup/job/memory.max": memory,
        "sys/fs/cgroup/job/memory.current": maximum,
    }
    machine("0::/job\n", V2_MOUNT, files).read()
    machine(membership, V2_MOUNT + maximum, files).read()
