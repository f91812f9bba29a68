"""Rules about how a model uses the device, and what stands beside it: fires, does not fire, not enough evidence."""

import pytest
from judgements import fired, level, unjudged
from msgspec.structs import replace
from snapshot_builder import RANK, facts, host, line, on_gpu, snapshot, step, steps

from aitop.diagnosis.causes import input_bound, precision, preprocessing, recompile, underbatched
from aitop.diagnosis.causes.computing import compute_bound
from aitop.model.gpu import GpuDevice
from aitop.model.host import MachineSample
from aitop.model.serving import IterationRecord, RequestRecord, Serving
from aitop.model.snapshot import Phases, ProcessStacks, Series, Stacks
from aitop.model.steps import PaddingInfo
from aitop.model.verdict import Setting

# precision --------------------------------------------------------------------------------------------------------

FLOAT32 = {"cuda": True, "parameter_dtypes": ("float32",), "matmul_precision": "highest"}
COMPUTES = {"seconds": 0.1, "forward": 0.04, "backward": 0.05, "optimizer": 0.005}
DOUBLE = {"parameter_dtypes": ("float64",), "root": "Net"}


def test_float64_by_accident_on_the_cpu():
    verdict = fired(precision.judge(snapshot(steps(**COMPUTES), facts=facts(**DOUBLE))))
    assert (verdict.id, verdict.severity) == ("precision", "critical")
    assert verdict.speedup == pytest.approx(1.91, abs=0.03)
    assert "parameters of Net are float64" in verdict.evidence and "model.float()" in verdict.fixes[0].text
    mixed = facts(parameter_dtypes=("float32", "float64"))
    assert fired(precision.judge(snapshot(steps(**COMPUTES), facts=mixed))).confidence <= 0.5, "only a few"
    waiting = steps(seconds=0.1, data_wait=0.09, forward=0.005, backward=0.004)
    assert level(precision.judge(snapshot(waiting, facts=facts(**DOUBLE)))) < precision.judge.leave


def test_calling_operations_takes_as_long_in_float32():
    """Who holds the interpreter's lock calls operations, and goes back through as many."""

    def gain(held, ops=9000):
        parts = (("python", held), ("native", 1.0 - held))
        lines = [line("forward", 0.4 * part, phase="forward", activity=does) for does, part in parts if part]
        return fired(precision.judge(snapshot(steps(**COMPUTES), facts=facts(**DOUBLE, ops=ops), lines=lines))).speedup

    assert gain(0.0) == pytest.approx(1.91, abs=0.03), "many operations that one native call makes"
    assert gain(0.0) > gain(0.1) > gain(0.2) > gain(0.4) > 1.0, "the more of it is calling, the less is gained"
    assert gain(0.4) < 1.2, "tiny operations in a loop"
    assert gain(0.4, ops=10) == pytest.approx(1.9, abs=0.03), "few operations cannot take long to call"


def test_types_and_batches_are_not_known_from_outside():
    shares = Phases(forward=0.9, outside=0.1)
    assert "only from inside" in unjudged(precision.judge(snapshot(phases=shares)))
    seen = snapshot(phases=shares, kind="inference")
    assert unjudged(underbatched.judge(seen)).startswith("how many samples a step takes is known only from inside")


def computing(*, mfu=0.6, told=None, name="NVIDIA H200", **figures):
    """Steps that compute in float32 on a GPU."""
    told = told or facts(**FLOAT32)
    device = GpuDevice(index=0, mine=True, name=name)
    seen = on_gpu(steps(**COMPUTES), device=device, facts=told, **figures)
    return replace(seen, steps=replace(seen.steps, mfu=mfu))


def test_float32_products_beside_idle_tensor_cores():
    verdict = fired(precision.judge(computing(busy=0.98, tensor=0.01)))
    assert verdict.share == pytest.approx(0.75 * 0.75, abs=0.01) and verdict.severity == "critical"
    assert 'set_float32_matmul_precision("high")' in verdict.fixes[0].text
    assert verdict.confidence <= 0.6


