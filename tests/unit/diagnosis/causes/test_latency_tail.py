"""latency-tail: what held the slowest requests up is named with its share; a healthy server is quiet."""

import math

import pytest
from judgements import fired, level, unjudged
from msgspec.structs import replace
from served_maker import START, UNTIL, Server, at_random, pauses, server, serving
from snapshot_builder import RANK, constant, line

from aitop.diagnosis.causes.serving import tail
from aitop.diagnosis.causes.serving.hold_ups import RequestHoldUps, hold_ups
from aitop.diagnosis.noise import least_mean
from aitop.diagnosis.rule import Finding
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.snapshot import Series, ThreadPool

STOPS = [(START + 4.0 + 5.0 * number, 0.4) for number in range(5)]
HALF = at_random(25.0)


@pytest.mark.parametrize("rate", [5.0, 15.0, 25.0])
def test_a_healthy_server_at_up_to_half_load_is_quiet(rate):
    quiet = server(Server().answer(at_random(rate)), series={"run_delay": constant(0.01, 30)})
    assert level(tail.judge(quiet)) < tail.judge.leave


@pytest.mark.parametrize(("kind", "subtype"), [("collect", "collector"), ("compile", "compile")])
def test_pauses_are_named_with_their_share_of_the_tail(kind, subtype):
    held = server(Server(stops=STOPS).answer(HALF), held=pauses(STOPS, kind))
    verdict = fired(tail.judge(held))
    assert (verdict.id, verdict.subtype) == ("latency-tail", subtype)
    assert verdict.share > 0.7 and verdict.severity == "warning" and verdict.confidence > 0.7


@pytest.mark.parametrize(("times", "severity"), [(1, "info"), (2, "info"), (5, "warning")])
def test_one_or_two_pauses_are_too_rare_for_a_warning(times, severity):
    """One pause of 0.4 s is the whole tail of the half minute in which it came."""
    stops = STOPS[:times]
    verdict = fired(tail.judge(server(Server(stops=stops).answer(HALF), held=pauses(stops))))
    assert (verdict.subtype, verdict.severity) == ("collector", severity)
    assert any("too rarely to tell" in words for words in verdict.evidence) == (severity == "info")


def test_all_of_the_window_counts_where_hundreds_of_requests_come_each_second():
    """Only in the last of thirty seconds nothing stops this server."""
    quick = Server(service=0.0015, stops=STOPS).answer(at_random(300.0))
    verdict = fired(tail.judge(server(quick, held=pauses(STOPS))))
    assert (verdict.subtype, verdict.severity) == ("collector", "warning")
    assert "5 collections in 30 s" in str(verdict.evidence)


@pytest.mark.parametrize("events", [1, 2, 3, 5, 10, 30])
def test_with_the_least_mean_so_many_events_come_in_one_of_twenty_times(events):
    mean = least_mean(events)
    fewer = sum(math.exp(-mean) * mean**number / math.factorial(number) for number in range(events))
    assert 1.0 - fewer == pytest.approx(0.05, abs=0.012)


def test_the_same_slow_requests_without_a_known_hold_up_are_not_explained_by_guessing():
    assert level(tail.judge(server(Server(stops=STOPS).answer(HALF)))) < tail.judge.leave


def test_pauses_that_hit_no_request_explain_nothing():
    beside = pauses([(begin + 2.0, 0.001) for begin, _ in STOPS])
    assert level(tail.judge(server(Server(stops=STOPS).answer(HALF), held=beside))) < tail.judge.leave


def test_too_few_requests_are_not_judged():
    assert "needed" in unjudged(tail.judge(server(Server().answer(HALF[:20]))))


def test_long_answers_are_long_by_themselves():
    """Pauses take as large a part of each request; what they take of a long one is more than a usual one lasts."""
    requests = [
        RequestRecord(end=START + 0.05 * n, seconds=0.02 * tokens, tokens=tokens, prompt_tokens=10)
        for n in range(600)
        for tokens in [400 if n % 60 == 0 else 10 + n % 20]
    ]
    busy = server(requests, held=pauses([(START + 0.1 * n, 0.04) for n in range(300)]))
    assert level(tail.judge(busy)) < tail.judge.leave


