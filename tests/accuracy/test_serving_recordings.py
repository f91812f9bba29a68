"""Recordings of the servers of tests/accuracy/serving, judged at each tier that they can stand for."""

from __future__ import annotations

import functools
import re
from collections import deque
from pathlib import Path

import pytest
from recorded import replayed

RECORDINGS = Path(__file__).resolve().parent / "serving" / "recordings"
SLEEPS, COLLECTS, SCORES = "time.sleep(0.4)", "gc.collect()", "answer = score(ids)"
ONE_BY_ONE = "answers = self.net(torch.stack([job.ids for job in jobs])).tolist()"
COUNTS = "weights[item % 97] = weights.get(item % 97, 0.0) + 1.0 / (1 + age)"
COMPARES = "table[a, b] = sum(x == y for x, y in zip(str(a * 7919), str(b * 7919), strict=False))"
ENCODES = "return self.model(ids.reshape(-1, LENGTH))"
GENERATES = (
    "out = lm.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(ids))"
)
GATE = "with gate:"
FILLS = "jobs.append(self.jobs.get(timeout=max(0.0, until - time.monotonic())))"
HANDS_ON = "answers = await loop.run_in_executor(None, self.match, [ids for ids, _ in together])"
SORTS = "by_age = sorted(self.entries.items(), key=lambda kv: kv[1].used)"
FETCHES, LOCKED = "return json.loads(stream.readline())", "with self.lock:"
SPLITS = "while text[start:end] not in self.ids and end > start + 1:"


@functools.cache
def judged(name, tier):
    """The verdicts at the end of a recording; tier 2 is the same without the hook."""
    (last,) = deque(replayed(RECORDINGS / f"{name}.jsonl.gz", tier), maxlen=1)
    return last.diagnosis.verdicts


@pytest.mark.parametrize(
    ("name", "tier", "expected", "text"),
    [
        ("review_scores_sleep", 3, "latency-tail/event-loop", SLEEPS),
        ("review_scores_sleep", 2, "host-bound/event-loop", SLEEPS),
        ("review_scores_collect", 3, "latency-tail/collector", COLLECTS),
        ("review_scores_collect", 2, "latency-tail/collector", COLLECTS),
        ("review_scores_compile", 3, "latency-tail/compile", SCORES),
        ("review_scores_compile", 2, "latency-tail/compile", SCORES),
        ("review_scores_quota", 3, "latency-tail/quota", None),
        ("review_scores_quota", 2, "latency-tail/quota", None),
        ("review_scores_neighbour", 3, "cpu-oversubscription/None", None),
        ("review_scores_neighbour", 2, "cpu-oversubscription/None", None),
        ("review_scores_tokenise", 3, "preprocessing-bound/None", SPLITS),
        ("review_scores_tokenise", 2, "preprocessing-bound/None", SPLITS),
        ("review_scores_lock", 3, "gil-contention/None", COUNTS),
        ("review_scores_lock", 2, "gil-contention/None", COUNTS),
        ("review_scores_loop", 3, "latency-tail/event-loop", COMPARES),
        ("review_scores_loop", 2, "host-bound/event-loop", COMPARES),
        ("ranking_queue_collect", 3, "latency-tail/collector", COLLECTS),
        ("ranking_queue_collect", 2, "latency-tail/collector", COLLECTS),
        ("chat_batching_long", 3, "latency-tail/prefill", None),
        ("spam_filter_explain", 3, "gil-contention/None", None),
        ("spam_filter_explain", 2, "gil-contention/None", None),
        ("sentence_pairs_window", 3, "queue-bound/held", HANDS_ON),
        ("ranking_queue_window", 3, "queue-bound/held", FILLS),
        ("ranking_queue_window", 2, "queue-bound/held", FILLS),
        ("ranking_queue_single", 3, "underbatched/None", ONE_BY_ONE),
        ("embeddings_single", 3, "underbatched/None", ENCODES),
        ("generate_behind_a_lock", 3, "underbatched/None", GENERATES),
        ("generate_behind_a_lock", 2, "queue-bound/None", GATE),
        ("threads_a_request", 3, "cpu-oversubscription/None", None),
        ("threads_a_request", 2, "cpu-oversubscription/None", None),
        ("cache_trimmed_in_loop", 3, "host-bound/event-loop", SORTS),
        ("cache_trimmed_in_loop", 2, "host-bound/event-loop", SORTS),
        ("lock_held_while_asking", 3, "host-io-stall/None", FETCHES),
        ("lock_held_while_asking", 2, "host-io-stall/None", FETCHES),
        ("penalty_token_by_token", 3, "preprocessing-bound/None", "if logits[token] > 0:"),
        ("penalty_token_by_token", 2, "host-bound/None", "if logits[token] > 0:"),
        ("lock_of_a_background_thread", 3, "latency-tail/own-lock", "with self._lock:"),
        ("arrays_between_processes", 3, "host-bound/None", None),
        ("arrays_between_processes", 2, "host-bound/None", None),
        ("few_let_through", 3, "queue-bound/held", None),
        ("few_threads", 3, "host-io-stall/None", "return json.loads(reader.readline())"),
        ("embeddings_stopped", 3, "hang/stopped", None),
        ("embeddings_stopped", 2, "hang/stopped", None),
    ],
)
def test_what_holds_a_server_up_is_named_first_with_its_line(name, tier, expected, text):
    first, *_ = judged(name, tier)
    assert f"{first.id}/{first.subtype}" == expected
    of = {"latency-tail": "tail" if tier == 3 else "time", "queue-bound": "request"}
    assert first.base == of.get(first.id, "time")
    assert text is None or first.where[0].text.strip() == text


