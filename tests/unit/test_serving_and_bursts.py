"""Servers at leisure, batches fetched in the step's own line, queues drained by bursts, and whose line a batch is."""

import pytest
from aitop.diagnosis.composition import composed
from aitop.engine.activity import activity_of
from judgements import fired
from snapshot_builder import RANK, WORKER, host, line, loaders, snapshot, step, steps
from stack_maker import stack

from aitop.diagnosis.causes import between_steps, computing, preprocessing, underbatched
from aitop.diagnosis.causes import input as input_bound
from aitop.diagnosis.rule import Abstention, Finding
from aitop.model.snapshot import Phases
from aitop.model.verdict import Setting, Verdict, Where

RUNS = line("main", 0.1, phase="forward", number=20, text="y = model(data)")
TRAINS = (
    line("train", 0.2, phase="forward", number=30, text="loss = net(x)", via=(("main", 50, "train(grab(i))"),)),
    line("train", 0.2, phase="backward", number=31, text="loss.backward()", via=(("main", 50, "train(grab(i))"),)),
)


def inference(*lines, **fields):
    records = steps(60, seconds=0.05, kind="forward", forward=0.005, forwards=1, samples=8)
    return snapshot(records, lines=[*lines, RUNS], kind="inference", **fields)


# servers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "activity"),
    [
        ("data = conn.recv()", "io-network"),
        ("data = inbox.get()", "queue"),
        ("sample, client = sock.recvfrom(65536)", "io-network"),
        ("batch = json.loads(sys.stdin.readline())", "io-file"),
        ("data = channel.poll(1.0)", "other"),
        ("time.sleep(0.01)", "sleep"),
    ],
)
def test_a_server_that_waits_to_be_given_a_request_does_not_wait_for_data(text, activity):
    waits = line("main", 0.9, activity=activity, number=19, text=text)
    seen = inference(waits)
    for judge in (input_bound.judge, between_steps.host_io, preprocessing.judge):
        finding = judge(seen)
        assert not isinstance(finding, Finding) or finding.level < 0.05


def test_a_server_at_leisure_is_told_that_nothing_holds_it_up():
    waits = line("main", 0.9, activity="wait-network", number=19, text="data = conn.recv()")
    finding = computing.compute_bound(inference(waits))
    assert finding.level >= 0.5 and fired(finding).severity == "info" and finding.verdict.confidence <= 0.5
    assert finding.verdict.title.startswith("90 % of the time is waiting for requests")
    asks = line("main", 0.9, activity="wait-network", number=19, text="rows = urlopen(url).read()")
    assert computing.compute_bound(inference(asks)).level < 0.2, "who asks for data does not rest"


def test_a_server_at_leisure_needs_no_larger_batches():
    waits = line("main", 0.9, activity="wait-queue", number=19, text="data = inbox.get()")
    assert not isinstance(underbatched.judge(inference(waits, facts=loaders(0))), Finding)


def test_inference_that_asks_a_service_for_its_input_waits_for_data():
    asks = line("main", 0.8, activity="wait-network", number=19, text="rows = urlopen(url).read()")
    verdict = fired(input_bound.judge(inference(asks)))
    assert (verdict.subtype, verdict.where[0].line) == ("storage", 19)


# where the step is made by one call -------------------------------------------------------------------------------


def grab(text="with urlopen(url) as reply:", calls="train(grab(i))", name="grab"):
    return line(name, 0.6, activity="wait-network", number=10, text=text, via=(("main", 50, calls),))


def test_what_is_called_as_an_argument_of_the_step_feeds_it():
    seen = snapshot(phases=Phases(forward=0.2, backward=0.2), lines=[grab(), *TRAINS])
    assert fired(input_bound.judge(seen)).where[0].line == 10
    assert not isinstance(between_steps.host_io(seen), Finding)


def test_what_a_library_calls_back_in_the_same_line_does_not():
    called_back = grab(calls="trainer.fit(model)", name="on_step_end")
    inside = [line("step", 0.2, phase=p, number=30, via=(("main", 50, "trainer.fit(model)"),)) for p in ("forward",)]
    inside += [line("step", 0.2, phase="backward", number=31, via=(("main", 50, "trainer.fit(model)"),))]
    seen = snapshot(phases=Phases(forward=0.2, backward=0.2), lines=[called_back, *inside])
    assert fired(between_steps.host_io(seen)).where[0].line == 10


def test_what_stands_above_the_call_of_the_step_feeds_it_whatever_its_name():
    above = line("pull", 0.6, activity="python", number=10, text="v[j] += 1", via=(("main", 49, "x = pull(i)"),))
    seen = snapshot(phases=Phases(forward=0.2, backward=0.2), lines=[above, *TRAINS])
    assert fired(input_bound.judge(seen)).where[0].line == 10


# bursts -----------------------------------------------------------------------------------------------------------