def engine(long_every=100, long_tokens=8000):
    """Iterations of a busy engine with requests of 40 tokens, and now and then the prompt of another one."""
    end, iterations, ends = START, [], []
    for number in range(1200):
        long = long_every and number % long_every == long_every - 1
        seconds = 0.02 + (0.6 if long else 0.0)
        end += seconds
        ends.append(end)
        kind, prefilled = ("mixed", long_tokens) if long else ("decode", 0)
        iterations.append(
            IterationRecord(end=end, seconds=seconds, kind=kind, prefill_tokens=prefilled, decode_tokens=8, requests=8)
        )
    requests = [
        RequestRecord(end=ends[n], seconds=ends[n] - ends[n - 10], tokens=10, prompt_tokens=16, queue=0.0)
        for n in range(10, 1200, 3)
    ]
    return requests, iterations


def test_a_long_prompt_beside_decodes():
    requests, iterations = engine()
    verdict = fired(tail.judge(server(requests, iterations)))
    assert verdict.subtype == "prefill" and verdict.share > 0.7
    assert "max_num_batched_tokens" in verdict.fixes[0].text
    early = [replace(record, seconds=record.seconds + 9.0) for record in requests[:6]]
    verdict = fired(tail.judge(server([*early, *requests[6:]], iterations)))
    assert verdict.subtype == "prefill" and verdict.share > 0.7, "what these waited for before nobody saw"
    own = [replace(record, prompt_tokens=8000 if record.seconds > 0.5 else 16) for record in requests]
    assert level(tail.judge(server(own, iterations))) < tail.judge.leave, "the long prompt is their own"
    assert level(tail.judge(server(*engine(long_every=0)))) == 0.0


def test_requests_that_were_thrown_out_of_the_batch():
    requests, iterations = engine(long_every=0)
    slow = [replace(record, seconds=1.2, preempted=2) if n % 40 == 0 else record for n, record in enumerate(requests)]
    thrown = [
        replace(record, preempted=1, prefill_tokens=64) if n % 40 == 0 else record
        for n, record in enumerate(iterations)
    ]
    verdict = fired(tail.judge(server(slow, thrown)))
    assert verdict.subtype == "preemption" and "KV cache" in verdict.fixes[0].text


def stopped_by_kernel(name):
    """The main thread waits for a core at times, because of a quota or of others."""
    times = tuple(START + number for number in range(31))
    bad = {int(begin - START) for begin, _ in STOPS}
    delay = Series(times=times, values=tuple(0.8 if number - 1 in bad else 0.01 for number in range(31)))
    stops = [(START + number + 0.1, 0.8) for number in bad]
    requests = Server(stops=stops).answer(HALF)
    series = {"run_delay": delay}
    if name == "quota":
        throttled = tuple(0.8 if number - 1 in bad else 0.0 for number in range(31))
        series["throttled"] = Series(times=times, values=throttled)
    return server(requests, series=series)


def test_the_kernels_counts_are_put_where_requests_took_longer():
    # Half of each bad second is lost, all of it in the one request that then takes half a second longer.
    times = tuple(START + number for number in range(31))
    bad = {int(begin - START) for begin, _ in STOPS}
    counted = Series(times=times, values=tuple(0.5 if number - 1 in bad else 0.0 for number in range(31)))
    arrivals = [START + number + 0.05 * part for number in range(30) for part in range(16)]
    stopped = Server(stops=[(START + number + 0.26, 0.5) for number in bad]).answer(arrivals)
    requests = [replace(record, model=record.seconds - record.queue) for record in stopped]
    verdict = fired(tail.judge(server(requests, series={"run_delay": counted})))
    assert verdict.subtype == "cores" and verdict.share > 0.8, "spread evenly it would be half"


def test_requests_that_the_kernels_counters_do_not_cover_yet_wait_to_be_judged():
    requests = Server(stops=[(UNTIL - 3.0, 1.0)]).answer(HALF)
    read = Series(times=(START, UNTIL - 4.0), values=(0.0, 0.0))
    assert tail.judge(server(requests, series={"run_delay": read})) is None


@pytest.mark.parametrize(("name", "severity"), [("quota", "warning"), ("cores", "info")])
def test_the_kernel_keeps_the_process_from_its_core(name, severity):
    verdict = fired(tail.judge(stopped_by_kernel(name)))
    assert (verdict.subtype, verdict.severity) == (name, severity), "what others do to the cores is no warning"


