"""input-bound: too few workers, workers that rest, what a gain is measured against, and waits that come and go."""

import msgspec
import pytest
from judgements import fired, level
from snapshot_builder import WORKER, constant, host, line, loaders, process, snapshot, step, steps, with_fields

from aitop.diagnosis.causes import between_steps, computing, input_bound, preprocessing
from aitop.diagnosis.causes.input_bound import FIRST_TIME, PASSED, STARVED, Wait, why_transient
from aitop.diagnosis.evidence import NO_LINES
from aitop.model.serving import Serving
from aitop.model.snapshot import Phases, ProcessStacks
from aitop.model.verdict import Setting

WORKERS = [line("__getitem__", 0.9, pid=pid) for pid in (WORKER, WORKER + 1)]
LOADS = line("__getitem__", 0.4, phase="data_wait")


def said(seen):
    return fired(input_bound.judge(seen))


def without_hook(*shares, wait=0.4, **fields):
    """A loader's wait in these shares of the windows of stacks, of a hundred samples each."""
    phases = Phases(data_wait=wait, forward=1.0 - wait)
    loads = msgspec.structs.replace(LOADS, share=wait, by_window=tuple(round(100 * share) for share in shares))
    others = fields.pop("others", [])
    seen = snapshot(phases=phases, lines=[loads, *others], **fields)
    rank, *workers = seen.stacks.processes
    rank = msgspec.structs.replace(rank, by_window=(100,) * len(shares))
    return with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, processes=(rank, *workers)))


def past(seen, share, *, in_loader):
    return why_transient(seen, Wait("loader" if in_loader else "own code", NO_LINES, share)) == PASSED


def test_a_wait_that_ended_and_did_not_come_back_is_told_as_past():
    verdict = said(without_hook(0.8, 0.7, 0.8, 0.05, 0.03))
    assert verdict.severity == "info"
    assert PASSED in verdict.evidence


@pytest.mark.parametrize("shares", [(0.4, 0.5), (0.4, 0.5, 0.3), (0.6, 0.5, 0.5, 0.05)])
def test_a_wait_seen_in_few_windows_is_too_little_to_tell_it_from_a_start(shares):
    verdict = said(without_hook(*shares))
    assert verdict.severity == "info"
    assert FIRST_TIME in verdict.evidence


def test_waiting_for_loader_workers_is_told_at_once():
    seen = without_hook(0.4, 0.5, workers=2, host=host(2, worker_cpu=1.0), others=WORKERS)
    assert said(seen).severity != "info"


def test_a_thread_of_the_dataset_makes_what_the_stepping_thread_waits_for_below_its_loader():
    """A DataLoader without workers: its dataset takes batches from a thread of its own. Another thread only sleeps."""
    records = [step(i, 0.1, data_wait=0.04, forward=0.06) for i in range(40)]
    waits = line(
        "get", 0.4, phase="data_wait", activity="wait-lock", number=29, via=[("main", 8, "for x in data:")], callers=1
    )
    reader = [
        line("put", 0.92, activity="sleep", number=18, thread="reader"),
        line("read", 0.05, activity="native", number=31, thread="reader"),
    ]
    watches = line("watch", 1.0, activity="sleep", number=60, thread="watch")
    forward = line("model", 0.6, phase="forward", activity="native", number=9)
    verdict = said(snapshot(records, lines=[waits, forward, *reader, watches]))
    assert (verdict.subtype, verdict.where[0].line) == ("workers", 18)
    assert any("1 thread of the run's own" in text for text in verdict.evidence)


