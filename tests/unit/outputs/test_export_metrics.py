"""Metric families of recorded jobs: labels, what is left out, counters that only grow, series that end."""

from __future__ import annotations

import msgspec
import pytest
from exported_job import JOB
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from recorded_runs import end_of_recording, snapshots_of

from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.job import Job
from aitop.model.ranks import Ranks, RankView
from aitop.model.serving import RequestRecord, Serving
from aitop.model.snapshot import Phases, Snapshot, Steps, Target
from aitop.model.source import SourceStatus
from aitop.model.steps import StepRecord
from aitop.model.verdict import Diagnosis, Verdict, Where
from aitop.outputs.prometheus.families import JobsCollector, WatchedJob


@pytest.fixture(scope="module")
def slow_loader() -> tuple[Snapshot, ...]:
    return snapshots_of("slow-loader")


def exported(*snapshots: Snapshot, job: Job = JOB) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What a scrape reads after these Snapshots: labels (the empty ones left out) and value, by name of the sample."""
    collector = JobsCollector("n1")
    for snapshot in snapshots:
        collector.take(job, snapshot)
    return scraped(collector)


def scraped(collector: JobsCollector) -> dict[str, list[tuple[dict[str, str], float]]]:
    registry = CollectorRegistry()
    registry.register(collector)
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if value}
            samples.setdefault(sample.name, []).append((labels, sample.value))
    return samples


def test_two_jobs_of_one_name_have_series_of_their_own(slow_loader):
    """A batch script may start two programs, and a pod too: both have the script's number, and rank 0."""
    collector = JobsCollector("n1")
    for pid in (7, 8):
        processes = tuple(
            msgspec.structs.replace(process, pid=process.pid + pid) for process in slow_loader[-1].host.processes
        )
        host = msgspec.structs.replace(slow_loader[-1].host, processes=processes)
        collector.take(msgspec.structs.replace(JOB, pid=pid), msgspec.structs.replace(slow_loader[-1], host=host))
    for name, samples in scraped(collector).items():
        labels = [tuple(sorted(labels.items())) for labels, _ in samples]
        assert len(set(labels)) == len(labels), name
    assert len(scraped(collector)["aitop_job_info"]) == 1


@pytest.mark.parametrize(("base", "share"), [("step", 0.9), ("request", None), ("tail", None)])
def test_a_share_of_requests_is_no_time_of_a_device(slow_loader, base, share):
    verdict = Verdict(id="queue-bound", severity="critical", title="…", confidence=0.9, share=0.9, base=base)
    devices = GpuSample(time=1.0, devices=(GpuDevice(index=0, uuid="GPU-1", mine=True),))
    seen = exported(msgspec.structs.replace(slow_loader[-1], diagnosis=Diagnosis(verdicts=(verdict,)), gpu=devices))
    assert [value for _, value in seen.get("aitop_wasted_gpu_ratio", [])] == ([share] if share else [])
    assert ("aitop_verdict_share" in seen) is (share is not None)


def test_the_first_verdict_has_its_line_share_and_gain(slow_loader):
    primary = slow_loader[-1].diagnosis.primary
    seen = exported(slow_loader[-1])
    (labels, _) = next(pair for pair in seen["aitop_verdict_order"] if pair[1] == 1)
    assert (labels["verdict"], labels["subtype"], labels["severity"]) == ("input-bound", primary.subtype, "critical")
    assert (labels["file"], labels["line"]) == (primary.where[0].file, str(primary.where[0].line))
    assert (labels["node"], labels["job"]) == ("n1", "4711")
    assert dict(labels) in [other for other, share in seen["aitop_verdict_share"] if share == primary.share]
    assert [value for other, value in seen["aitop_verdict_speedup"] if other["verdict"] == "input-bound"] == [
        primary.speedup
    ]


def test_only_the_first_verdict_says_where(slow_loader):
    where = (Where(pid=7, file="/home/ada/train.py", line=3, function="f"),)
    verdicts = tuple(
        Verdict(id=name, severity="warning", title="t", confidence=0.9, share=0.3, where=where)
        for name in ("input-bound", "gc-stall")
    )
    seen = exported(msgspec.structs.replace(slow_loader[-1], diagnosis=Diagnosis(verdicts=verdicts)))
    assert [labels.get("line") for labels, _ in seen["aitop_verdict_order"]] == ["3", None]