def test_pauses_no_longer_than_chance_delays_are_no_warning():
    regular = [START + 0.05 * number for number in range(580)]
    short = [(START + 0.5 * number + 0.01, 0.018) for number in range(58)]
    verdict = fired(tail.judge(server(Server(stops=short).answer(regular), held=pauses(short))))
    assert verdict.severity == "info" and verdict.share > 0.7


def blocked(activity="sleep", by_window=(0, 0, 8, 0, 0, 8, 0, 0, 8, 0), **fields):
    held = Server(stops=[(begin, 0.5) for begin, _ in STOPS]).answer(HALF)
    share = 0.08
    blocks = line("answer", share, activity=activity, number=31, by_window=by_window, **fields)
    return server(held, lines=[blocks, line("run", 0.9, activity="wait-queue", number=99, by_window=(36,) * 10)])


@pytest.mark.parametrize(
    ("blocks", "subtype"),
    [
        ({"activity": "sleep", "handler": "event-loop"}, "event-loop"),
        ({"activity": "python", "handler": "request-loop"}, "handler"),
        ({"activity": "python", "thread": "report"}, "lock"),
    ],
)
def test_what_takes_long_now_and_then_is_named_by_what_it_blocks(blocks, subtype):
    verdict = fired(tail.judge(blocked(**blocks)))
    assert (verdict.subtype, verdict.where[0].line) == (subtype, 31) and verdict.confidence <= 0.6


def refreshed(**fields):
    """A server whose event loop does something else for a second now and then, between two of many requests."""
    stops, free, requests = (974.2, 980.7, 987.3, 993.4), START, []
    for arrival in at_random(60):
        begin = max(arrival, free)
        begin = next((stop + 1.0 for stop in stops if stop <= begin < stop + 1.0), begin)
        free = begin + 0.004
        requests.append(RequestRecord(end=free, seconds=free - arrival, queue=begin - arrival, model=0.004))
    share = 4.0 / 30.0
    refresh = line("refresh", share, activity="python", number=29, handler="event-loop", by_window=(0, 8) * 4, **fields)
    waits = line("run", 0.6, activity="wait-queue", number=99, by_window=(36,) * 8)
    return server(requests, lines=[refresh, waits], held=pauses([(stop + 0.2, 0.3) for stop in stops]))


def test_what_the_event_loop_does_while_many_requests_come_holds_up_each_of_them():
    """Half a millisecond of a burst for each request that is usually under way would be too little."""
    verdict = fired(tail.judge(refreshed()))
    assert (verdict.subtype, verdict.where[0].line) == ("event-loop", 29)
    parts = {part.name: part.share for part in verdict.parts}
    assert parts["event-loop"] == pytest.approx(0.65, abs=0.1) and parts["collector"] == pytest.approx(0.3, abs=0.1)
    assert parts.get("queue", 0.0) < 0.1


def test_waits_in_which_no_request_is_worked_on_are_not_guessed_to_be_a_handler():
    """No stack was seen in the event loop: it may be that the process had no core."""
    seen = refreshed()
    verdict = fired(tail.judge(server(seen.serving.requests, held=seen.serving.pauses)))
    parts = {part.name: part.share for part in verdict.parts}
    assert verdict.subtype == "collector" and "event-loop" not in parts and parts["queue"] > 0.5


@pytest.mark.parametrize(
    "windows", [(2, 3, 2, 3, 2, 3, 2, 2, 3, 2), (0, 3, 0, 0, 3, 0, 0)], ids=["evenly", "few samples, by chance"]
)
def test_a_line_that_does_not_come_now_and_then_makes_no_tail(windows):
    assert level(tail.judge(blocked(handler="event-loop", by_window=windows))) < tail.judge.leave


@pytest.mark.parametrize("activity", ["wait-lock", "wait-queue"])
def test_a_request_that_waits_for_another_thread_stands_in_line(activity):
    waits = blocked(activity=activity, handler="thread")
    assert level(tail.judge(waits)) < tail.judge.leave
    assert fired(tail.judge(blocked(activity=activity, handler="event-loop"))).subtype == "event-loop"


def test_a_line_that_mostly_waits_for_another_thread_is_no_work_of_the_handlers():
    """`with lock:` takes no time by itself: what samples say of it besides is the error of few samples."""
    waits = blocked(activity="native", handler="thread", parts=(("native", 0.3), ("wait-lock", 0.7)))
    assert level(tail.judge(waits)) < tail.judge.leave
    works = blocked(activity="native", handler="thread", parts=(("native", 0.7), ("wait-lock", 0.3)))
    assert fired(tail.judge(works)).subtype == "handler"