@pytest.mark.parametrize(
    ("name", "least", "speedup"),
    [
        ("NVIDIA A40", "set_float32_matmul_precision", 1.6),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 1.6),
        ("Tesla T4", "float16", 2.29),
        ("NVIDIA RTX PRO 9999", "set_float32_matmul_precision", 1.6),
    ],
)
def test_how_much_faster_products_get_is_the_cards(name, least, speedup):
    verdict = fired(precision.judge(computing(busy=0.98, tensor=0.01, name=name)))
    assert least in verdict.fixes[0].text and verdict.fixes[0].speedup == pytest.approx(speedup, abs=0.01)
    assert verdict.speedup == pytest.approx(speedup, abs=0.01)


def by_counters(**counters):
    """A run of which only the device tells something: whatever library it computes with."""
    device = GpuDevice(index=0, mine=True, name="NVIDIA H100 80GB HBM3")
    return on_gpu(phases=Phases(forward=0.9), device=device, facts=None, busy=1.0, **counters)


def test_without_the_hook_the_units_at_work_tell_it():
    verdict = fired(precision.judge(by_counters(fp32=0.74, tensor=0.0)))
    assert verdict.share == pytest.approx(0.69, abs=0.01) and verdict.confidence <= 0.6
    assert "float32 units at work 74 % of the time" in verdict.evidence


def test_float32_of_what_only_moves_memory_is_no_fault():
    # As normalisations and activations on an H100 had it.
    assert level(precision.judge(by_counters(fp32=0.094, tensor=0.005))) < precision.judge.leave
    assert "only from inside" in unjudged(precision.judge(by_counters(fp32=0.74, tensor=0.3)))


@pytest.mark.parametrize(
    "figures",
    [
        {"busy": 0.98, "tensor": 0.4},
        {"busy": 0.3},
        {"busy": 0.98, "name": "Tesla P100-PCIE-16GB"},
        {"busy": 0.98, "told": facts(**{**FLOAT32, "matmul_precision": "high"})},
        {
            "busy": 1.0,
            "told": facts(**FLOAT32, autocast="bfloat16"),
        },
    ],
    ids=["tensor cores busy", "idle device", "no tensor cores", "tf32", "autocast"],
)
def test_float32_that_is_no_fault(figures):
    assert precision.judge(computing(**figures)) is None


def test_how_much_is_products_must_be_known():
    assert "not measured" in unjudged(precision.judge(computing(busy=0.98, tensor=0.0, mfu=None)))
    assert "whether the GPU is the limit" in unjudged(precision.judge(computing()))


# underbatched -----------------------------------------------------------------------------------------------------


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


# preprocessing-bound ----------------------------------------------------------------------------------------------

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


# recompile --------------------------------------------------------------------------------------------------------

COMPILES = line("train", 0.6, phase="forward", activity="compile", number=44, text="loss = step(batch)")


def counted(*values):
    return Series(times=tuple(1000.0 - 3 * (len(values) - index) for index in range(len(values))), values=values)


def test_recompiling_in_steady_state():
    told = facts(
        recompiles=30,
        graph_breaks=2,
        recompile_reasons=("train.py:44 size mismatch at index 0", "train.py:9 an older one"),
    )
    seen = snapshot(
        steps(samples=16, forward=0.06),
        lines=[COMPILES],
        facts=told,
        series={"recompiles": counted(10.0, 16.0, 24.0, 30.0)},
    )
    verdict = fired(recompile.judge(seen))
    assert (verdict.severity, verdict.where[0].line) == ("critical", 44)
    assert verdict.evidence[1:] == (
        "20 recompilations in the last 9 s",
        "the newest: train.py:44 size mismatch at index 0",
        "2 graph breaks since the start",
    )
    assert any("mark_dynamic" in fix.text for fix in verdict.fixes)


