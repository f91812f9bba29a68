"""Memory of devices and of the host: full, in pieces, copied by workers, leaking, uneven among ranks."""

from itertools import accumulate

import msgspec
import pytest
from judgements import fired, level, unjudged
from snapshot_builder import ON_CUDA, RANK, WORKER, constant, line, loaders, process, snapshot, steps
from stack_maker import stack, window

from aitop.diagnosis.conditions import device_memory, host_memory, memory
from aitop.diagnosis.conditions.device_memory import oom_risk
from aitop.diagnosis.conditions.memory import left_of
from aitop.diagnosis.device import memory_taken
from aitop.diagnosis.rule import Finding
from aitop.engine.history import History
from aitop.engine.snapshot.aggregate import aggregate
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample, MigDevice
from aitop.model.host import CgroupSample, HostSample, MachineSample
from aitop.model.ranks import Ranks, RankView
from aitop.model.snapshot import GrowthSite, Phases, Series, Target, Tick
from aitop.model.steps import AllocatorSample
from aitop.model.verdict import Abstention, Setting

GB = 2**30


def rising(first, last, count=20):
    """A straight line over the last `count` seconds."""
    values = tuple(first + (last - first) * index / (count - 1) for index in range(count))
    return Series(times=tuple(1001.0 - count + index for index in range(count)), values=values)


def device(used, **fields):
    gpu = GpuDevice(index=0, mine=True, memory_total=80 * GB, memory_used=round(used * GB), **fields)
    return GpuSample(time=1000.0, devices=(gpu,))


def allocator(allocated=20, reserved=30, peak=25, **fields):
    fields = {"peak_allocated": peak * GB if peak is not None else None, "capacity": 80 * GB, **fields}
    return (AllocatorSample(device=0, gpu=0, allocated=allocated * GB, reserved=reserved * GB, **fields),)


# oom-risk ---------------------------------------------------------------------------------------------------------


def test_a_peak_that_nearly_fills_the_device_with_what_others_hold():
    seen = snapshot(steps(), gpu=device(79), allocators=allocator(40, 70, 66))
    verdict = fired(device_memory.oom_risk(seen))
    assert verdict.title == "GPU 0's memory is 94 % full at its peak: a longer batch may not fit"
    assert "9.0 GB is held by CUDA itself, by libraries or by other processes" in verdict.evidence
    assert verdict.fixes[-1].text.startswith("see who holds the other 9.0 GB")


def test_a_server_is_not_told_to_train_otherwise():
    serving = snapshot(steps(), gpu=device(79), allocators=allocator(40, 70, 66), kind="inference", host=host(2, 5))
    told = [fix.text for rule in (device_memory.oom_risk, host_memory.pressure) for fix in fired(rule(serving)).fixes]
    assert not any(word in text for text in told for word in ("gradient", "data set", "IterableDataset"))


def test_a_full_device_may_be_a_cache_and_is_less_certain_without_the_hook():
    cache = snapshot(steps(), gpu=device(79), allocators=allocator(20, 78, 40))
    assert level(device_memory.oom_risk(cache)) < 0.88
    verdict = fired(device_memory.oom_risk(snapshot(steps(), gpu=device(77))))
    assert verdict.confidence == 0.5 and any("only the hook" in sentence for sentence in verdict.evidence)
    assert level(device_memory.oom_risk(snapshot(steps(), gpu=device(40)))) < 0.88


def counted(retries, ooms=None):
    series = {"alloc0.retries": rising(*retries)}
    return series | ({"alloc0.ooms": rising(*ooms)} if ooms else {})