def test_what_is_computed_twice_is_said():
    request = RequestRecord(end=START + 1, seconds=0.5, prompt_tokens=100, tokens=40, preempted=0)
    thrown = replace(request, preempted=2)
    twice = tail.computed_twice(server([*[request] * 9, thrown]).serving)
    assert twice == pytest.approx(240 / (1400 + 240))
    assert tail.computed_twice(server([request] * 9).serving) is None
    assert tail.computed_twice(server([replace(request, preempted=None)]).serving) is None


def test_the_pauses_of_a_worker_hold_up_its_own_requests():
    own = [replace(record, pid=RANK) for record in Server(stops=STOPS).answer(HALF)]
    others = [replace(record, pid=RANK + 1) for record in Server(seed=8).answer(HALF)]
    both = sorted((*own, *others), key=lambda one: one.end)
    for pid, subtype in ((RANK, "collector"), (RANK + 1, None), (RANK + 7, "collector")):
        held = [replace(pause, pid=pid) for pause in pauses(STOPS)]
        finding = tail.judge(server(both, held=held))
        assert level(finding) < tail.judge.leave if subtype is None else fired(finding).subtype == subtype


def handled(long=0.3, every=50):
    """One after the other in one thread; making the input of some requests takes long."""
    free, made = START, []
    for number, arrival in enumerate(at_random(20.0)):
        begin = max(arrival, free)
        prepared = long if number % every == every - 1 else 0.002
        free = begin + prepared + 0.015
        made.append(
            RequestRecord(end=free, seconds=free - arrival, queue=begin - arrival, preprocess=prepared, model=0.015)
        )
    return made


@pytest.mark.parametrize(("handler", "subtype"), [("event-loop", "event-loop"), ("thread", "handler")])
def test_long_handling_of_one_request_holds_up_those_behind_it(handler, subtype):
    line_of_it = line("answer", 0.3, activity="sleep", number=31, handler=handler, position="before")
    verdict = fired(tail.judge(server(handled(), lines=[line_of_it])))
    assert verdict.subtype == subtype and verdict.share > 0.5 and verdict.where[0].line == 31
    assert [entry.line for entry in tail.judge(server(handled(), lines=[line_of_it])).claims] == [31]
    assert level(tail.judge(server(handled(long=0.002), lines=[line_of_it]))) == 0.0


def in_threads(requests, standing, more=()):
    """A server whose threads stand at a lock, `standing` of them on average."""
    waits = line("answer", 0.3, activity="wait-lock", number=27, handler="thread")
    seen = server(requests, lines=[waits, line("limits", 0.2, number=32, thread="limits"), *more])
    pool = ThreadPool(threads=("a", "b"), there=8.0, working=0.3, standing=standing, lines=(waits,))
    processes = tuple(replace(process, pool=pool) for process in seen.stacks.processes)
    return replace(seen, stacks=replace(seen.stacks, processes=processes))


def held_in_threads():
    """Each has a thread of its own; those that come while a lock is held get on when it is free."""
    made = []
    for arrival in HALF:
        free = next((begin + 0.5 for begin, _ in STOPS if begin <= arrival < begin + 0.5), arrival)
        made.append(
            RequestRecord(
                end=free + 0.02,
                seconds=free + 0.02 - arrival,
                queue=0.0,
                preprocess=0.001,
                model=0.018,
                postprocess=free + 0.001 - arrival,
            )
        )
    return sorted(made, key=lambda one: one.end)


def test_requests_that_all_wait_for_a_lock_are_held_up_by_whoever_has_it():
    verdict = fired(tail.judge(in_threads(held_in_threads(), standing=1.0)))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("own-lock", "warning", 27)
    assert any(text.startswith("thread limits works meanwhile") for text in verdict.evidence)
    assert level(tail.judge(in_threads(held_in_threads(), standing=0.0))) < tail.judge.leave, "nobody was seen to stand"


def test_a_request_that_works_past_the_lock_at_which_others_stand_has_it():
    read = line("read", 0.02, number=19, handler="thread", via=[("answer", 29, "self.sheet = self.read()")])
    verdict = fired(tail.judge(in_threads(held_in_threads(), standing=1.0, more=[read])))
    assert verdict.subtype == "own-lock"
    assert "the thread that has it works meanwhile, most of it at train.py:19" in verdict.evidence