def test_no_argument_and_no_source_text_is_in_any_label(slow_loader):
    texts = {where.text for verdict in slow_loader[-1].diagnosis.verdicts for where in verdict.where if where.text}
    labels = [labels for samples in exported(*slow_loader).values() for labels, _ in samples]
    values = {value for each in labels for value in each.values()}
    assert texts and slow_loader[-1].target.command not in values
    assert not any(text in value for text in texts for value in values)


def test_what_is_not_measured_is_left_out(slow_loader):
    assert set(exported(bare())) == {"aitop_up", "aitop_job_info", "aitop_jobs"}
    assert "aitop_wasted_gpu_ratio" not in exported(slow_loader[-1]), "no device"
    leak = Verdict(id="memory-leak", severity="critical", title="t", confidence=0.9)
    seen = exported(bare(diagnosis=Diagnosis(verdicts=(leak,))))
    assert [value for _, value in seen["aitop_verdict_order"]] == [1.0]
    assert {"aitop_verdict_share", "aitop_verdict_speedup"}.isdisjoint(seen)


def bare(**fields) -> Snapshot:
    process = ProcessSample(pid=7, ppid=1, started=1.0, role="rank", name="python", command="python train.py --key x")
    host = HostSample(time=1.0, processes=(process,), machine=MachineSample(cores=2))
    made = {"host": host, "target": Target(pid=7, command="python train.py --key x"), **fields}
    return Snapshot(tick=1, time=1.0, wall=1.0, window=1.0, **made)


def test_stalled_is_known_from_the_second_look_on():
    process = ProcessSample(pid=7, ppid=1, started=1.0, role="rank", name="python", command="x", cpu=0.0)
    host = HostSample(time=1.0, processes=(process,), machine=MachineSample(cores=2))
    assert exported(bare(host=host))["aitop_stalled"] == [({"node": "n1", "job": "4711"}, 0.0)]
    hang = Verdict(id="hang", severity="critical", title="t", confidence=0.9, share=1.0)
    assert exported(bare(host=host, diagnosis=Diagnosis(verdicts=(hang,))))["aitop_stalled"][0][1] == 1.0


def test_a_job_whose_stacks_are_refused_is_not_up():
    status = SourceStatus(time=1.0, source="stacks", state="denied", reason="it is not yours")
    assert exported(bare(sources={"stacks": status}))["aitop_up"][0][1] == 0.0
    hooked = {"stacks": status, "hook": SourceStatus(time=1.0, source="hook", state="ok")}
    assert exported(bare(sources=hooked))["aitop_up"][0][1] == 1.0


def test_labels_from_a_hostile_job_come_through_whole():
    name = 'a"b\\c\nd{x="y"} 1\u202e\ud800' + "z" * 1000
    where = (Where(pid=7, file=name, line=3, function="f"),)
    verdict = Verdict(id="input-bound", severity="warning", title="t", confidence=0.9, share=0.3, where=where)
    job = Job(pid=7, node=name, id=name, user=name, pod=name)
    seen = exported(bare(diagnosis=Diagnosis(verdicts=(verdict,))), job=job)
    ((labels, value),) = seen["aitop_verdict_share"]
    assert value == 0.3
    assert labels["file"].startswith('a"b\\c d{x="y"} 1··z')
    assert max(map(len, labels.values())) <= 256
    assert len(seen["aitop_job_info"]) == 1


def stepped(first: int, last: int, pid: int = 7, count: int | None = None) -> Snapshot:
    """A Snapshot whose window has the steps from `first` to `last`, each of 20 ms."""
    records = tuple(StepRecord(index=i, end=i * 0.02, seconds=0.02) for i in range(first, last + 1))
    steps = Steps(basis="hook", phases=Phases(), pid=pid, count=last if count is None else count, recent=records)
    process = ProcessSample(pid=pid, ppid=1, started=1.0, role="rank", name="python", command="x", rank=0)
    host = HostSample(time=1.0, processes=(process,), machine=MachineSample(cores=2))
    return bare(steps=steps, host=host)