def test_workers_of_other_ranks_and_of_other_loaders_do_not_feed_this_step():
    records = [step(i, 0.1, data_wait=0.08, forward=0.02, queue_ready=0) for i in range(40)]
    own = [process(WORKER + index, "loader-worker", rank=index // 2, cpu=1.0) for index in range(4)]
    machine = host(busy=(0.2,) * 8)
    machine = msgspec.structs.replace(machine, processes=(process(rank=0, cpu=1.0), process(101, rank=1), *own))
    lines = [msgspec.structs.replace(LOADS, share=0.8), *(line("__getitem__", 0.9, pid=one.pid) for one in own)]
    verdict = said(snapshot(records, lines=lines, workers=4, host=machine, series={"workers_cpu": constant(3.6)}))
    assert any("at 90 % of a core each" in evidence for evidence in verdict.evidence), "four work, two of them for us"
    verdict = said(snapshot(records, lines=lines, workers=4, host=machine))
    assert next(fix.setting.current for fix in verdict.fixes if fix.setting) == 2
    verdict = said(snapshot(records, lines=lines, workers=4, host=machine, facts=loaders(1)))
    assert next(fix.setting.current for fix in verdict.fixes if fix.setting) == 1


def test_between_two_epochs_the_number_of_workers_is_not_known():
    waits = msgspec.structs.replace(LOADS, share=0.8, activity="wait-queue")
    lines = [waits, *(line("__getitem__", 0.9, pid=WORKER + index) for index in range(2))]
    shares = Phases(data_wait=0.8, forward=0.2, outside=0.0)
    seen = snapshot(phases=shares, lines=lines, workers=2, host=host(0), series={"workers_cpu": constant(1.7)})
    assert "worker processes" in said(seen).evidence
    living = msgspec.structs.replace(seen, host=host(2))
    assert any(sentence.startswith("2 workers at 85 % of a core each, 90 %") for sentence in said(living).evidence)


@pytest.mark.parametrize("told", [2, None])
def test_workers_of_which_no_stacks_were_seen_show_in_the_wait_for_their_queue(told):
    records = [step(i, 0.1, data_wait=0.08, forward=0.02) for i in range(40)]
    fields = {"facts": loaders(told)} if told is not None else {}
    verdict = said(snapshot(records, lines=[line("train", 0.8, phase="data_wait", activity="wait-queue")], **fields))
    assert verdict.where[0].function == "train", "where a step waits, until those who make the data were looked at"
    assert not any("num_workers=0" in why for why in verdict.evidence)
    assert not any(fix.setting == Setting(name="num_workers", to=1, current=0) for fix in verdict.fixes)
    assert any("no stacks were seen" in why for why in verdict.evidence)


@pytest.mark.parametrize(("late", "expected"), [(0.06, False), (0.0, True)])
def test_measured_steps_tell_whether_the_wait_for_data_is_over(late, expected):
    records = [step(i, 0.1, forward=0.03, backward=0.01, data_wait=0.06) for i in range(40)]
    records += [step(i, 0.1, forward=0.09, backward=0.01, data_wait=late) for i in range(40, 80)]
    assert (past(snapshot(records), 0.3, in_loader=True)) is expected


def test_nothing_is_said_to_be_over_where_no_window_was_kept():
    seen = snapshot(phases=Phases(data_wait=0.5, forward=0.5), lines=[LOADS])
    assert why_transient(seen, Wait("own code", NO_LINES, 0.5)) is None


def test_a_wait_for_a_loader_is_past_although_other_host_time_goes_on():
    records = [step(i, 0.1, forward=0.05, backward=0.02, data_wait=0.02) for i in range(20)]
    records += [step(i, 0.1, forward=0.07, backward=0.02) for i in range(20, 80)]
    assert past(snapshot(records), 0.05, in_loader=True)
    assert not past(snapshot(records), 0.05, in_loader=False)


@pytest.mark.parametrize(
    ("share", "delay", "severity"), [(0.2, 0.4, "info"), (0.2, 0.1, "warning"), (0.6, 0.4, "warning")]
)
def test_workers_that_others_starve_may_keep_up_when_left_alone(share, delay, severity):
    """A core and a half of two are used by others."""
    records = [step(i, 0.1, data_wait=0.1 * share, forward=0.1 - 0.1 * share, queue_ready=0) for i in range(40)]
    seen = snapshot(
        records,
        lines=[LOADS],
        workers=1,
        host=host(1, worker_cpu=0.2, main_cpu=0.3, busy=(1.0, 1.0)),
        series={"run_delay": constant(delay), "cores_wanted": constant(1.5)},
    )
    verdict = said(seen)
    assert verdict.severity == severity
    assert (STARVED in verdict.evidence) == (severity == "info")


RUNS = line("main", 0.1, phase="forward", activity="native", number=20)


def inference(*lines, **fields):
    records = steps(60, seconds=0.05, kind="forward", forward=0.005, forwards=1, samples=8)
    return snapshot(records, lines=[*lines, RUNS], kind="inference", **fields)


@pytest.mark.parametrize("activity", ["wait-network", "wait-queue", "wait-lock", "wait", "sleep"])
def test_a_server_that_waits_to_be_given_a_request_does_not_wait_for_data(activity):
    seen = inference(line("main", 0.9, activity=activity, number=19, position="before"))
    for judge in (input_bound.judge, between_steps.host_io, preprocessing.judge):
        assert level(judge(seen)) < 0.05


def test_a_server_at_leisure_is_told_that_nothing_holds_it_up():
    finding = computing.compute_bound(inference(line("main", 0.9, activity="wait-network", number=19)))
    assert finding.level >= 0.5 and fired(finding).severity == "info" and finding.verdict.confidence <= 0.5
    assert finding.verdict.title == "90 % of the time is waiting for requests, or for a batch of them to fill"
    served = inference(
        line("main", 0.9, activity="wait-network", number=19), serving=Serving(basis="hook", concurrency=0.1)
    )
    assert "nothing holds this run up" in computing.compute_bound(served).verdict.title, "hardly any is under way"
    asks = line("main", 0.9, activity="wait-network", work="network", number=19)
    assert computing.compute_bound(inference(asks)).level < 0.2, "who asks for data does not rest"


def test_inference_that_asks_a_service_for_its_input_waits_for_data():
    asks = line("main", 0.8, activity="wait-network", work="network", number=19, position="before")
    verdict = said(inference(asks))
    assert (verdict.subtype, verdict.where[0].line) == ("storage", 19)


def test_a_gain_that_hangs_on_what_is_hardly_left_of_a_step_has_a_wide_range():
    makes = line("__getitem__", 0.95, pid=WORKER, phase="data_wait")

    def width(wait):
        lines = [line("main", wait / 0.1, phase="data_wait", activity="wait-queue", number=40), makes]
        seen = snapshot(
            steps(60, data_wait=wait, forward=0.09 - wait, queue_ready=0),
            lines=lines,
            workers=1,
            facts=loaders(1),
            host=host(1, worker_cpu=1.0, busy=(0.6, 0.6)),
        )
        low, high = said(seen).speedup_range
        return high / low

    assert width(0.089) > 2 * width(0.05)


def test_sleeping_workers_are_too_few():
    waits = line("main", 0.7, phase="data_wait", activity="wait-queue", number=40)
    seen = snapshot(
        steps(seconds=0.1, data_wait=0.08, forward=0.01, backward=0.01, queue_ready=0, cpu=0.02),
        lines=[waits, *WORKERS],
        workers=2,
        host=host(2, worker_cpu=0.02, busy=(0.5, 0.5)),
        series={"workers_cpu": constant(0.04)},
        facts=loaders(2),
    )
    verdict = said(seen)
    assert (verdict.subtype, verdict.severity) == ("workers", "critical")
    assert verdict.share == pytest.approx(0.8, abs=0.01)
    assert verdict.speedup == pytest.approx(5.0, rel=0.02)
    assert (verdict.where[0].function, verdict.where[0].line) == ("__getitem__", 10)
    assert verdict.fixes[0].text == "num_workers 2 → 12"
    assert verdict.fixes[0].setting == Setting(name="num_workers", to=12, current=2)


@pytest.mark.parametrize("measured", [True, False])
def test_taking_ready_batches_from_idle_workers_is_no_wait_that_workers_could_end(measured):
    def seen(at_work):
        makes = line("__getitem__", at_work, pid=WORKER)
        fields = {"workers": 1, "host": host(1, worker_cpu=at_work)}
        if measured:
            records = steps(seconds=0.1, data_wait=0.03, forward=0.05, queue_ready=2)
            return snapshot(records, lines=[makes], **fields)
        waits = line("main", 0.3, phase="data_wait", activity="wait-queue")
        return snapshot(phases=Phases(data_wait=0.3, forward=0.5, backward=0.2), lines=[makes, waits], **fields)

    verdict = said(seen(0.04))
    assert (verdict.severity, verdict.subtype) == ("info", "workers")
    assert verdict.fixes[0].setting == Setting(name="num_workers", to=0, current=1)
    assert 1.05 < verdict.fixes[0].speedup < 1 / 0.7, "making a batch takes time without workers, too"
    # Workers that rest for 60 % of the time make in the rest more than the step waits for.
    assert not measured or level(input_bound.judge(seen(0.4))) < input_bound.judge.leave


def test_how_often_resting_workers_had_nothing_ready_is_only_a_guess_where_the_queue_was_not_measured():
    def severity(at_work):
        makes = line("__getitem__", at_work, pid=WORKER)
        waits = line("main", 0.5, phase="data_wait", activity="wait-queue")
        phases = Phases(data_wait=0.5, forward=0.3, backward=0.2)
        return said(snapshot(phases=phases, lines=[makes, waits], workers=1, host=host(1, worker_cpu=at_work))).severity

    assert severity(0.45) == "info"
    assert severity(0.9) != "info"


def test_workers_without_a_core_to_run_on_are_no_fix():
    loading = line("__getitem__", 0.8, phase="data_wait", text="value = decode(raw)")
    waiting = steps(seconds=0.1, data_wait=0.08, forward=0.02, cpu=0.1)
    verdict = said(snapshot(waiting, lines=[loading], host=host(busy=(1.0, 1.0))))
    assert verdict.subtype == "transform"
    assert [fix.text.split()[0] for fix in verdict.fixes] == ["make"]


def test_taking_ready_batches_does_not_hide_that_workers_are_started_anew():
    def one(index):
        begins = index % 25 == 0
        wait = {"loader_start": 0.01, "data_wait": 0.06, "queue_ready": 0} if begins else {"data_wait": 0.0025}
        return step(index, 0.1 if begins else 0.016, **{"queue_ready": 2, "cpu": 0.01, **wait})

    for persistent in (False, True):
        facts = loaders(2, persistent=persistent)
        seen = snapshot([one(index) for index in range(100)], workers=2, facts=facts, host=host(2, worker_cpu=0.1))
        # Workers that stay are asked for the next epoch's batches: that takes time, too, but starts none.
        assert (said(seen).subtype == "respawn") != persistent


def test_workers_that_started_once_are_information_about_the_next_pass():
    def one(index):
        wait = {"loader_start": 3.0, "data_wait": 6.0, "queue_ready": 0} if index == 8 else {"data_wait": 0.001}
        return step(index, 6.5 if index == 8 else 0.5, **{"queue_ready": 2, "cpu": 0.4, **wait})

    facts = loaders(2, persistent=False)
    seen = snapshot([one(index) for index in range(20)], workers=2, facts=facts, host=host(2, worker_cpu=0.1))
    verdict = said(seen)
    assert (verdict.subtype, verdict.severity) == ("respawn", "info")
    assert any(each.startswith("the loader was started once in 20 steps") for each in verdict.evidence)
    assert any("seen only once" in each for each in verdict.evidence)


def test_without_the_hook_workers_that_end_again_and_again_tell_why_batches_are_late():
    def said_of(*shares, generations):
        seen = without_hook(*shares, workers=2, host=host(2, worker_cpu=0.4))
        rank, *_ = seen.stacks.processes
        ended = [
            ProcessStacks(
                pid=900 + 10 * generation + number,
                role="loader-worker",
                samples=20,
                phases=Phases(),
                by_window=tuple(20 * (window == generation) for window in range(len(shares))),
                idle=0.6,
            )
            for generation in generations
            for number in range(2)
        ]
        return said(with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, processes=(rank, *ended))))

    verdict = said_of(0.4, 0.5, 0.4, 0.4, generations=(0, 2))
    assert (verdict.subtype, verdict.share) == ("respawn", pytest.approx(0.4))
    assert "4 of them ended meanwhile" in " ".join(verdict.evidence)
    # One loader that ended is that of an earlier epoch, or the wait is elsewhere.
    assert said_of(0.4, 0.5, 0.4, 0.4, generations=(0,)).subtype != "respawn"
    assert said_of(0.1, 0.1, 0.1, 0.9, 0.9, generations=(0, 1)).subtype != "respawn"