def in_line(requests):
    """The part of the slowest requests' extra time in which they stand in line behind another thread."""
    finding = tail.judge(in_threads(requests, standing=0.0))
    return (
        {part.name: part.share for part in finding.verdict.parts}.get("own-lock", 0.0) if finding is not None else 0.0
    )


def test_whoever_used_the_cpu_while_the_others_did_not_has_what_they_wait_for():
    """No look at the stacks met it. The CPU time of each request's thread is known."""
    requests = [replace(record, cpu=0.019) for record in held_in_threads()]
    at_work = [replace(requests[0], end=begin + 0.52, seconds=0.52, postprocess=0.5, cpu=0.5) for begin, _ in STOPS]
    assert in_line([*requests, *at_work]) > 0.3
    assert in_line([*requests, *(replace(record, cpu=0.019) for record in at_work)]) == 0.0


def test_the_wait_of_one_thread_for_a_core_holds_up_no_other_request():
    """One of ten late requests has a core all the time, the others do not."""
    usual = RequestRecord(end=0.0, seconds=0.02, queue=0.0, preprocess=0.001, model=0.018, postprocess=0.001, cpu=0.018)
    late = replace(usual, seconds=0.3, preprocess=0.281)
    requests = [replace(late if 200 <= at < 210 else usual, end=START + at * 0.04) for at in range(400)]
    requests[205] = replace(requests[205], cpu=0.3)
    crowd = {"run_delay": constant(0.04, 31), "main_thread": constant(0.36, 31)}
    held_up = RequestHoldUps(hold_ups(server(requests, series=crowd), serving(requests), requests, 0.02))
    assert held_up.seconds("cores", requests[204]) > 0.0 == held_up.seconds("cores", requests[205])


def test_requests_that_queue_for_the_models_lock_are_held_up_by_nothing():
    """They are answered one after the other all the time, those at the end of a queue much later than others."""
    crowd = Server().answer(at_random(35.0))
    queued = [replace(record, queue=0.0, preprocess=record.queue, postprocess=0.0) for record in crowd]
    assert level(tail.judge(in_threads(queued, standing=1.0))) < tail.judge.leave


@pytest.mark.parametrize(
    ("on_core", "delay", "own"),
    [(True, 0.4, True), (False, 0.0, True), (False, 0.07, True), (False, 0.4, False)],
    ids=["computes in a crowd", "waits for something of its own", "waits for both", "waits for a core"],
)
def test_a_wait_for_a_core_is_no_time_of_the_handlers_own(on_core, delay, own):
    """Of the same long requests it is known how much CPU time each took, and how long the kernel let threads wait."""
    requests = [replace(record, cpu=0.015 + (record.preprocess if on_core else 0.002)) for record in handled()]
    runs = line("answer", 0.3, number=31, handler="thread", position="before")
    crowd = {"run_delay": constant(delay, 31), "main_thread": constant(0.4, 31)}
    finding = tail.judge(server(requests, lines=[runs], series=crowd))
    assert (isinstance(finding, Finding) and finding.verdict.subtype == "handler") == own
    claims = finding.claims if isinstance(finding, Finding) else ()
    assert {entry.line for entry in claims} == ({31} if own else set())


@pytest.mark.parametrize("on_core", [True, False])
def test_a_handler_that_used_the_cpu_worked_however_few_samples_saw_it(on_core):
    """Beside the many short ones, whose samples look alike, those of the long ones are few."""
    requests = [replace(record, cpu=0.015 + (record.preprocess if on_core else 0.002)) for record in handled()]
    finding = tail.judge(server(requests, lines=[line("answer", 0.02, number=31, handler="thread", position="before")]))
    assert (isinstance(finding, Finding) and finding.verdict.subtype == "handler") == on_core


def test_waits_for_a_core_explain_only_what_nothing_else_does():
    crowded = {"run_delay": constant(0.4, 31)}
    held = server(Server(stops=STOPS).answer(HALF), held=pauses(STOPS), series=crowded)
    assert fired(tail.judge(held)).subtype == "collector"


def test_the_line_that_asks_for_collections_is_the_place():
    asks = line("answer", 0.05, activity="collect", number=44)
    verdict = fired(tail.judge(server(Server(stops=STOPS).answer(HALF), held=pauses(STOPS), lines=[asks])))
    assert verdict.where[0].line == 44 and "train.py:44" in verdict.fixes[0].text
