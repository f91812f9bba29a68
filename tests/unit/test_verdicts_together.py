"""Several verdicts at once, quiet on healthy runs, and who holds the interpreter's lock."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from judgements import 
from snapshot_builder import RANK, constant, host, line, snapshot, step, steps
from stack_maker import stack, window

from aitop.diagnosis.causes import collector
from aitop.diagnosis.composition import composed
from aitop.diagnosis.hand_written import feeding_lines
from aitop.diagnosis.judge import Judge
from aitop.diagnosis.rule import Finding
from aitop.engine.stack_digest import Digester
from aitop.engine.thread_shares import thread_shares
from aitop.model.stacks import GilHold
from aitop.model.verdict import Fix, Verdict, Where
from aitop.sources.stacks.gil import GilWatch
from aitop.sources.stacks.speedscope import ThreadSamples, parse


# several at once --------------------------------------------------------------------------------------------------


def verdict(id_, share, line_=1, severity="warning", **fields):
    where = (Where(pid=RANK, file="/x/train.py", line=line_, function="f"),)
    return Verdict(
        id=id_, severity=severity, title="t", confidence=0.8, share=share, speedup=2.0, where=where, **fields
    )


def ids(verdicts):
    return [one.id for one in verdicts]


def test_one_line_has_one_verdict():
    seen = snapshot(steps())
    growing, python = verdict("step-time-growth", 0.3, 7), verdict("python-overhead", 0.4, 7)
    assert ids(composed([python, growing], seen)) == ["step-time-growth"]
    assert ids(composed([verdict("python-overhead", 0.4, 8), growing], seen)) == ["python-overhead", "step-time-growth"]


def test_a_thread_that_stretches_all_phases_explains_a_long_one():
    stretched = [verdict("gil-contention", 0.6, 1), verdict("optimizer-bound", 0.3, 2)]
    assert ids(composed(stretched, snapshot(steps()))) == ["gil-contention"]
    assert len(composed([verdict("gil-contention", 0.1, 1), stretched[1]], snapshot(steps()))) == 2


@pytest.mark.parametrize(
    ("busy", "delay", "sure"), [((1.0, 1.0), 0.4, 0.45), ((1.0, 0.1), 0.4, 0.8), ((1.0, 1.0), 0.05, 0.8)]
)
def test_gains_on_cores_that_others_take_are_less_sure(busy, delay, sure):
    seen = snapshot(steps(), host=host(main_cpu=0.6, busy=busy), series={"run_delay": constant(delay)})
    [one] = composed([verdict("checkpoint-stall", 0.5, 1)], seen)
    assert one.confidence == sure


def test_a_few_samples_between_the_phases_are_not_all_that_was_measured_there():
    phases = {"forward": 0.02, "backward": 0.02, "optimizer": 0.01}
    held = [line("train", 0.03, text="x = torch.randn(4)"), line("train", 0.7, phase="optimizer")]
    assert feeding_lines(snapshot(steps(**phases), lines=held)).share <= 0.06
    seen = [line("load_batch", 0.4, text="rows = parse(path)"), line("train", 0.5, phase="optimizer")]
    assert feeding_lines(snapshot(steps(**phases), lines=seen)).share == pytest.approx(0.5)


def test_the_next_limit_is_told():
    first, second = composed([verdict("checkpoint-stall", 0.5, 1), verdict("eval-stall", 0.25, 2)], snapshot(steps()))
    assert first.evidence[-1] == "next limit: eval-stall, 50 % of the step that is left (both gone: 4.0×)"
    assert second.evidence == ()
    alone = msgspec.structs.replace(verdict("comm-bound", 0.3, 1), speedup=2.3)
    assert composed([alone, verdict("eval-stall", 0.1, 2)], snapshot(steps()))[0].evidence == (), "it gains more alone"


def test_what_slows_every_phase_alike_leaves_their_proportions():
    first, _ = composed([verdict("precision", 0.5, 1), verdict("eval-stall", 0.3, 2)], snapshot(steps()))
    assert first.evidence[-1] == "next limit: eval-stall, 30 % of the step that is left (both gone: 2.9×)"


def test_how_busy_a_part_of_the_device_is_leaves_no_rest_of_a_step():
    busy, stall = verdict("memory-bandwidth-bound", 0.8, 1), verdict("sync-stall", 0.2, 2)
    assert composed([busy, stall], snapshot(steps()))[0].evidence == ()


def test_a_shorter_step_gains_nothing_while_loading_cannot_keep_up():
    seen = snapshot(steps(data_wait=0.02, queue_ready=0), workers=2, host=host(2, worker_cpu=0.9))
    loading = verdict("input-bound", 0.2, 1, subtype="workers")
    fixes = (Fix(text="one batched operation", speedup=2.0), Fix(text="torch.compile"))
    first, second = composed([verdict("python-overhead", 0.5, 2, fixes=fixes), loading], seen)
    assert (first.id, second.id, second.speedup) == ("input-bound", "python-overhead", 1.0)
    assert [fix.speedup for fix in second.fixes] == [1.0, None]
    hidden = snapshot(steps(data_wait=0.02, queue_ready=2), workers=2, host=host(2, worker_cpu=0.9))
    assert ids(composed([verdict("python-overhead", 0.5, 2), loading], hidden))[0] == "python-overhead"


# quiet when healthy -----------------------------------------------------------------------------------------------


def healthy(tick, noise, stall=False):
    """A window of a run that computes, on a machine whose other programs come and go."""
    records = []
    for index in range(60):
        delay = max(0.0, noise.gauss(0.15, 0.12))
        own = 0.02 * max(0.6, noise.gauss(1.0, 0.08))
        extra = 0.3 if stall and index == 30 else 0.0
        records.append(
            step(
                index,
                own * (1 + delay) + extra,
                data_wait=0.0004,
                forward=0.33 * own,
                backward=0.5 * own,
                optimizer=0.12 * own,
                cpu=own,
                gc=0.0001,
                save=extra,
            )
        )
    busy = min(1.0, max(0.3, noise.gauss(0.7, 0.2)))
    return snapshot(
        records,
        time=1000.0 + tick,
        host=host(0, main_cpu=0.8, busy=(busy, busy)),
        series={"run_delay": constant(0.15, until=1000.0 + tick)},
        lines=[line("main", 0.33, phase="forward", activity="native"), line("main", 0.02)],
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_noisy_healthy_run_gets_no_warning_and_its_verdict_stays(seed):
    noise, judge = random.Random(seed), Judge()
    told = [judge.judge(healthy(tick, noise, stall=tick in (40, 100))) for tick in range(120)]
    loud = {one.id for diagnosis in told for one in diagnosis.verdicts if one.severity != "info"}
    assert loud == set()
    assert {diagnosis.verdicts[0].id for diagnosis in told[2:]} == {"compute-bound"}


def test_a_share_that_wavers_about_its_threshold_does_not_flicker():
    noise, judge = random.Random(5), Judge([collector.RULE])
    shown = []
    for tick in range(300):
        pause = max(0.0, noise.gauss(0.0045, 0.001))
        told = judge.judge(snapshot(steps(seconds=0.1, gc=pause), time=1000.0 + tick))
        shown.append(bool(told.verdicts))
    assert sum(before != after for before, after in pairwise(shown)) <= 3


# who holds the lock -----------------------------------------------------------------------------------------------


def held_by(**threads):
    return [ThreadSamples(name, name == "MainThread", Counter({(0,): count})) for name, count in threads.items()]


def test_the_lock_is_watched_while_others_hold_it_and_rarely_else():
    watch = GilWatch()
    assert watch.due()
    watch.taken(1, held_by(MainThread=30), 50)
    assert [watch.due() for _ in range(14)].count(True) == 2
    watch = GilWatch()
    assert watch.due()
    (main, metrics) = watch.taken(1, held_by(MainThread=10, metrics=30), 50)
    assert (metrics.thread, metrics.samples, metrics.asked, main.main) == ("metrics", 30, 50, True)
    assert [watch.due() for _ in range(4)] == [True, True, True, False]


def test_shares_of_threads_from_windows_that_asked_and_that_did_not():
    loop = stack("user/train.py:3 main | step()")
    waits = stack("user/train.py:9 publish | time.sleep(1)", "std/queue.py get")
    first = window(
        10.0, (1, "MainThread", True, loop, 20), (1, "metrics", False, waits, 15), (1, "metrics", False, loop, 5)
    )
    asked = msgspec.structs.replace(first, gil=(GilHold(1, "metrics", False, 25, 50),))
    plain = thread_shares([first], Digester().digest(first))
    told = thread_shares([first, asked], Digester().digest(asked))
    assert [(one.thread, one.gil) for one in plain] == [("MainThread", None), ("metrics", None)]
    assert [(one.thread, one.gil, one.active) for one in told] == [("MainThread", 0.0, 1.0), ("metrics", 0.5, 0.25)]


def test_the_lone_holder_of_the_lock_is_not_taken_for_the_main_thread():
    file = {
        "profiles": [{"name": 'Thread 77 "metrics"', "samples": [[0], [0]]}],
        "shared": {"frames": [{"name": "publish", "file": "m.py", "line": 3}]},
    }
    _, (one,) = parse(msgspec.json.encode(file), frozenset({"42"}), every_thread=False)
    assert (one.name, one.main) == ("metrics", False)


def test_lines_of_the_step_that_wait_for_the_lock_wait_for_no_data():
    def told(*, number=10, activity="native", share=0.12):
        draws = line("main", 0.12, activity=activity, number=number, text="users = torch.randint(9, (64,))")
        found = [verdict("gil-contention", 0.7, 30), verdict("input-bound", share, 10)]
        return ids(composed(found, snapshot(steps(), lines=[draws])))

    assert told() == ["gil-contention"]
    assert told(activity="wait-network") == told(number=50) == told(share=0.8) == ["gil-contention", "input-bound"]