def test_only_recent_retries_of_the_allocator_count():
    before = allocator(20, 30, 25, retries=7, ooms=2)
    old = snapshot(steps(), gpu=device(32), allocators=before, series=counted((7, 7), (2, 2)))
    assert level(device_memory.oom_risk(old)) < 0.88
    now = snapshot(steps(), gpu=device(32), allocators=before, series=counted((5, 7)))
    verdict = fired(device_memory.oom_risk(now))
    assert (verdict.severity, verdict.title) == (
        "warning",
        "GPU 0's memory ran out a moment ago: a longer batch may not fit",
    )
    assert any("freed its cache to try again 2 times" in sentence for sentence in verdict.evidence)
    failed = snapshot(steps(), gpu=device(32), allocators=before, series=counted((5, 7), (1, 2)))
    assert fired(device_memory.oom_risk(failed)).severity == "critical"


def test_a_device_that_fills_says_when():
    filling = {"alloc0.allocated": rising(70 * GB, 74 * GB)}
    verdict = fired(device_memory.oom_risk(snapshot(steps(), allocators=allocator(74, 76, 75), series=filling)))
    assert "full in 29 s" in verdict.title and verdict.severity == "critical"


def test_a_device_that_the_process_knows_by_another_number_is_the_same_device():
    (own,) = device(79).devices
    second = GpuSample(time=1000.0, devices=(msgspec.structs.replace(own, index=1),))
    moved = tuple(msgspec.structs.replace(figures, gpu=1) for figures in allocator(20, 78, 40))
    cache = snapshot(steps(), gpu=second, allocators=moved)
    assert level(device_memory.oom_risk(cache)) < 0.88
    assert memory_taken(cache) == 41 / 80, "the tensors' peak, and 1 GB that the allocator does not have"
    full = tuple(msgspec.structs.replace(figures, gpu=1) for figures in allocator(40, 70, 66))
    filling = {"alloc0.allocated": rising(60 * GB, 66 * GB)}
    title = fired(device_memory.oom_risk(snapshot(steps(), gpu=second, allocators=full, series=filling))).title
    assert title.startswith("GPU 1's memory is 94 % full at its peak, full in")


def test_of_a_card_in_slices_only_the_own_one_counts():
    uuid = "5e1f0000-0000-4000-8000-000000000000"
    own = MigDevice(index=0, uuid=f"MIG-{uuid}", memory_total=10 * GB, memory_used=6 * GB)
    card = device(65, mig=True, mig_devices=(own,))
    held = allocator(4, 5, 4, uuid=uuid, capacity=10 * GB)
    sliced = snapshot(steps(), gpu=card, allocators=held, series={"alloc0.allocated": rising(3 * GB, 4 * GB)})
    assert level(device_memory.oom_risk(sliced)) == 0.5, "4 GB of tensors, and 1 GB that the allocator does not have"
    assert left_of(sliced, "alloc0.allocated") == 6 * GB
    assert "only the hook can tell" in unjudged(device_memory.oom_risk(snapshot(steps(), gpu=card)))


def test_of_devices_that_may_be_the_allocators_the_drivers_figure_is_not_taken():
    unknown = tuple(msgspec.structs.replace(figures, gpu=None) for figures in allocator(20, 78, 40))
    cache = snapshot(steps(), gpu=device(79), allocators=unknown)
    assert level(device_memory.oom_risk(cache)) == 0.5


def test_memory_that_is_not_known_is_not_judged():
    oom_risk, fragmentation, pressure = device_memory.oom_risk, device_memory.fragmentation, host_memory.pressure
    assert unjudged(oom_risk(snapshot(steps(), facts=ON_CUDA))) == "no GPU figures"
    silent = GpuSample(time=1000.0, devices=(GpuDevice(index=0, mine=True),))
    assert "how much memory" in unjudged(oom_risk(snapshot(steps(), gpu=silent)))
    without_hook = unjudged(fragmentation(snapshot(steps(), gpu=device(70))))
    assert without_hook == "no figures of PyTorch's allocator: only the hook sees it"
    assert unjudged(fragmentation(snapshot(steps(), facts=ON_CUDA)))
    assert oom_risk(snapshot(steps())) is fragmentation(snapshot(steps())) is None
    blind = HostSample(time=1000.0, processes=(process(),), machine=MachineSample(cores=2))
    assert "not known" in unjudged(pressure(snapshot(steps(), host=blind)))
    assert unjudged(pressure(snapshot(steps(), host=None)))


