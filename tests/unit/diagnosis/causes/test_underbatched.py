"""underbatched: too few samples or requests for one call of the model."""

import pytest
from judgements import fired, level
from msgspec.structs import replace
from snapshot_builder import RANK, facts, host, line, on_gpu, snapshot, step, steps

from aitop.diagnosis.causes import underbatched
from aitop.model.serving import IterationRecord, RequestRecord, Serving
from aitop.model.verdict import Setting


def served(count=40, samples=1, forward=0.0048, seconds=0.005):
    return [step(index, seconds, kind="infer", forward=forward, samples=samples) for index in range(count)]


DENSE = facts(parameters=21_000_000, parameter_tensors=6, parameter_dtypes=("float32",), threads=1)


MODEL = line("serve", 0.9, phase="forward", activity="native", number=20, text="y = net(x)")


def test_requests_that_are_many_because_others_have_the_cores_are_no_fault_of_the_batch(monkeypatch):
    seen = snapshot(served(), kind="inference", facts=DENSE, lines=[MODEL])
    assert fired(underbatched.judge(seen)).severity == "warning"
    monkeypatch.setattr(underbatched, "others_have_cores", lambda _: True)
    assert "other programs" in str(underbatched.judge(seen))


def test_an_engine_whose_turns_say_how_many_requests_are_in_them_is_not_judged_by_the_models_input():
    packed = [IterationRecord(end=1000.0 - n / 100, seconds=0.008, requests=2) for n in range(100)]
    for waiting, found in ((0.1, False), (6.0, True)):
        engine = Serving(basis="hook", pid=RANK, iterations=tuple(packed), queue=waiting)
        seen = snapshot(served(), kind="inference", facts=DENSE, lines=[MODEL], serving=engine)
        assert (level(underbatched.judge(seen)) > 0.0) is found, "requests that do not wait cannot be taken together"


def test_work_done_once_per_batch_is_claimed_by_underbatched():
    stacked = line("serve", 0.2, activity="native", number=20, position="within", text="y = net(stack(ids)).tolist()")
    seen = snapshot(served(), kind="inference", facts=DENSE, lines=[MODEL, stacked])
    assert [entry.position for entry in underbatched.judge(seen).claims] == ["within"]


def test_what_the_call_of_generate_calls_back_is_no_work_done_once_per_batch():
    """The batch is known from forwards of the call under way when the hook came in; whole calls take the time."""
    bans = line("Rhymes.__call__", 0.4, number=5, position="within", via=[("serve", 20, "y = net.generate(x)")])
    model = replace(MODEL, share=0.5)
    calls = [step(index, 0.2, kind="generate", forward=0.1) for index in range(40, 80)]
    seen = snapshot([*served(), *calls], kind="inference", facts=DENSE, lines=[model, bans])
    verdict = underbatched.judge(seen)
    assert not verdict.claims and 0.22 < level(verdict) < 0.55


def test_a_server_that_waits_for_requests_is_not_underbatched():
    waits = line("serve", 0.6, activity="wait-queue", text="x = q.get()")
    seen = snapshot(served(forward=0.002), kind="inference", facts=DENSE, lines=[MODEL, waits])
    assert underbatched.judge(seen) is None


def test_a_model_that_computes_much_with_few_weights_gains_little():
    convolutional = facts(parameters=2_000_000, parameter_tensors=60, parameter_dtypes=("float32",), threads=1)
    slow = served(forward=0.048, seconds=0.05)
    assert level(underbatched.judge(snapshot(slow, kind="inference", facts=convolutional))) < underbatched.judge.leave


def test_the_table_of_an_embedding_is_not_read_for_each_request():
    served_quickly = served(forward=0.0017, seconds=0.0018)
    known = {"parameters": 15_700_000, "parameter_tensors": 9, "parameter_dtypes": ("float32",), "threads": 1}
    unknown = underbatched.judge(snapshot(served_quickly, kind="inference", facts=facts(**known), lines=[MODEL]))
    told = facts(**known, looked_up_parameters=6_300_000)
    verdict = fired(underbatched.judge(snapshot(served_quickly, kind="inference", facts=told, lines=[MODEL])))
    assert unknown is None
    assert "9.4 M parameters are read for every one of them" in verdict.evidence