def test_the_line_of_the_worker_that_all_wait_for_is_named():
    """A step waits for more than half of its time, while two of three batches lie ready."""
    records = [
        record
        for _ in range(15)
        for record in (
            *steps(1, 0.1, data_wait=0.08, forward=0.01, backward=0.01, queue_ready=2),
            *steps(2, 0.03, data_wait=0.001, forward=0.015, backward=0.014, queue_ready=4),
        )
    ]
    slow = line("read_csv", 0.9, pid=WORKER, phase="data_wait", number=41, file="/x/data.py")
    cores = {f"worker{WORKER + index}.cpu": constant(used, 8) for index, used in enumerate((0.95, 0.06, 0.05))}
    verdict = said(snapshot(records, lines=[slow], workers=3, host=host(3, worker_cpu=0.35), series=cores))
    assert (verdict.subtype, verdict.where[0].file, verdict.where[0].line) == ("transform", "/x/data.py", 41)
    assert f"worker {WORKER} is at work 95 % of the time, the other 2 6 % at most" in " ".join(verdict.evidence)
    assert verdict.fixes[0].speedup == pytest.approx(1 / 0.49, abs=0.05)
    assert 1.4 < verdict.fixes[1].speedup < verdict.fixes[0].speedup


def test_threads_and_processes_that_make_batches_for_a_queue():
    get = line("main", 0.7, number=60, activity="wait-queue")
    computes = line("main", 0.2, phase="forward", activity="native", number=61)
    records = steps(seconds=0.1, forward=0.015, backward=0.015, cpu=0.03)
    reader = {"activity": "wait-network", "number": 50}
    readers = [line("download", 0.95, thread=f"reader-{index}", **reader) for index in range(2)]
    verdict = said(snapshot(records, lines=[get, computes, *readers]))
    assert verdict.subtype == "storage" and any(fix.text.startswith("2 → ") for fix in verdict.fixes)
    assert any("waiting for the network" in sentence for sentence in verdict.evidence)
    made = line("__getitem__", 0.95, pid=WORKER)
    records = steps(seconds=0.1, forward=0.05, data_wait=0.0)
    assert said(snapshot(records, lines=[made, get], workers=1)).where[0].pid == WORKER
    torn = msgspec.structs.replace(line("odd", 1.0, thread="Thread-1"), samples=1)
    assert said(snapshot(records, lines=[torn, made, get], workers=1)).where[0].pid == WORKER, "one sample may be torn"


def test_workers_that_read_files_wait_for_storage():
    waits = line("main", 0.7, phase="data_wait", activity="wait-queue", number=40)
    reads = [line("__getitem__", 0.9, pid=pid, activity="wait-disk", work="file") for pid in (WORKER, WORKER + 1)]
    records = steps(seconds=0.1, data_wait=0.08, forward=0.01, backward=0.01, queue_ready=0, cpu=0.02)
    seen = snapshot(
        records,
        lines=[waits, *reads],
        workers=2,
        host=host(2, worker_cpu=0.05),
        facts=loaders(2),
        series={"workers_cpu": constant(0.1)},
    )
    assert said(seen).subtype == "storage"