# fragmentation ----------------------------------------------------------------------------------------------------


def test_memory_in_pieces_while_the_allocator_retries():
    pieces = allocator(20, 70, 40, inactive_split=35 * GB, retries=3)
    lengths = [msgspec.structs.replace(step, tokens=1000 + 37 * step.index) for step in steps()]
    seen = snapshot(lengths, gpu=device(75), allocators=pieces, series={"alloc0.retries": rising(0, 3)})
    verdict = fired(device_memory.fragmentation(seen))
    assert verdict.severity == "warning" and verdict.title.startswith("43 % of PyTorch's memory on GPU 0")
    assert "expandable_segments:True: gives back up to 30 GB" in verdict.fixes[0].text
    assert "the last 40 steps had 40 different sizes" in verdict.evidence
    assert "bucket" in verdict.fixes[1].text


def test_pieces_that_cost_little():
    filled_again = snapshot(steps(), allocators=allocator(20, 70, 68, inactive_split=40 * GB))
    assert level(device_memory.fragmentation(filled_again)) < 0.15
    roomy = snapshot(steps(samples=32), allocators=allocator(4, 16, 8, inactive_split=6 * GB))
    verdict = fired(device_memory.fragmentation(roomy))
    assert verdict.severity == "info" and "there is room yet" in verdict.title
    assert len(verdict.fixes) == 1, "steps of one size are not told to be bucketed"


# host-memory-pressure ---------------------------------------------------------------------------------------------


def host(left, rank=10, workers=(), *, group=None, **machine):
    processes = [process(rss=rank * GB)]
    processes += [process(WORKER + n, "loader-worker", rss=rss * GB) for n, rss in enumerate(workers)]
    return HostSample(
        time=1000.0,
        processes=tuple(processes),
        machine=MachineSample(cores=8, memory_total=64 * GB, memory_available=round(left * GB), **machine),
        cgroup=group,
    )


def test_workers_that_copy_the_data_set():
    loading = loaders(4, dataset="Rows")
    series = {"memory_left": rising(6 * GB, 2 * GB), "swap_in": constant(20e6)}
    seen = snapshot(steps(), host=host(2, 12, (11, 11, 11, 11), memory_stalled=0.3), series=series, facts=loading)
    verdict = fired(host_memory.pressure(seen))
    assert (verdict.severity, verdict.share) == ("critical", 0.3)
    assert verdict.title == "97 % of the machine's memory is taken: 2.0 GB left, full in 9.50 s"
    assert "4 loader workers: 11 GB each, with what they share with the rank" in verdict.evidence
    assert "19 MB/s are read back from swap" in verdict.evidence
    assert "(Rows)" in verdict.fixes[0].text and "num_workers 4 → 2" in verdict.fixes[1].text
    assert verdict.fixes[1].setting == Setting(name="num_workers", to=2, current=4)


def test_the_limit_of_the_group_counts_where_it_is_tighter():
    group = CgroupSample(version=2, memory_limit=16 * GB, memory_used=round(15.2 * GB), memory_stalled=0.0)
    verdict = fired(host_memory.pressure(snapshot(steps(), host=host(40, 15, group=group))))
    assert verdict.severity == "warning" and "95 % of the control group's memory" in verdict.title
    assert "raise the memory limit" in verdict.fixes[-1].text


def test_memory_that_somebody_else_takes():
    verdict = fired(host_memory.pressure(snapshot(steps(), host=host(1, 5))))
    assert any("somebody else's" in sentence for sentence in verdict.evidence)
    assert verdict.fixes[-1].text.startswith("see who else holds memory")