def test_compiling_again_for_evaluation_and_a_last_batch_is_warming_up():
    seen = snapshot(
        steps(60), lines=[COMPILES], facts=facts(recompiles=2), series={"recompiles": counted(0.0, 1.0, 2.0, 2.0)}
    )
    assert "after warm-up" in unjudged(recompile.judge(seen))


def in_windows(*parts, other=100, kind="unknown"):
    """A line that compiles in these parts of windows of a hundred samples."""
    counts = tuple(round(part * other) for part in parts)
    share = sum(parts) / len(parts)
    compiles = line("main", share, activity="compile", number=44, by_window=counts)
    runs = line("main", 1.0 - share, activity="native", number=45)
    sampled = ProcessStacks(
        pid=RANK, role="rank", samples=100, phases=Phases(outside=1.0), by_window=(other,) * len(parts)
    )
    taken = Stacks(seconds=10.0, samples=100, processes=(sampled,), lines=(compiles, runs))
    return snapshot(phases=Phases(outside=1.0), lines=[compiles, runs], kind=kind, stacks=taken)


@pytest.mark.parametrize("kind", ["unknown", "training"])
def test_a_line_that_compiles_in_every_window_beside_other_work_compiles_again(kind):
    verdict = fired(recompile.judge(in_windows(0.7, 0.6, 0.8, 0.7, 0.6, kind=kind)))
    assert (verdict.severity, verdict.where[0].line) == ("warning", 44)
    assert verdict.speedup == pytest.approx(3.1, rel=0.05)
    assert not any("torch" in fix.text for fix in verdict.fixes)


def test_a_line_that_compiles_now_and_then_goes_on_for_as_long_as_it_usually_pauses():
    now_and_then = (0.5, 0.0, 0.6, 0.0, 0.0, 0.5, 0.0, 0.6, 0.0, 0.0)
    assert fired(recompile.judge(in_windows(*now_and_then))).where[0].line == 44
    assert "after warm-up" in unjudged(recompile.judge(in_windows(*now_and_then, 0.0, 0.0)))


@pytest.mark.parametrize("parts", [(0.7, 0.6, 0.8, 0.0, 0.0), (0.7, 0.7, 0.7, 0.7, 0.0, 0.0)])
def test_what_is_compiled_at_the_start_is_not_compiled_again(parts):
    assert "after warm-up" in unjudged(recompile.judge(in_windows(*parts)))


def test_compiling_that_takes_most_of_the_time_is_said_before_it_is_known_to_go_on():
    verdict = fired(recompile.judge(in_windows(1.0, 1.0, 1.0, 1.0, 0.3)))
    assert (verdict.severity, verdict.where[0].line) == ("info", 44)
    assert verdict.speedup is None and "whether that goes on" in verdict.title


# whose lines count --------------------------------------------------------------------------------------------------


def test_another_thread_may_be_the_one_that_steps():
    work = line("encode", 0.7, number=22, text="ids = table[words]")
    elsewhere = ProcessStacks(pid=RANK, role="rank", samples=100, phases=Phases(forward=0.2), thread="Thread-1")
    seen = requests([work, RUNS], stacks=Stacks(seconds=5.0, samples=100, processes=(elsewhere,), lines=(work, RUNS)))
    assert preprocessing.judge(seen) is None, "these lines are of the main thread, which is not the one that steps"


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


def tracing(*parts, traced=0.1, other=100):
    """A line that compiles in all of every window, and traces the user's function in these parts of them."""
    found = in_windows(*(1.0 for _ in parts), other=other)
    whole = next(line for line in found.stacks.lines if line.activity == "compile")
    counts = tuple(round(part * other) for part in parts)
    rest = replace(whole, by_window=tuple(other - count for count in counts), share=1.0 - traced)
    anew = replace(whole, by_window=counts, share=traced, work="trace")
    return snapshot(
        phases=Phases(outside=1.0),
        lines=[rest, anew],
        kind="unknown",
        stacks=replace(found.stacks, lines=(rest, anew)),
    )