@pytest.mark.parametrize(("under_way", "together"), [(1.2, None), (11.8, 12), (90.0, 32)])
def test_no_more_requests_can_be_taken_together_than_are_there(under_way, together):
    engine = Serving(basis="hook", pid=RANK, concurrency=under_way)
    judged = underbatched.judge(snapshot(served(), kind="inference", facts=DENSE, lines=[MODEL], serving=engine))
    assert (judged and fired(judged).fixes[0].setting.to) == together


@pytest.mark.parametrize(
    ("apart", "requests", "model", "calls"),
    [
        (0.9, 2, 0.09, 20),
        (0.9, 39, 0.004, 1),
        (0.0, 2, 0.09, 1),
        (0.5, 2, 0.09, 1),
        (0.9, 2, None, 20),
        (0.9, 0, 0.0, 1),
    ],
    ids=["twenty", "one", "they need each other", "some do", "not known whose", "no request"],
)
def test_calls_of_one_request_that_do_not_need_each_other(apart, requests, model, calls):
    """Of one request at a time, nothing else can be taken together."""
    calls_made = served()
    span = calls_made[-1].end - calls_made[0].end
    answered = [
        RequestRecord(end=calls_made[-1].end - span * n / max(1, requests), seconds=0.1, model=model, pid=RANK)
        for n in range(requests)
    ]
    engine = Serving(basis="hook", pid=RANK, concurrency=1.0, requests=tuple(reversed(answered)))
    shares = [(apart, True), (0.9 - apart, False)]
    lines = [replace(MODEL, share=share, apart=kind) for share, kind in shares if share]
    judged = underbatched.judge(snapshot(calls_made, kind="inference", facts=DENSE, lines=lines, serving=engine))
    if calls == 1:
        assert judged is None
        return
    verdict = fired(judged)
    assert f"calls the model {calls} times, for 1 sample each" in verdict.title and verdict.where[0].line == 20
    assert f"the {calls} calls of a request" in verdict.fixes[0].text and verdict.speedup > 2.0


def test_two_models_in_a_row_cannot_be_called_as_one():
    calls_made = served()
    answered = (RequestRecord(end=calls_made[-1].end, seconds=0.1, model=0.09, pid=RANK),)
    engine = Serving(basis="hook", pid=RANK, concurrency=1.0, requests=answered)
    lines = [replace(MODEL, share=0.45, apart=True), replace(MODEL, share=0.45, line=21, apart=True)]
    assert underbatched.judge(snapshot(calls_made, kind="inference", facts=DENSE, lines=lines, serving=engine)) is None


@pytest.mark.parametrize(("thread", "other", "more"), [(0.2, 0.0, 0.2), (0.0, 0.2, 0.0)])
def test_work_of_threads_per_request_limits_the_gain_of_batches(thread, other, more):
    """They take turns with it at the interpreter's lock; another process goes on with the next requests."""

    def gain(thread, other):
        lines = [MODEL, line("answer", thread, thread="Thread-2", number=30)]
        seen = {"host": host(1, worker_cpu=other), "serving": engine, "lines": lines}
        judged = underbatched.judge(snapshot(served(), kind="inference", facts=DENSE, **seen))
        return fired(judged).speedup, fired(judged).fixes[0].speedup

    engine = Serving(basis="hook", pid=RANK, concurrency=16.0)
    alone, _ = gain(0.0, 0.0)
    verdict, fix = gain(thread, other)
    assert verdict == pytest.approx(1.0 / (1.0 / alone + more), rel=0.01) and fix == pytest.approx(verdict, abs=0.01)


def test_training_on_one_sample_at_the_cost_of_calls():
    tiny = steps(seconds=0.0005, forward=0.00008, backward=0.0001, optimizer=0.0002, samples=1)
    verdict = fired(underbatched.judge(snapshot(tiny, facts=facts(ops=10, parameters=6000))))
    assert "1 sample per forward pass" in verdict.title and "batch 1 → 32" in verdict.fixes[0].text
    assert verdict.fixes[0].setting == Setting(name="batch_size", to=32, current=1)
    large = steps(seconds=0.05, forward=0.02, backward=0.02, samples=1)
    assert underbatched.judge(snapshot(large, facts=facts(ops=10, parameters=6000))) is None