@pytest.mark.parametrize("tier", [3, 2])
def test_who_asks_a_service_with_a_lock_is_told_to_let_go_of_it(tier):
    """Six threads: five times as many requests were answered where only the model was under the lock."""
    by_id = {verdict.id: verdict for verdict in judged("lock_held_while_asking", tier)}
    assert by_id["queue-bound"].where[0].text.strip() == LOCKED
    assert by_id["queue-bound"].fixes[0].text.startswith("ask the service before")
    let_go, *_ = by_id["host-io-stall"].fixes
    assert "let go of what the others wait for at scoring.py:49" in let_go.text
    assert let_go.speedup == pytest.approx(5.1, rel=0.25)


def test_the_thread_that_holds_the_lock_of_the_slowest_requests_is_told():
    """Every two seconds it computes limits of all scores ever seen, for half a second."""
    first, *_ = judged("lock_of_a_background_thread", 3)
    assert "thread limits works meanwhile, most of it at ledger.py:32" in first.evidence
    assert [where.line for where in first.where] == [27]
    assert "standing in line for what another thread holds" in first.title


@pytest.mark.parametrize("tier", [3, 2])
def test_what_one_process_pickles_for_another_is_at_the_librarys_line(tier):
    """Twelve megabytes of arrays for each photo."""
    first, *others = judged("arrays_between_processes", tier)
    assert (first.where[0].function, first.where[0].line) == ("Connection._recv", 395)
    assert "takes over what another process sends" in first.title
    assert [verdict.id for verdict in others if verdict.severity != "info"] == []


def test_an_engine_that_waits_for_a_batch_to_fill_holds_its_requests():
    """LitServe waits 60 ms for 32 requests; eight clients send. With batches of eight 2.0 to 2.8 times as many came."""
    first, *others = judged("window_never_full", 3)
    assert (first.id, first.subtype) == ("queue-bound", "held") and first.share > 0.5
    assert "take what is there" in first.fixes[0].text
    assert [verdict.id for verdict in others if verdict.severity != "info"] == []


def test_a_method_of_a_large_object_as_a_pools_job_is_at_the_line_that_asks_for_it():
    """Each job carries a catalogue of 2 MB; with a plain function 3.6 times as many requests were answered."""
    [first] = [verdict for verdict in judged("jobs_with_their_object", 3) if verdict.severity != "info"]
    assert (first.id, first.where[0].function, first.where[0].line) == ("host-bound", "Matcher.ask", 45)
    assert first.fixes[0].speedup == pytest.approx(3.6, rel=0.25)