def test_room_without_waiting_is_no_pressure():
    assert level(host_memory.pressure(snapshot(steps(), host=host(20, memory_stalled=0.0)))) < 0.9
    assert fired(host_memory.pressure(snapshot(steps(), host=host(20, memory_stalled=0.4)))).severity == "warning"


# memory-leak ------------------------------------------------------------------------------------------------------

GROWING = {"rss": rising(1 * GB, 3 * GB, 40)}
SETTING_UP = Phases(data_wait=0.0, forward=0.0, backward=0.0, optimizer=0.0, outside=1.0)


def test_reading_a_data_set_is_no_leak():
    setting_up = snapshot(phases=SETTING_UP, kind="unknown", series=GROWING)
    assert unjudged(memory.leak(setting_up)) == memory.BLIND
    just_stepping = snapshot(steps(seconds=0.05), series=GROWING, steps_so_far=40)
    assert isinstance(memory.leak(just_stepping), Abstention), "what was read before the first step does not count"


def test_setting_up_is_no_leak_once_stacks_show_steps():
    sampled = Phases(data_wait=0.1, forward=0.4, backward=0.4, optimizer=0.1, outside=0.0)
    seen = snapshot(phases=sampled, series=GROWING)
    late = msgspec.structs.replace(seen, steps=msgspec.structs.replace(seen.steps, began=seen.time - 8.0))
    assert not isinstance(memory.leak(late), Finding), "what was read before the first step does not count"
    early = msgspec.structs.replace(seen, steps=msgspec.structs.replace(seen.steps, began=seen.time - 20.0))
    assert fired(memory.leak(early))


def test_stacks_show_when_the_steps_began():
    history = History(Target(pid=RANK, command="python train.py"))
    imports = stack(
        "user/train.py:1 <module>", "<frozen_importlib._bootstrap> _find_and_load", "torch/__init__.py <module>"
    )
    backward = stack("user/train.py:9 main | loss.backward()", "torch/autograd/graph.py _engine_run_backward")
    for seconds, frames in ((970.0, imports), (980.0, imports), (990.0, backward), (1000.0, backward)):
        history.add(window(seconds, (RANK, "MainThread", True, frames, 40)))
    assert aggregate(history, Tick(time=1000.0, wall=0.0)).steps.began == 990.0


def test_growth_under_way_is_a_leak():
    assert fired(memory.leak(snapshot(steps(), series=GROWING))).title.startswith("host memory grows by 53 MB/s")
    sampled = Phases(data_wait=0.1, forward=0.4, backward=0.4, optimizer=0.1, outside=0.0)
    assert fired(memory.leak(snapshot(phases=sampled, series=GROWING)))


def test_without_stacks_and_hook_only_a_long_rise_is_reported_and_with_low_confidence():
    long = {"rss": rising(1 * GB, 3 * GB, 60)}
    verdict = fired(memory.leak(snapshot(main_samples=0, series=long)))
    assert (verdict.severity, verdict.confidence) == ("info", 0.3)
    assert memory.BLIND in verdict.evidence
    assert unjudged(memory.leak(snapshot(main_samples=0, series=GROWING))) == memory.BLIND


def test_growth_of_a_run_that_compiles_all_the_time_is_no_leak_for_sure():
    compiles = line("train", 0.4, phase="forward", activity="compile")
    verdict = fired(memory.leak(snapshot(steps(), lines=[compiles], series=GROWING)))
    assert (verdict.severity, verdict.confidence) == ("info", 0.3)
    assert memory.COMPILING in verdict.evidence