def test_a_policy_that_is_called_for_one_observation_gets_more_environments_and_no_larger_batch():
    tiny = steps(seconds=0.0005, forward=0.00008, backward=0.0001, optimizer=0.0002, samples=1)
    world = line("play", 0.5, phase="environment", number=30)
    verdict = fired(underbatched.judge(snapshot(tiny, facts=facts(ops=10, parameters=6000), lines=[world])))
    assert [(fix.text, fix.setting) for fix in verdict.fixes] == [
        ("step 32 environments side by side, with one policy call for all of them", None)
    ]


@pytest.mark.parametrize(("samples", "ops", "found"), [(256, 12, True), (8192, 12, False), (256, 2, False)])
def test_a_policy_that_acts_for_few_at_a_time_between_updates(samples, ops, found):
    """256 calls a step, of 0.1 ms each: not where 32 are in each call, or where an operation takes long."""
    acts = steps(
        seconds=0.05, forward=0.0276, backward=0.002, no_grad=0.0256, no_grad_forwards=256, no_grad_samples=samples,
        samples=256,
    )  # fmt: skip
    model = line("Policy.forward", 0.55, phase="forward", activity="native", via=(("collect", 70, "policy(seen)"),))
    sample = line("collect", 0.3, activity="native", number=71, position="within", work="tensor")
    judged = underbatched.judge(snapshot(acts, facts=facts(ops=ops, parameters=6000), lines=[model, sample]))
    if not found:
        assert judged is None
        return
    verdict = fired(judged)
    assert "the policy is called for 1 at a time" in verdict.title and verdict.share == pytest.approx(0.8, abs=0.1)
    assert verdict.evidence[0].startswith("256 forward passes without gradient a step, 1 sample and 100 µs each")
    assert {entry.line for entry in judged.claims} == {10, 71}, "what is done with each output is done for a batch too"


@pytest.mark.parametrize("acts", [True, False])
def test_a_policy_that_acts_once_for_several_updates(acts):
    """Its calls come in one step of many, as an evaluation does; only that there is an environment tells them apart."""
    rare = {"evaluation": 0.0256, "evaluation_forwards": 256, "evaluation_samples": 256}
    model = line("Policy.forward", 0.55, phase="evaluation", activity="native", via=(("collect", 70, "policy(seen)"),))
    world = line("play", 0.1, phase="environment", number=30)
    lines = [model, world] if acts else [model]
    seen = steps(seconds=0.05, forward=0.002, backward=0.002, samples=256, **rare)
    judged = underbatched.judge(snapshot(seen, facts=facts(ops=12, parameters=6000), lines=lines))
    assert (judged is not None and "called for 1 at a time" in fired(judged).title) == acts


def test_an_idle_gpu_has_room_for_more():
    cuda = facts(cuda=True, parameters=21_000_000)
    assert fired(underbatched.judge(on_gpu(served(), busy=0.2, facts=cuda))).share > 0.6
    assert underbatched.judge(on_gpu(served(), busy=0.9, facts=cuda)) is None


def test_a_server_that_has_taken_many_at_once_takes_single_ones_only_where_no_more_are_there():
    varied = [step(i, 0.011, kind="infer", forward=0.01, samples=8 if i % 10 == 0 else 1 + i % 2) for i in range(40)]
    assert underbatched.judge(snapshot(varied, kind="inference", facts=DENSE)) is None
    packed = [IterationRecord(end=1000.0 - n / 100, seconds=0.008, requests=8 if n % 10 == 0 else 1) for n in range(99)]
    engine = Serving(basis="hook", pid=RANK, iterations=tuple(packed), queue=3.0)
    assert underbatched.judge(snapshot(served(), kind="inference", facts=DENSE, serving=engine)) is None


def test_requests_one_at_a_time_read_all_weights_for_each():
    verdict = fired(underbatched.judge(snapshot(served(), kind="inference", facts=DENSE, lines=[MODEL])))
    assert verdict.id == "underbatched" and verdict.where[0].line == 20
    assert 4 < verdict.speedup < 10 and verdict.confidence <= 0.6
    assert "1 sample per forward pass" in verdict.title