def test_requests_that_wait_for_a_thread_are_told_of_the_threads():
    """Four threads wait for a service, and 24 clients for them; with enough threads it was 2.7 to 4.2 times as many."""
    by_id = {verdict.id: verdict for verdict in judged("few_threads", 3)}
    assert by_id["host-io-stall"].fixes[0].text.startswith("more threads for requests")
    assert by_id["host-io-stall"].fixes[0].speedup == pytest.approx(4.2, rel=0.25)
    assert "4 threads handle requests, and all of them are always taken" in by_id["queue-bound"].evidence


def test_a_mask_that_grows_with_the_cache_is_no_prefix_computed_again():
    """It has a column for each earlier token, whose keys and values are in the cache."""
    assert {verdict.severity for verdict in judged("drafts_in_cohorts", 3)} == {"info"}


@pytest.mark.parametrize("tier", [3, 2])
def test_of_workers_that_share_the_work_unevenly_the_idle_one_is_named(tier):
    """One of two does nine tenths of it; 1.7 times as much was done where both took from one queue."""
    first, *_ = judged("uneven_workers", tier)
    assert first.id == "compute-bound"
    assert re.search(r"while pid \d+, which runs the same model, rests 81 % of it", first.title)
    assert first.fixes[0].speedup == pytest.approx(1.7, rel=0.1)


def test_what_is_made_between_two_passes_of_the_model_cannot_be_made_ahead():
    first, *_ = judged("penalty_token_by_token", 3)
    assert first.title.endswith("is spent making the model's output")
    assert [fix.speedup for fix in first.fixes] == [pytest.approx(1.65, rel=0.25)]


@pytest.mark.parametrize("tier", [3, 2])
def test_threads_that_compute_for_one_request_each_are_not_in_each_others_way(tier):
    """They take turns with the interpreter's lock, as one thread would with itself."""
    warned = [verdict.id for verdict in judged("threads_a_request", tier) if verdict.severity != "info"]
    assert warned == ["cpu-oversubscription"]


@pytest.mark.parametrize("tier", [3, 2])
def test_what_a_library_does_in_the_event_loop_is_at_the_librarys_line(tier):
    """The handler has returned a long list, so its own line is on no stack any more."""
    first, *_ = judged("spam_filter_explain", tier)
    assert (first.where[0].function, first.where[0].file.rpartition("/site-packages/")[2]) == (
        "jsonable_encoder",
        "fastapi/encoders.py",
    )
    assert "do less in the event loop" in first.fixes[0].text


@pytest.mark.parametrize("tier", [3, 2])
def test_an_event_loop_that_works_for_its_requests_is_no_server_that_rests(tier):
    """Stacks show a third of that work: the rest is the loop's own, in C, where it seems to wait."""
    assert {verdict.severity for verdict in judged("sentence_pairs", tier)} == {"info"}


def test_a_server_whose_threads_stand_at_a_lock_is_not_at_work_all_that_time():
    """On average one request waits; the lock's holder works for two thirds of the time."""
    assert {verdict.severity for verdict in judged("story_teller", 2)} == {"info"}


@pytest.mark.parametrize("name", ["review_scores_neighbour", "spam_filter"])
@pytest.mark.parametrize("tier", [3, 2])
def test_a_server_that_others_keep_from_its_cores_is_not_warned_of(name, tier):
    """Handlers of the second one take long where they wait for their turn, of which stack samples see nothing."""
    assert {verdict.severity for verdict in judged(name, tier)} == {"info"}


def test_what_litserve_takes_to_hand_answers_over_is_no_making_of_input():
    """A quarter of the time, but the user's own code only makes 3 % of it; that requests queue follows."""
    warned = [verdict.id for verdict in judged("embeddings_single", 3) if verdict.severity != "info"]
    assert warned == ["underbatched", "queue-bound"]


def test_what_makes_the_tail_is_said_once():
    assert [verdict.id for verdict in judged("review_scores_sleep", 3) if verdict.severity != "info"] == [
        "latency-tail"
    ]