def test_workers_and_devices_leak_too():
    workers = fired(memory.leak(snapshot(steps(), series={"workers_rss": rising(1 * GB, 3 * GB, 40)})))
    assert workers.title.startswith("memory of the loader workers grows") and "cache" in workers.fixes[0].text
    on_device = {"alloc0.allocated": rising(20 * GB, 30 * GB, 40)}
    held = snapshot(steps(), gpu=device(60), allocators=allocator(30, 40, 32), series=on_device)
    # 80 of which 60 are used, and 10 of those are the allocator's to give: 30 GB at 10 GB in 39 s.
    assert fired(memory.leak(held)).title == "allocated GPU memory grows by 263 MB/s: full in 1 m 57 s"
    unhooked = snapshot(steps(), gpu=device(60), series={"gpu0.memory": rising(50 * GB, 60 * GB, 40)})
    assert fired(memory.leak(unhooked)).title.startswith("GPU memory grows")


def test_the_series_of_one_process_is_not_read_twice():
    seen = snapshot(steps(), gpu=device(60), series={"gpu0.memory": constant(1), "alloc0.allocated": constant(1)})
    assert memory.watched(seen) == ["alloc0.allocated"]


def growing(per_second, noise=0.0, count=25):
    values = tuple(1e9 + index * per_second + (noise if index % 2 else -noise) for index in range(count))
    return Series(times=tuple(1000.0 - count + index for index in range(count)), values=values)


SITE = GrowthSite(file="/x/train.py", line=40, function="main", text="history.append(loss)", keeps_graph=True)


def leak(series, *sites):
    return memory.leak(snapshot(steps(), series={"rss": series}, growth_sites=sites))


LEVELS_OFF = tuple(1e9 + 300e6 * (1 - 0.8**index) for index in range(25))


@pytest.mark.parametrize(
    "series",
    [
        growing(0.0, 1e6),
        growing(1e4),
        growing(1e6, 40e6),
        constant(2e9),
        Series(times=tuple(float(976 + index) for index in range(25)), values=LEVELS_OFF),
    ],
    ids=["noise", "hardly any growth", "growth below the noise", "constant", "growth that levels off"],
)
def test_noise_and_warming_up_are_no_leak(series):
    assert leak(series, SITE) is None


# What threads of a pool add as they begin, a server's first seconds, in MB.
JUMPS = (0.0, 0.8, 0.5, 0.25, 1.75, 6.0, 0.5, 0.9, 0.4, 0.25, 0.0, 0.0, 4.1, 0.0, 0.25)


@pytest.mark.parametrize(("added", "leaks"), [(JUMPS, False), ((1.3, 0.9) * 7, True), (JUMPS * 4, True)])
def test_a_few_jumps_are_no_leak_until_they_go_on(added, leaks):
    values = tuple(1e9 + 2**20 * total for total in accumulate(added))
    times = tuple(1000.0 - len(values) + index for index in range(len(values)))
    assert (leak(Series(times=times, values=values)) is not None) is leaks


def test_a_line_that_keeps_memory_is_one_of_the_judged_rank_not_of_its_launcher():
    seen = snapshot(steps(), series={"rss": growing(2e6)}, growth_sites=(SITE,))
    launched = msgspec.structs.replace(seen, target=Target(pid=1, command="torchrun train.py"))
    assert [where.pid for where in fired(memory.leak(launched)).where] == [RANK]


@pytest.mark.parametrize("sites", [(), (SITE,)], ids=["no line", "a line"])
def test_source_code_names_the_line_and_decides_nothing(sites):
    assert leak(growing(10e6, count=12), *sites) is None, "too short"
    with_line, without_line = leak(growing(10e6), *sites), leak(growing(10e6))
    assert (fired(with_line).severity, with_line.level) == (fired(without_line).severity, without_line.level)
    assert (memory.READ in fired(with_line).evidence, memory.READ in fired(without_line).evidence) == (
        bool(sites),
        False,
    )


def test_a_little_growth_of_each_worker_is_no_leak():
    of_one = {"workers_rss": rising(100 * 2**20, 115 * 2**20, 15)}
    assert fired(memory.leak(snapshot(steps(), host=host(20, workers=(1,)), series=of_one)))
    assert memory.leak(snapshot(steps(), host=host(20, workers=(1,) * 4), series=of_one)) is None