def drained(idle):
    makes = line("__getitem__", 1.0 - idle, pid=WORKER, phase="data_wait", activity="sleep", text="sleep(0.01)")
    records = steps(40, data_wait=0.06, forward=0.02, backward=0.02, queue_ready=0, cpu=0.04, backwards=8)
    return snapshot(
        records,
        lines=[makes],
        workers=1,
        facts=loaders(1, prefetch=2),
        host=host(1, worker_cpu=0.05, busy=(0.1, 0.1)),
    )


def test_workers_that_rest_while_steps_wait_are_said_to_be_drained_by_bursts():
    verdict = fired(input_bound.judge(drained(idle=0.4)))
    assert any("batches are taken in bursts" in told for told in verdict.evidence)
    fix = next(fix for fix in verdict.fixes if "prefetch_factor 2 → 16" in fix.text)
    assert fix.setting == Setting(name="prefetch_factor", to=16, current=2)
    assert fix.speedup == pytest.approx(1 / 0.6, abs=0.02), "the worker's own work is what is left"


def test_workers_that_never_rest_are_no_bursts():
    verdict = fired(input_bound.judge(drained(idle=0.05)))
    assert not any("bursts" in told for told in verdict.evidence)


# one thread makes batches and holds the lock ------------------------------------------------------------------------


def said(id_, share):
    where = (Where(pid=RANK, file="/x/train.py", line=7, function="produce"),)
    return Verdict(id=id_, severity="warning", title="t", confidence=0.8, share=share, speedup=1.5, where=where)


@pytest.mark.parametrize(("batches", "first"), [(0.5, "input-bound"), (0.2, "gil-contention")])
def test_who_waits_for_the_batch_does_not_wait_for_the_lock(batches, first):
    seen = snapshot(phases=Phases(forward=0.5))
    kept = composed([said("gil-contention", 0.6), said("input-bound", batches)], seen)
    assert [one.id for one in kept] == [first]


# saving and collating -----------------------------------------------------------------------------------------------


def test_opening_and_closing_what_is_saved_into_is_saving():
    dumps = line("keep", 0.2, phase="save", activity="native", work="save", number=12, text="pickle.dump(state, f)")
    opens = line("keep", 0.1, activity="wait-disk", work="file", number=11, text='with open(path, "wb") as f:')
    other = line("note", 0.1, activity="wait-disk", work="file", number=40, text="self.file.flush()")
    seen = snapshot(phases=Phases(forward=0.6), lines=[dumps, opens, other])
    assert fired(between_steps.checkpoint(seen)).share == pytest.approx(0.3)
    assert fired(between_steps.host_io(seen)).share == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("inner", "activity"),
    [
        ("user/data.py glue | adj[a, b] += 1.0", "collate"),
        ("user/data.py Mols.__getitem__ | total += 1", "python"),
        ("user/data.py Mols.__getitems__ | total += 1", "python"),
    ],
)
def test_a_collate_function_is_known_by_who_calls_it(inner, activity):
    fetch = "torch/utils/data/_utils/fetch.py _MapDatasetFetcher.fetch"
    assert activity_of(stack(fetch, inner)) == activity


def test_below_a_sample_of_the_data_set_nothing_collates():
    fetch = (
        "torch/utils/data/_utils/fetch.py _MapDatasetFetcher.fetch.<locals>.<listcomp>",
        "user/data.py one | n += 1",
    )
    assert activity_of(stack(*fetch)) == "python"


# too little to say --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "judge",
    [input_bound.judge, between_steps.checkpoint, between_steps.host_io, preprocessing.judge, underbatched.judge],
)
def test_a_handful_of_samples_is_too_little(judge):
    few = snapshot(
        phases=Phases(forward=0.2, data_wait=0.8),
        lines=[
            line("load", 0.5, phase="data_wait"),
            line("keep", 0.2, phase="save", activity="native", work="save"),
            line("note", 0.2, activity="wait-network", work="database"),
        ],
        main_samples=9,
        kind="inference",
    )
    assert isinstance(judge(few), Abstention)


# starting workers anew ----------------------------------------------------------------------------------------------


def test_taking_ready_batches_does_not_hide_that_workers_are_started_anew():
    def one(index):
        begins = index % 25 == 0
        wait = {"loader_start": 0.01, "data_wait": 0.06, "queue_ready": 0} if begins else {"data_wait": 0.0025}
        return step(index, 0.1 if begins else 0.016, **{"queue_ready": 2, "cpu": 0.01, **wait})

    seen = snapshot([one(index) for index in range(100)], workers=2, facts=loaders(2), host=host(2, worker_cpu=0.1))
    assert fired(input_bound.judge(seen)).subtype == "respawn"


def test_a_gain_that_hangs_on_what_is_hardly_left_of_a_step_is_not_sure():
    makes = line("__getitem__", 0.95, pid=WORKER, phase="data_wait")
    most, half = (
        fired(
            input_bound.judge(
                snapshot(
                    steps(60, data_wait=wait, forward=0.09 - wait, queue_ready=0),
                    lines=[makes],
                    workers=1,
                    facts=loaders(1),
                    host=host(1, worker_cpu=1.0, busy=(0.6, 0.6)),
                )
            )
        )
        for wait in (0.089, 0.05)
    )
    assert most.confidence <= 0.5 < half.confidence