def test_a_function_that_is_traced_again_and_again_is_compiled_again_though_nothing_else_is_seen():
    verdict = fired(recompile.judge(tracing(0.02, 0.1, 0.3, 0.01, 0.2)))
    assert (verdict.id, verdict.where[0].line) == ("recompile", 44)


@pytest.mark.parametrize(
    "parts", [(1.0, 1.0, 0.5, 0.0, 0.0), (0.3, 0.1, 0.0, 0.0, 0.0), (0.2, 0.2, 0.2, 0.2, 0.0, 0.0)]
)
def test_a_function_that_is_traced_once_may_be_compiled_at_the_start(parts):
    verdict = fired(recompile.judge(tracing(*parts)))
    assert verdict.severity == "info" and "after warm-up" in verdict.title


# compute-bound: a prefix that is computed again ---------------------------------------------------------------------


def decoding(length, until=400, samples=2):
    """Calls of a decoder that are given `length(number)` tokens a sequence; the hook looks at every 17th of them."""
    made, seen = [], None
    for number in range(until):
        tokens = samples * length(number)
        seen = tokens if number % 17 == 0 else seen
        seconds = 0.001 + 0.00005 * tokens
        made.append(step(number, seconds, forward=0.9 * seconds, samples=samples, tokens=seen))
    return made


def answering(records, **fields):
    lines = [line("attend", 0.9, phase="forward", activity="native", number=49, via=(("write", 98, ""),), callers=1)]
    return snapshot(records, lines=lines, **{"kind": "inference", **fields})


@pytest.mark.parametrize(
    ("no_grad", "phase", "told"),
    [(0.05, "forward", True), (0.01, "forward", False), (0.05, "environment", False)],
    ids=["a teacher", "a small one", "a policy that acts"],
)
def test_a_model_that_is_not_trained_may_be_computed_once(no_grad, phase, told):
    made = steps(seconds=0.1, forward=0.06, backward=0.03, no_grad=no_grad, no_grad_forwards=1)
    verdict = fired(compute_bound(snapshot(made, lines=[line("act", 0.3, phase=phase)])))
    assert verdict.severity == "info"
    assert [fix.speedup for fix in verdict.fixes] == ([pytest.approx(2.0)] if told else [])
    assert ("50 % of it without gradients" in verdict.title) is told


def padded(longest, mean, looks=4, **figures):
    told = facts(padding=PaddingInfo(looks=looks, width=192.0, longest=longest, mean=mean), **figures)
    return fired(compute_bound(snapshot(steps(seconds=0.1, forward=0.05, backward=0.045), facts=told)))


def test_rows_that_are_longer_than_any_sequence_compute_padding():
    """Fine-tuning on texts padded to 192 tokens took a third of the time with batches as long as their longest one."""
    verdict = padded(52.0, 32.0, ops=2_000)
    assert (verdict.id, verdict.subtype, verdict.severity) == ("compute-bound", "padding", "warning")
    assert verdict.evidence[0] == "batches are 192 tokens wide, their longest sequences have 52 on average"
    assert verdict.speedup == pytest.approx(2.2, abs=0.1), "what calling operations takes does not get shorter"
    assert [fix.speedup for fix in verdict.fixes] == [pytest.approx(2.2, abs=0.1)]
    assert padded(52.0, 32.0).speedup == pytest.approx(3.3, abs=0.1)
    assert len(padded(140.0, 60.0).fixes) == 2, "nor are sequences of one batch of like length"


@pytest.mark.parametrize(
    ("longest", "mean", "looks"),
    [(180.0, 60.0, 4), (52.0, 32.0, 1), (0.0, 0.0, 4), (200.0, 32.0, 4)],
    ids=["as long as the longest", "a single batch", "masks of nothing", "longer than its row"],
)
def test_sequences_of_unlike_length_and_masks_that_say_little_are_no_fault(longest, mean, looks):
    assert padded(longest, mean, looks=looks).subtype is None