def test_slow_growth_watched_only_briefly_may_be_a_buffer_that_fills():
    """At 4 MB a second it takes 41 minutes: 14 s of that, or 30, say nothing of its end; 50 s and more do."""
    verdicts = [fired(leak(growing(4e6, count=count))) for count in (14, 30, 50)]
    assert [memory.TOO_BRIEF in verdict.evidence for verdict in verdicts] == [True, True, False]
    assert verdicts[0].confidence == memory.MAY_END < verdicts[2].confidence
    # At 1 MB a second it takes 2 h 43 m: only a rise that lasts for minutes is drawn out to that.
    long = [{"rss": growing(1e6, count=count)} for count in (50, 120, 250)]
    verdicts = [fired(memory.leak(snapshot(steps(), series=series, steps_so_far=10_000))) for series in long]
    assert [memory.TOO_BRIEF in verdict.evidence for verdict in verdicts] == [True, True, False]
    lately = tuple(1e9 + max(0, index - 200) * 50e6 for index in range(250))
    times = tuple(float(750 + index) for index in range(250))
    began = {"rss": Series(times=times, values=lately)}
    verdict = fired(memory.leak(snapshot(steps(), series=began, steps_so_far=10_000)))
    assert verdict.severity == "critical", "it began a minute ago"


@pytest.mark.parametrize(("name", "space"), [("rss", "mapped"), ("workers_rss", "workers_mapped")])
def test_the_first_use_of_memory_that_is_there_already_is_no_leak(name, space):
    """An array of zeros that is filled from its front, a file that is read."""
    filling = {name: growing(50e6), space: constant(9e9, 25)}
    assert memory.leak(snapshot(steps(), series=filling)) is None
    asked_for = {name: growing(50e6), space: growing(50e6)}
    assert fired(memory.leak(snapshot(steps(), series=asked_for))).severity == "critical"


def held(*memory, **fields):
    views = [RankView(rank=rank, pid=100 + rank, gpu=rank, gpu_memory=one << 30) for rank, one in enumerate(memory)]
    return snapshot([], ranks=Ranks(ranks=tuple(views)), **fields)


def test_a_rank_that_holds_much_more_memory_than_the_others():
    users = (GpuProcess(pid=100), GpuProcess(pid=101))
    gpu = GpuSample(time=1.0, devices=(GpuDevice(index=0, memory_total=40 << 30, processes=users),))
    verdict = fired(oom_risk(held(36, 24, 24, gpu=gpu)))
    assert (verdict.subtype, verdict.severity, verdict.ranks) == ("imbalance", "warning", (0,))
    assert "set_device" in verdict.fixes[0].text and "GPU 0 also holds memory of rank 1" in verdict.evidence
    assert oom_risk(held(26, 24, 24)) is None and oom_risk(held(36)) is None and oom_risk(snapshot([])) is None
    host = [RankView(rank=rank, pid=rank, rss=one << 20) for rank, one in enumerate((900, 300))]
    assert oom_risk(snapshot([], ranks=Ranks(ranks=tuple(host)))) is None, "less than a gigabyte"


def test_stacks_from_before_the_first_step_are_not_part_of_a_step():
    history = History(Target(pid=RANK, command="python train.py"))
    reads = stack("user/train.py:3 main", "user/data.py:7 read_all")
    backward = stack("user/train.py:9 main | loss.backward()", "torch/autograd/graph.py _engine_run_backward")
    seen = []
    for seconds, frames in ((994.0, reads), (996.0, reads), (998.0, backward), (1000.0, backward)):
        history.add(window(seconds, (RANK, "MainThread", True, frames, 40)))
        stacks = aggregate(history, Tick(time=seconds, wall=0.0)).stacks
        seen.append({line.line: line.share for line in stacks.lines})
    assert seen == [{7: 1.0}, {7: 1.0}, {9: 1.0}, {9: 1.0}]