def test_steps_are_counted_once_though_windows_overlap():
    seen = exported(stepped(1, 50), stepped(20, 80), stepped(60, 90))
    ((labels, units),) = seen["aitop_units_total"]
    assert (labels["kind"], labels["rank"], units) == ("step", "0", 40.0)
    assert seen["aitop_unit_seconds_count"][0][1] == 90.0
    assert seen["aitop_unit_seconds_sum"][0][1] == pytest.approx(1.8)
    buckets = {labels["le"]: value for labels, value in seen["aitop_unit_seconds_bucket"]}
    assert (buckets["0.01"], buckets["0.025"], buckets["+Inf"]) == (0.0, 90.0, 90.0)


def test_no_step_is_counted_anew_when_another_rank_leads():
    """The hook had counted 5000 steps before the exporter came, which has seen ten of them."""

    def led_by(leads: int, last: int) -> Snapshot:
        ranks = tuple(RankView(pid=pid, rank=rank, step=last) for rank, pid in enumerate((7, 8)))
        led = stepped(last - 9, last, pid=leads, count=10)
        (process,) = led.host.processes
        processes = tuple(msgspec.structs.replace(process, pid=view.pid, rank=view.rank) for view in ranks)
        host = msgspec.structs.replace(led.host, processes=processes)
        return msgspec.structs.replace(led, ranks=Ranks(ranks=ranks), host=host)

    seen = exported(led_by(7, 5010), led_by(8, 5020), led_by(7, 5030))
    assert {labels["rank"]: value for labels, value in seen["aitop_units_total"]} == {"0": 20.0, "1": 20.0}


def test_counters_go_on_when_a_rank_is_started_anew():
    collector = JobsCollector("n1")
    before = 0.0
    for snapshot in (
        stepped(1, 50),
        stepped(1, 80),
        stepped(1, 5, pid=8),
        stepped(1, 30, pid=8),
        stepped(1, 10, pid=8),
    ):
        collector.take(JOB, snapshot)
        seen = scraped(collector)
        total, count = seen["aitop_units_total"][0][1], seen["aitop_unit_seconds_count"][0][1]
        assert total >= before
        before = total
    assert (total, count) == (55.0, 110.0)