@pytest.mark.parametrize(("part", "subtype"), [(0.8, "gradients"), (0.1, None), (0.0, None), (None, None)])
def test_gradients_that_no_optimizer_uses(part, subtype):
    made = steps(seconds=0.1, forward=0.035, backward=0.06)
    lines = [line("loss", 0.3, phase="forward", activity="native", number=17)]
    verdict = fired(compute_bound(snapshot(made, lines=lines, facts=facts(unused_gradients=part))))
    assert verdict.subtype == subtype
    if subtype:
        assert (verdict.severity, verdict.share) == ("warning", pytest.approx(0.48, abs=0.01))
        assert verdict.where[0].line == 17 and verdict.fixes[0].speedup == pytest.approx(1.92, abs=0.02)


@pytest.mark.parametrize(("available", "severity"), [(12, "warning"), (4, "info")])
def test_activations_that_are_computed_again_though_memory_is_free(available, severity):
    lines = [
        line("loss", 0.3, phase="forward", activity="native", number=17),
        line("back", 0.4, phase="backward", activity="native", number=18, work="tensor"),
        line("attend", 0.3, phase="backward", activity="native", number=40, work="recompute"),
    ]
    machine = MachineSample(cores=2, memory_available=available * 2**30, memory_total=16 * 2**30)
    seen = snapshot(steps(seconds=0.1, forward=0.03, backward=0.07), lines=lines, host=replace(host(), machine=machine))
    verdict = fired(compute_bound(seen))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("recompute", severity, 40)
    assert verdict.fixes[0].speedup == pytest.approx(1.43, abs=0.02)


def test_a_decoder_without_a_cache_computes_its_prefix_again():
    verdict = fired(compute_bound(answering(decoding(lambda number: 20 + number % 90))))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("prefix", "warning", 98)
    # A call takes 1 ms and 0.05 ms for each of the 130 tokens of two sequences, with a cache for the newest two.
    assert verdict.speedup == pytest.approx((1 + 0.05 * 130) / (1 + 0.05 * 130 - 0.9 * 0.05 * 128), rel=0.1)
    assert "use_cache=True" in verdict.fixes[0].text


def test_lengths_that_hardly_differ_tell_where_calls_follow_them_closely():
    """From 200 to 259 tokens, with which a call gets longer."""
    verdict = fired(compute_bound(answering(decoding(lambda number: 200 + number % 60))))
    assert verdict.subtype == "prefix" and verdict.speedup is not None


@pytest.mark.parametrize("varied", [True, False], ids=["prompts of many lengths", "of one length"])
def test_generate_that_is_told_to_keep_no_cache_computes_its_prefix_again(varied):
    """A call takes 2 ms and 0.05 ms a token; a text has 40 tokens and a prompt of 60 to 340."""
    made = []
    for number in range(12):
        length = (60 + 40 * (number % 8) if varied else 200) + 20
        seconds = 40 * (0.002 + 0.00005 * length)
        made.append(step(number, seconds, forward=seconds, kind="generate", tokens=40, tokens_again=40 * length))
    verdict = fired(compute_bound(answering(made)))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("prefix", "warning", 98)
    assert "use_cache=True" in verdict.fixes[0].text
    assert verdict.speedup == (pytest.approx(12.1 / 2.05, rel=0.15) if varied else None)
    assert ("not known" in verdict.evidence[1]) is not varied
    kept = [replace(each, tokens_again=None) for each in made]
    assert fired(compute_bound(answering(kept))).subtype is None


@pytest.mark.parametrize(
    ("length", "kind"),
    [
        (lambda number: 1, "inference"),
        (lambda number: 20 + number * number % 97, "inference"),
        (lambda number: 20 + 2 * (number % 90), "inference"),
        (lambda number: 20 + number % 90, "training"),
    ],
    ids=["with a cache", "texts of any length", "not by one token", "lessons that get longer"],
)
def test_other_lengths_of_sequences_are_no_prefix(length, kind):
    verdict = fired(compute_bound(answering(decoding(length), kind=kind)))
    assert (verdict.subtype, verdict.severity) == (None, "info")
