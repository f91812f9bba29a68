"""What each server suffers from, for the live bench and the tests to hold the diagnosis against."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# `serving` is beside the suite of scenarios.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenarios"))

from scenario import HEALTHY, Scenario

from serving_run import SERVERS, control_groups

QUIET = HEALTHY
# The interpreter of an environment with vLLM, and the folder of a tiny model.
VLLM_PYTHON, VLLM_MODEL = os.environ.get("AITOP_VLLM_PYTHON"), os.environ.get("AITOP_VLLM_MODEL", "")


# Its answers also have a number and the time of day.
ITS_TEXT = ("--answer", r'"text": ?"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Case(Scenario):
    """A server with its load and what is wrong with it, or QUIET.

    `command` are the words after the interpreter, with {port}. Requests go to `path` and have the fields `body`.
    The load is `clients` that wait for each answer, or requests at random at `load` times what the server can answer;
    `sends` are further options of serving_load.py. `quota` is the part of a core that the server gets, `neighbours` is
    the number of hungry processes beside it, `stopped` says that the model's process is stopped with SIGSTOP, `streams`
    that an answer comes piece by piece. `without_hook` ("id/subtype") is as right at tier 2, where no single request is
    known: the same line as a part of all time. `change` are the words of the command that mend it, `changed` those
    after it, for a gain that can be measured.
    """

    command: tuple[str, ...] = ()
    path: str = "/score"
    body: tuple[tuple[str, object], ...] = ()
    load: float | None = None
    clients: int | None = None
    sends: tuple[str, ...] = ()
    quota: float | None = None
    neighbours: int = 0
    stopped: bool = False
    streams: bool = False
    without_hook: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    python: str = sys.executable

    def at(self, tier: int) -> Case:
        """What is expected at this tier."""
        return replace(self, accepted=(*self.accepted, *self.without_hook)) if tier < 3 else self

    def missing(self) -> str | None:
        """Why it cannot run here; None where it can."""
        if self.quota is not None and control_groups() is None:
            return "no control group can be made here"
        if self.python == "vllm":
            if not VLLM_PYTHON or not VLLM_MODEL:
                return "AITOP_VLLM_PYTHON and AITOP_VLLM_MODEL name no environment with vLLM and no model"
            return None
        absent = [package for package in self.needs if importlib.util.find_spec(package) is None]
        return f"needs {', '.join(absent)}" if absent else None

    def mended_command(self, to: int | None = None) -> tuple[str, ...]:
        """The command with its change, its last word `to` where that is given."""
        changed = self.changed if to is None else (*self.changed[:-1], str(to))
        words = " ".join(self.command)
        before, after = " ".join(self.change), " ".join(changed)
        if before not in words:
            raise ValueError(f"{self.name}: {before!r} is not in its command")
        return tuple(words.replace(before, after).split())


def case(name: str, file: str, verdict: str = QUIET, subtypes: Sequence[str] = (), **more: object) -> Case:
    """A case of a script of `servers`, which gets the part of the name behind the colon as its --cause."""
    _, _, cause = name.partition(":")
    options = {
        "command": (file, "--port", "{port}", "--cause", cause or "none"),
        "load": None if more.get("clients") else (0.3 if cause else 0.5),
        "fixed": False,
        **more,
    }
    return Case(name, SERVERS / file, verdict, tuple(subtypes), **options)  # type: ignore[arg-type]


def gunicorn(name: str, verdict: str = QUIET, subtypes: Sequence[str] = (), **more: object) -> Case:
    """A case of the Flask application below gunicorn."""
    _, _, cause = name.partition(":")
    words = f"-m gunicorn --worker-class gthread --threads 4 --bind 127.0.0.1:{{port}} ticket_topics:create('{cause}')"
    options = {"command": tuple(words.split()), "needs": ("flask", "gunicorn"), **more}
    return case(name, "ticket_topics.py", verdict, subtypes, **options)


# What a request asks of vLLM. However many tokens a word has, a prompt stays below the most that the model takes.
ASKED = (("model", VLLM_MODEL), ("max_tokens", 48), ("temperature", 0), ("ignore_eos", True), ("stream", True))
CUT = (("truncate_prompt_tokens", 3600),)


def vllm(name: str, verdict: str = QUIET, subtypes: Sequence[str] = (), *flags: str, **more: object) -> Case:
    """A case of vLLM on the CPU with random weights."""
    words = f"-m vllm.entrypoints.openai.api_server --model {VLLM_MODEL} --load-format dummy --enforce-eager"
    words += " --dtype float32 --port {port} --max-model-len 1024 " + " ".join(flags)
    options = {
        "command": tuple(words.split()),
        "path": "/v1/completions",
        "sends": ("--field", "prompt", "--words", "24", *ITS_TEXT),
        "body": ASKED,
        "python": "vllm",
        "streams": True,
        **more,
    }
    return Case(name, Path("vllm"), verdict, tuple(subtypes), fixed=False, **options)  # type: ignore[arg-type]


FASTAPI = ("fastapi", "uvicorn")
LITSERVE = ("litserve",)
TRANSFORMERS = ("transformers",)

HEALTHY_SERVERS = (
    case("review_scores", "review_scores.py", needs=FASTAPI),
    case("spam_filter", "spam_filter.py", needs=FASTAPI),
    case("sentence_pairs", "sentence_pairs.py", needs=FASTAPI),
    case("embeddings", "embeddings.py", path="/predict", needs=LITSERVE),
    case(
        "embeddings_batched",
        "embeddings.py",
        path="/predict",
        needs=LITSERVE,
        command=("embeddings.py", "--port", "{port}", "--batch", "8"),
    ),
    case("ranking_queue", "ranking_queue.py"),
    case("story_teller", "story_teller.py", sends=("--words", "24"), needs=TRANSFORMERS),
    case(
        "chat_batching",
        "chat_batching.py",
        path="/chat",
        streams=True,
        sends=("--words", "24"),
        needs=(*TRANSFORMERS, *FASTAPI),
    ),
    gunicorn("ticket_topics"),
    vllm("vllm", load=0.5),
)

TAILS = (
    case(
        "review_scores:collect",
        "review_scores.py",
        "latency-tail",
        ("collector",),
        accepted=("gc-stall",),
        guilty=("            gc.collect()",),
        needs=FASTAPI,
    ),
    case(
        "review_scores:compile",
        "review_scores.py",
        "latency-tail",
        ("compile",),
        accepted=("recompile",),
        # What was compiled for a length is never let go.
        beside=("memory-leak",),
        guilty=("answer = score(ids)",),
        sends=("--odd-every", "2"),
        needs=FASTAPI,
    ),
    case(
        "review_scores:sleep",
        "review_scores.py",
        "latency-tail",
        ("event-loop",),
        guilty=("time.sleep(0.4)",),
        without_hook=("host-bound/event-loop",),
        needs=FASTAPI,
    ),
    case(
        "review_scores:loop",
        "review_scores.py",
        "latency-tail",
        ("event-loop",),
        guilty=("table[a, b] = sum(", "for b in range(count):"),
        without_hook=("host-bound/event-loop",),
        needs=FASTAPI,
    ),
    case(
        "review_scores:quota",
        "review_scores.py",
        "latency-tail",
        ("quota",),
        accepted=("cpu-oversubscription",),
        command=("review_scores.py", "--port", "{port}"),
        load=0.6,
        quota=0.5,
        needs=FASTAPI,
    ),
    case(
        "review_scores:neighbour",
        "review_scores.py",
        "latency-tail",
        ("cores",),
        accepted=("cpu-oversubscription",),
        command=("review_scores.py", "--port", "{port}"),
        neighbours=3 * (os.cpu_count() or 1),
        needs=FASTAPI,
    ),
    case(
        "spam_filter:collect",
        "spam_filter.py",
        "latency-tail",
        ("collector",),
        accepted=("gc-stall",),
        guilty=("            gc.collect()",),
        needs=FASTAPI,
    ),
    case(
        "embeddings:collect",
        "embeddings.py",
        "latency-tail",
        ("collector",),
        accepted=("gc-stall",),
        path="/predict",
        guilty=("            gc.collect()",),
        needs=LITSERVE,
    ),
    case(
        "ranking_queue:collect",
        "ranking_queue.py",
        "latency-tail",
        ("collector",),
        accepted=("gc-stall",),
        guilty=("                gc.collect()",),
    ),
    case(
        "story_teller:collect",
        "story_teller.py",
        "latency-tail",
        ("collector",),
        accepted=("gc-stall",),
        sends=("--words", "24"),
        guilty=("                gc.collect()",),
        needs=TRANSFORMERS,
    ),
    case(
        "chat_batching:long",
        "chat_batching.py",
        "latency-tail",
        ("prefill",),
        path="/chat",
        streams=True,
        sends=("--words", "24", "--long-every", "5", "--long-words", "6000"),
        needs=(*TRANSFORMERS, *FASTAPI),
    ),
    gunicorn(
        "ticket_topics:loop",
        "latency-tail",
        ("handler", "lock"),
        guilty=('lines.append(f"{first}:{second}"', "for second in range(1200):"),
        without_hook=("host-bound/None", "preprocessing-bound", "python-overhead"),
    ),
    # A prompt of a thousand tokens takes this model 45 ms, which nobody notices beside requests of 160.
    vllm("vllm:long", "latency-tail", ("prefill",), "--max-model-len", "4096", load=0.3, body=(*ASKED, *CUT),
         sends=("--field", "prompt", "--words", "3", *ITS_TEXT, "--long-every", "5", "--long-words", "3600")),
    vllm("vllm:cache", "latency-tail", ("preemption",), "--num-gpu-blocks-override", "24", "--block-size", "32",
         "--max-model-len", "512",
         clients=24, accepted=("queue-bound",)),
)  # fmt: skip

ALWAYS = (
    case(
        "review_scores:tokenise",
        "review_scores.py",
        "preprocessing-bound",
        sends=("--words", "400"),
        guilty=(
            "while text[start:end] not in self.ids and end > start + 1:",
            "                end -= 1",
            "ids.append(self.ids.get(text[start:end], 0))",
        ),
        needs=FASTAPI,
    ),
    case(
        "spam_filter:tokenise",
        "spam_filter.py",
        "preprocessing-bound",
        clients=1,
        guilty=(
            "for j, other in enumerate(b, 1):",
            "previous, row[j] = row[j], min(",
            "row = list(range(len(b) + 1))",
            "previous, row[0] = row[0], i",
        ),
        needs=FASTAPI,
    ),
    case(
        "embeddings:tokenise",
        "embeddings.py",
        "preprocessing-bound",
        clients=1,
        path="/predict",
        guilty=('shape = "".join(', "stems.append(word[:", "for word in words * 120:"),
        needs=LITSERVE,
    ),
    case(
        "story_teller:tokenise",
        "story_teller.py",
        "preprocessing-bound",
        clients=1,
        sends=("--words", "100"),
        guilty=(
            "ranks = [self.rank.get(a + b, 1000)",
            "best = min(range(len(ranks))",
            "parts[best : best + 2] = [",
        ),
        needs=TRANSFORMERS,
    ),
    gunicorn(
        "ticket_topics:tokenise",
        "preprocessing-bound",
        clients=1,
        guilty=('letters.append("#" if letter.isdigit()', "for letter in word * 60:", 'clean.append("".join(letters)'),
        sends=("--words", "400"),
    ),
    case(
        "review_scores:lock",
        "review_scores.py",
        "gil-contention",
        accepted=("latency-tail/lock",),
        guilty=("weights[item % 97] = weights.get(", "for age, item in enumerate(self.seen):"),
        needs=FASTAPI,
    ),
    gunicorn(
        "ticket_topics:lock",
        "gil-contention",
        accepted=("latency-tail/lock",),
        guilty=("self.counts[number % 61] = ", "for number in range(20_000):"),
    ),
    # A handler in a thread returns a long list, which the event loop's thread makes JSON of.
    case("spam_filter:explain", "spam_filter.py", "gil-contention", clients=2, sends=("--words", "96"), needs=FASTAPI),
    # A batch is taken when eight requests are there or 0.2 s are over; three clients never fill it.
    case("ranking_queue:window", "ranking_queue.py", "queue-bound", ("held",), clients=3,
         guilty=("jobs.append(self.jobs.get(timeout=",)),
    # The same with a coroutine that collects them, of which no stack shows that it waits.
    case("sentence_pairs:window", "sentence_pairs.py", "queue-bound", ("held",), clients=6, needs=FASTAPI),
    case(
        "ranking_queue:single",
        "ranking_queue.py",
        "underbatched",
        beside=("queue-bound",),
        command=("ranking_queue.py", "--port", "{port}", "--batch", "1"),
        clients=16,
        change=("--batch", "1"),
        changed=("--batch", "8"),
        remedy="max_batch_size",
    ),
    case(
        "embeddings:single",
        "embeddings.py",
        "underbatched",
        beside=("queue-bound",),
        path="/predict",
        command=("embeddings.py", "--port", "{port}", "--batch", "1"),
        clients=16,
        change=("--batch", "1"),
        changed=("--batch", "8"),
        remedy="max_batch_size",
        needs=LITSERVE,
    ),
    case(
        "toxicity_workers:few",
        "toxicity_workers.py",
        "queue-bound",
        path="/predict",
        command=("toxicity_workers.py", "--port", "{port}", "--workers", "1"),
        clients=12,
        change=("--workers", "1"),
        changed=("--workers", "2"),
        remedy="replica",
        needs=LITSERVE,
    ),
    case("embeddings:stopped", "embeddings.py", "hang", path="/predict", clients=4, stopped=True, needs=LITSERVE,
         command=("embeddings.py", "--port", "{port}")),
    case("ranking_queue:stopped", "ranking_queue.py", "hang", clients=4, stopped=True,
         command=("ranking_queue.py", "--port", "{port}")),
)  # fmt: skip

CASES = (*HEALTHY_SERVERS, *TAILS, *ALWAYS)
CASE_BY_NAME = {each.name: each for each in CASES}