@pytest.mark.parametrize("name", ["slow-loader", "serve", "straggler", "hang", "simulated-gpu", "healthy"])
def test_no_counter_of_a_recording_ever_falls_and_no_series_is_there_twice(name):
    collector = JobsCollector("n1")
    before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for snapshot in snapshots_of(name, every=3):
        collector.take(JOB, snapshot)
        now = {}
        for family in collector.collect():
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in now
                now[key] = sample.value
        for key, value in now.items():
            if key[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert value >= before.get(key, 0.0)
        before = now


def test_ranks_have_series_of_their_own_and_phases_add_up():
    end = end_of_recording("straggler")
    seen = exported(end)
    ranks = {view.rank for view in end.ranks.ranks}
    assert {labels["rank"] for labels, _ in seen["aitop_up"]} == {str(rank) for rank in ranks}
    assert len({labels["pid"] for labels, _ in seen["aitop_up"]}) == len(ranks)
    for rank in ranks:
        shares = {labels["phase"]: value for labels, value in seen["aitop_phase_ratio"] if labels["rank"] == str(rank)}
        assert sum(shares.values()) == pytest.approx(1.0, abs=0.02)
    late = next(verdict for verdict in end.diagnosis.verdicts if verdict.id == "straggler")
    named = {labels["rank"] for labels, _ in seen["aitop_verdict_share"] if labels["verdict"] == "straggler"}
    assert named == {str(rank) for rank in late.ranks}
    waits = {labels["rank"]: value for labels, value in seen["aitop_phase_ratio"] if labels["phase"] == "communication"}
    assert min(waits, key=waits.__getitem__) == str(late.ranks[0])


def test_a_device_carries_its_uuid_and_what_of_it_is_lost():
    snapshot = end_of_recording("simulated-gpu")
    seen = exported(snapshot)
    mine = {device.uuid for device in snapshot.gpu.devices if device.mine}
    assert mine
    assert {labels["UUID"] for labels, _ in seen["aitop_wasted_gpu_ratio"]} == mine
    primary = snapshot.diagnosis.primary
    lost = 0.0 if primary.severity == "info" else primary.share
    assert {value for _, value in seen["aitop_wasted_gpu_ratio"]} == {lost}


def test_a_device_of_several_processes_is_lost_once():
    snapshot = end_of_recording("simulated-gpu")
    (process, *_) = (process for process in snapshot.host.processes if process.role == "rank")
    peers = tuple(msgspec.structs.replace(process, pid=process.pid + n, rank=n) for n in range(1, 3))
    host = msgspec.structs.replace(snapshot.host, processes=(*snapshot.host.processes, *peers))
    seen = exported(msgspec.structs.replace(snapshot, host=host))
    assert len(seen["aitop_up"]) == 3
    assert len(seen["aitop_wasted_gpu_ratio"]) == len({labels["UUID"] for labels, _ in seen["aitop_wasted_gpu_ratio"]})


def test_requests_of_a_server_are_counted_and_timed():
    seen = exported(*snapshots_of("serve", every=3))
    kinds = {labels["kind"]: value for labels, value in seen["aitop_units_total"]}
    assert kinds["request"] == seen["aitop_request_seconds_count"][0][1] > 0


def test_a_request_of_one_of_several_workers_is_counted_once():
    """Which of them has answered most changes from one Snapshot to the next, and one may rest."""

    def answered(first: int, last: int, busiest: int) -> Snapshot:
        requests = tuple(
            RequestRecord(end=0.1 * number, seconds=0.05, pid=7 + number % 2) for number in range(first, last)
        )
        serving = Serving(basis="hook", pid=busiest, requests=requests)
        return bare(engine="gunicorn", serving=serving, working=(busiest,))

    seen = exported(answered(1, 41, 7), answered(11, 51, 8), answered(21, 61, 7))
    counts = {labels["rank"]: value for labels, value in seen["aitop_request_seconds_count"]}
    assert counts == {"pid7": 30.0, "pid8": 30.0}


def test_a_process_keeps_its_counters_when_its_label_changes():
    def answered(first: int, last: int, *working: int) -> Snapshot:
        requests = tuple(RequestRecord(end=0.1 * number, seconds=0.05) for number in range(first, last))
        return bare(engine="vllm", serving=Serving(basis="hook", pid=7, requests=requests), working=working)

    alone, beside, again = answered(1, 41, 7), answered(11, 51, 7, 8), answered(21, 61, 7)
    for snapshots, label, count in (((alone, beside), "pid7", 50.0), ((alone, beside, again), None, 60.0)):
        counts = {labels.get("rank"): value for labels, value in exported(*snapshots)["aitop_request_seconds_count"]}
        assert counts == {label: count}


def test_the_counters_of_a_process_do_not_go_to_the_one_that_takes_its_label():
    def ranks(*pids: int) -> Snapshot:
        views = tuple(RankView(pid=pid, rank=rank) for rank, pid in enumerate(pids) if pid)
        return bare(engine="vllm", ranks=Ranks(ranks=views), working=tuple(pid for pid in pids if pid))

    watched = WatchedJob(JOB)
    watched.take(ranks(7, 8))
    seven, eight = watched.counters["0"], watched.counters["1"]
    watched.take(ranks(9, 7))
    assert watched.counters["1"] is seven
    assert watched.counters["0"] not in (seven, eight)


def test_the_series_of_a_job_that_has_ended_are_gone(slow_loader):
    collector = JobsCollector("n1")
    collector.take(JOB, slow_loader[-1])
    other = msgspec.structs.replace(JOB, pid=8, id="4712")
    collector.close(other)
    seen = scraped(collector)
    assert {labels["job"] for labels, _ in seen["aitop_up"]} == {"4711", "4712"}
    assert [value for labels, value in seen["aitop_up"] if labels["job"] == "4712"] == [0.0]
    assert seen["aitop_jobs"] == [({"node": "n1"}, 2.0)]
    collector.drop(7)
    collector.drop(8)
    assert scraped(collector) == {"aitop_jobs": [({"node": "n1"}, 0.0)]}


def test_series_of_ranks_that_are_gone_end_too():
    end = end_of_recording("straggler")
    collector = JobsCollector("n1")
    collector.take(JOB, end)
    host = end.host
    left = tuple(process for process in host.processes if process.rank != 1)
    collector.take(JOB, msgspec.structs.replace(end, host=msgspec.structs.replace(host, processes=left)))
    assert "1" not in {labels["rank"] for labels, _ in scraped(collector)["aitop_phase_ratio"]}
