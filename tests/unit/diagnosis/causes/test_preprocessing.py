"""preprocessing-bound: making the model's input takes the time of requests."""

import pytest
from judgements import fired, level, unjudged
from snapshot_builder import RANK, facts, line, snapshot, step, steps

from aitop.diagnosis.causes import input_bound, preprocessing
from aitop.model.snapshot import Phases, ProcessStacks, Stacks

SPLITS = line(
    "wordpieces", 0.7, number=14, position="before",
    via=(("serve", 30, "ids = encode(text)"), ("encode", 22, "ids += wordpieces(word)")),
)  # fmt: skip


RUNS = line("serve", 0.2, phase="forward", activity="native", number=32, text="return model(ids)")


def requests(lines, kind="inference", forward=0.002, **fields):
    records = [step(index, 0.01, kind="infer", forward=forward, samples=1) for index in range(60)]
    return snapshot(records, kind=kind, lines=lines, facts=facts(), **fields)


@pytest.mark.parametrize(("work", "told"), [("tokenize", "compiled tokenizer"), ("decode", "faster decoder")])
def test_the_fix_fits_the_work(work, told):
    made = line("handle", 0.7, number=14, work=work, position="before")
    assert told in fired(preprocessing.judge(requests([made, RUNS]))).fixes[0].text


def test_a_model_that_is_built_for_each_request_is_to_be_kept():
    """All lines that build it are saved, whatever function they are in; the file that is read beside them is not.

    By the hook 80 % of a request is not the model, of which the stacks show six parts of seven to build it.
    """
    builds = [
        line("Encoder.__init__", 0.4, number=63, work="weights", position="before"),
        line("current", 0.2, number=81, work="weights", position="before"),
        line("newest", 0.1, number=77, work="file", position="before"),
    ]
    verdict = fired(preprocessing.judge(requests([*builds, RUNS])))
    assert verdict.title.endswith("is spent making a model anew")
    [keep] = verdict.fixes
    assert "once, and keep it" in keep.text and keep.speedup == pytest.approx(1.0 / (1.0 - 0.8 * 6 / 7), rel=0.01)


@pytest.mark.parametrize(("share", "severity"), [(0.3, "warning"), (0.15, "info")])
def test_a_server_at_leisure_is_told_of_latency_only(share, severity):
    waits = line("serve", 0.6, number=28, activity="wait-queue", text="body = q.get()")
    work = line("encode", share, number=22, position="before")
    verdict = fired(preprocessing.judge(requests([waits, work, RUNS])))
    assert verdict.severity == severity, "of a request it is the larger part, or not"
    assert "they get faster, not more" in verdict.evidence[-1]


@pytest.mark.parametrize(("work", "severity"), [("network", "critical"), (None, "warning")])
def test_a_server_that_asks_a_service_is_busy_and_one_that_waits_for_requests_is_not(work, severity):
    tells = line("tell", 0.4, number=70, activity="wait-network", work=work, position="after")
    made = line("encode", 0.5, number=22, position="before")
    assert fired(preprocessing.judge(requests([tells, made, RUNS]))).severity == severity


@pytest.mark.parametrize(
    ("activity", "rule"), [("native", preprocessing.judge), ("wait-disk", input_bound.judge)], ids=["cached", "disk"]
)
def test_a_file_read_for_each_request_is_waited_for_or_worked_through(activity, rule):
    loads = line("load", 0.7, activity=activity, position="before", work="file", number=41)
    seen = requests([loads, RUNS])
    assert fired(rule(seen)).where[0].line == 41
    other = input_bound.judge if rule is preprocessing.judge else preprocessing.judge
    assert level(other(seen)) == 0.0


def test_preprocessing_is_judged_only_in_inference():
    assert preprocessing.judge(snapshot(steps(), lines=[SPLITS])) is None
    seen = snapshot(phases=Phases(forward=0.02, outside=0.98), lines=[SPLITS, RUNS], kind="unknown")
    assert "to tell inference from training" in unjudged(preprocessing.judge(seen))


def test_another_thread_may_be_the_one_that_steps():
    work = line("encode", 0.7, number=22, text="ids = table[words]")
    elsewhere = ProcessStacks(pid=RANK, role="rank", samples=100, phases=Phases(forward=0.2), thread="Thread-1")
    seen = requests([work, RUNS], stacks=Stacks(seconds=5.0, samples=100, processes=(elsewhere,), lines=(work, RUNS)))
    assert preprocessing.judge(seen) is None, "these lines are of the main thread, which is not the one that steps"
