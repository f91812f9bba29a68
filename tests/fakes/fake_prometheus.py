"""A Prometheus on the loopback that knows the series of a made-up cluster, and answers the queries of `aitop fleet`.

It computes what the real one computes for these queries and for no others; tests/e2e/test_fleet_prometheus.py holds it
against the real one. `series` makes the same series in OpenMetrics for that.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import fmean
from urllib.parse import parse_qs, urlsplit

from aitop.model.fleet import LEAST_LEAD, Attempt, Fleet, JobRanks
from aitop.sources.prometheus.client import Row
from aitop.sources.prometheus.fleet import WEIGHTS, detail, jobs_of, page, ranks_of

SCRAPED = {"instance": "here:9100", "job": "aitop"}
"""What Prometheus itself puts on each series; ours of the same name is renamed."""
VERDICT = ("verdict", "subtype", "severity", "file", "line")


@dataclass(frozen=True)
class Rank:
    """A rank with all that `aitop export` says of it. `lost` None: no device."""

    job: str
    node: str
    rank: int
    pid: int
    lost: float | None = None
    stalled: bool = False
    wait: float | None = None
    step: float | None = None
    user: str = ""
    up: bool = True
    verdicts: tuple[tuple[str, str, str, str, int, float | None, float | None], ...] = ()
    """Id, subtype, severity, file, line, share, speedup; the first one first."""


@dataclass
class Cluster:
    """What the fake knows. `hours` is how long all of it has been there."""

    ranks: list[Rank] = field(default_factory=list)
    hours: float = 1.0


def series(rank: Rank) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each series of a rank. Counters have what they grow by in a second."""
    labels = {"exported_job": rank.job, "node": rank.node, "rank": str(rank.rank), **SCRAPED}
    yield "aitop_up", {**labels, "pid": str(rank.pid)}, float(rank.up)
    yield "aitop_stalled", labels, float(rank.stalled)
    if rank.step is not None:
        yield "aitop_unit_seconds_sum", {**labels, "kind": "step"}, 1.0
        yield "aitop_unit_seconds_count", {**labels, "kind": "step"}, 1.0 / rank.step
    if rank.lost is not None:
        yield "aitop_wasted_gpu_ratio", labels, rank.lost
    if rank.wait is not None:
        yield "aitop_phase_ratio", {**labels, "phase": "communication"}, rank.wait
    for order, (*texts, share, speedup) in enumerate(rank.verdicts, 1):
        verdict = {name: str(text) for name, text in zip(VERDICT, texts, strict=True) if text}
        yield "aitop_verdict_order", {**labels, **verdict}, float(order)
        if share is not None:
            yield "aitop_verdict_share", {**labels, **verdict}, share
        if speedup is not None:
            yield "aitop_verdict_speedup", {**labels, "verdict": verdict["verdict"]}, speedup


def everything(ranks: Iterable[Rank]) -> Iterator[tuple[str, dict[str, str], float]]:
    """All series: those of each rank, of each job on a node, and of each node."""
    jobs: dict[tuple[str, str], str] = {}
    for rank in ranks:
        yield from series(rank)
        jobs.setdefault((rank.node, rank.job), rank.user)
    for (node, job), user in jobs.items():
        yield "aitop_job_info", {"exported_job": job, "node": node, **SCRAPED} | ({"user": user} if user else {}), 1.0
    for node, count in Counter(node for node, _ in jobs).items():
        yield "aitop_jobs", {"node": node, **SCRAPED}, float(count)


def answers_of(
    cluster: Cluster, window: float, job: str | None = None
) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The rows that each query of `page`, or with a job of `detail`, gives."""
    known = defaultdict(list)
    for name, labels, value in everything(cluster.ranks):
        if job is None or labels.get("exported_job") == job:
            known[name.removeprefix("aitop_")].append((labels, value))
    by = ["job", "exported_job"] if job is None else ["node", "rank"]
    covered = min(window / 3600, cluster.hours)
    stalled = _grouped(known["stalled"], by, sum if job is None else max)
    first = _first(known["verdict_order"], known["verdict_share"], by)
    firsts = {_named(labels) for labels, order in known["verdict_order"] if order == 1}
    speedup = _grouped([row for row in known["verdict_speedup"] if _named(row[0]) in firsts], [*by, "verdict"], max)
    if job is not None:
        seconds, units = (_grouped(known[f"unit_seconds_{part}"], by, sum) for part in ("sum", "count"))
        return {
            "up": _grouped(known["up"], [*by, "pid"], max),
            "stalled": stalled,
            "lost": _grouped(known["wasted_gpu_ratio"], by, max),
            "wait": _grouped(known["phase_ratio"], by, max),
            "step": [(labels, value / units[at][1]) for at, (labels, value) in enumerate(seconds)],
            "verdict": first,
            "speedup": speedup,
        }
    wasted = _grouped(known["wasted_gpu_ratio"], by, sum)
    return {
        "up": _grouped(known["up"], [*by, "node"], len),
        "watching": [({}, float(len(known["jobs"])))],
        "user": _grouped(known["job_info"], [*by, "user"], len),
        "stalled": [(labels, value) for labels, value in stalled if value > 0],
        "lost": _grouped(known["wasted_gpu_ratio"], by, fmean),
        "wasted": [(labels, value * covered) for labels, value in wasted],
        "verdict": first,
        "speedup": speedup,
        "late": _late(known["verdict_order"], known["phase_ratio"]),
    }


def _late(orders, waits):
    """The first verdict of the rank of each job that waits least, by how much less it waits than the others do."""
    least = {}
    for job in {labels["exported_job"] for labels, _ in waits}:
        each = [(wait, _named(labels)[:3]) for labels, wait in waits if labels["exported_job"] == job]
        (wait, rank), *others = sorted(each)
        if others and fmean(wait for wait, _ in others) - wait >= LEAST_LEAD:
            least[rank] = fmean(wait for wait, _ in others) - wait
    return [
        (labels, least[_named(labels)[:3]]) for labels, order in orders if order == 1 and _named(labels)[:3] in least
    ]


def _named(labels: dict[str, str]) -> tuple[str | None, ...]:
    return tuple(labels.get(name) for name in ("exported_job", "node", "rank", "verdict"))


def _grouped(rows, by, join):
    groups = defaultdict(list)
    for labels, value in rows:
        groups[tuple((name, labels[name]) for name in by if name in labels)].append(value)
    return [(dict(key), float(join(values))) for key, values in groups.items()]


def _first(orders, shares, by):
    share_of = {tuple(labels.items()): value for labels, value in shares}
    first = [(labels, share_of.get(tuple(labels.items()), 0.0)) for labels, order in orders if order == 1]
    sums = _grouped(first, [*by, *VERDICT], sum)
    weighed = [(labels, value + WEIGHTS[labels["severity"]]) for labels, value in sums]
    best = {}
    for labels, value in weighed:
        key = tuple(labels.get(name) for name in by)
        if key not in best or value > best[key][1]:
            best[key] = (labels, value)
    return list(best.values())


def vector(rows: Iterable[tuple[dict[str, str], float]]) -> bytes:
    """The body with which Prometheus 2.42 answers an instant query."""
    result = [{"metric": labels, "value": [1763880000.123, _text(value)]} for labels, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def _text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:+f}".replace("inf", "Inf") if math.isinf(value) else f"{value:.17g}"


class FakePrometheus:
    """Serves a cluster. `answer`, where set, is called with the request in place of answering the query."""

    def __init__(self, cluster: Cluster, window: float = 3600.0) -> None:
        self.cluster = cluster
        self.window = window
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer = None
        self._bodies: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def page(self) -> list[bytes]:
        """The answers to the queries for all jobs."""
        queries = page(self.window)
        if not self._bodies:
            self._know(queries, answers_of(self.cluster, self.window))
        return [self._bodies[query] for query in queries.values()]

    def body(self, query: str) -> bytes | None:
        """What the query is answered with; None for one that the fake does not know."""
        self.page()
        if query not in self._bodies:
            for job in {rank.job for rank in self.cluster.ranks}:
                if json.dumps(job, ensure_ascii=False) in query:
                    self._know(detail(job), answers_of(self.cluster, self.window, job))
        return self._bodies.get(query)

    def _know(self, queries, answers) -> None:
        self._bodies |= {queries[name]: vector(rows) for name, rows in answers.items()}

    def change(self, *ranks: Rank) -> None:
        """From now on the cluster has these ranks."""
        self.cluster = Cluster(list(ranks))
        self._bodies.clear()

    def __enter__(self) -> FakePrometheus:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(fake: FakePrometheus):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query).get("query", [""])[0]
            fake.asked.append(query)
            fake.headers.append(dict(self.headers))
            if fake.answer is not None:
                fake.answer(self)
                return
            body = fake.body(query) if parts.path == "/api/v1/query" else None
            if body is None:
                self.reply(400, vector([]).replace(b"success", b"error"), "application/json")
            else:
                self.reply(200, body, "application/json")

        def reply(self, status: int, body: bytes, kind: str = "text/html", **headers: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            """Tests have nothing to read there."""

    return Handler


INPUT = ("input-bound", "workers", "critical", "/home/ada/train/decode.py", 41, 0.64, 2.8)
STRAGGLER = ("straggler", "", "warning", "/home/eve/loop.py", 12, 0.3, 1.42)
COMPUTE = ("compute-bound", "", "info", "", 0, 0.93, 1.0)
HANG = ("hang", "", "critical", "/opt/app/sync.py", 77, None, None)


def four_jobs() -> list[Rank]:
    """A slow loader, a straggler over two nodes, a hang, and a healthy job."""
    ranks = [
        Rank("loader-7", "gpu-a", rank, 700 + rank, 0.64, wait=0.1, user="ada", verdicts=(INPUT, COMPUTE))
        for rank in range(4)
    ]
    ranks += [
        Rank("ddp-8", "gpu-a" if rank < 2 else "gpu-b", rank, 800 + rank, 0.3, wait=0.02 if rank == 3 else 0.4,
             step=0.25, verdicts=(STRAGGLER,) if rank == 3 else (COMPUTE,))
        for rank in range(4)
    ]  # fmt: skip
    ranks += [
        Rank("hung-9", "gpu-b", rank, 900 + rank, 1.0 if rank else 0.0, stalled=True, verdicts=(HANG,))
        for rank in range(2)
    ]
    return [*ranks, Rank("fine-1", "gpu-b", 0, 100, 0.02, verdicts=(COMPUTE,))]


def thirteen_jobs() -> list[Rank]:
    """A cluster as it may look on some day."""
    ranks = []
    for number, (job, nodes, each, lost, stalled, *verdict) in enumerate(JOBS_OF_A_DAY):
        for rank in range(nodes * each):
            late = verdict[0] == "straggler" and rank == 11
            ranks.append(
                Rank(
                    job,
                    f"gpu{(7 * number + rank // each) % 40 + 1:03d}",
                    rank,
                    41_200 + 97 * number + rank,
                    lost if verdict[2] != "info" else 0.0,
                    stalled,
                    wait=None if nodes * each == 1 else 0.03 if late else 0.06 + 0.9 * lost + rank % 5 / 100,
                    step=0.41 + number / 20 if rank % each == 0 else None,
                    user=verdict[3].split("/")[2] if verdict[3] else "zoe",
                    verdicts=(tuple(verdict),) if late or verdict[0] != "straggler" else (COMPUTE,),
                )
            )
    return ranks


JOBS_OF_A_DAY = (
    ("4417302", 4, 8, 0.31, False, "straggler", "", "warning", "/home/ada/nanogpt/train.py", 212, 0.31, 1.44),
    ("4417377", 2, 8, 0.64, False, "input-bound", "workers", "critical", "/home/eve/vit/data/decode.py", 41, 0.64, 2.7),
    ("4417391", 1, 8, 1.0, True, "hang", "", "critical", "/home/bo/moe/parallel.py", 88, None, None),
    ("4417405", 8, 8, 0.04, False, "compute-bound", "", "info", "", 0, 0.93, 1.0),
    ("4417410", 1, 8, 0.22, False, "checkpoint-stall", "", "warning", "/home/ida/ddpm/loop.py", 143, 0.22, 1.27),
    ("4417418", 1, 4, 0.47, False, "sync-stall", "", "critical", "/home/lin/rl/agent.py", 57, 0.47, 1.9),
    ("4417422", 1, 1, 0.88, False, "host-bound", "", "critical", "/home/kai/notebooks/eval.py", 19, 0.88, 5.1),
    ("4417423", 1, 1, 0.71, False, "underbatched", "", "warning", "/home/mo/serve/app.py", 31, 0.71, 2.2),
    ("4417440", 2, 4, 0.18, False, "comm-bound", "", "warning", "/home/ada/llama/fsdp.py", 301, 0.18, 1.2),
    ("4417441", 1, 2, 0.36, False, "gil-contention", "", "warning", "/home/pia/tab/features.py", 77, 0.36, 1.5),
    ("4417452", 1, 8, 0.09, False, "launch-bound", "", "info", "/home/noa/gnn/model.py", 120, 0.09, 1.08),
    ("4417466", 1, 1, 0.02, False, "compute-bound", "", "info", "", 0, 0.96, 1.0),
    ("4417467", 4, 8, 0.12, False, "eval-stall", "", "warning", "/home/sam/t5/finetune.py", 164, 0.12, 1.13),
)


class Still:
    """A cluster that was asked for once: what the screen needs of one, without a server."""

    shown = "http://prometheus:9090"

    def __init__(self, *ranks: Rank) -> None:
        self._cluster = Cluster(list(ranks) or thirteen_jobs())

    def attempt(self, job: str | None = None) -> Attempt:
        """All jobs, or the ranks of one."""
        answers = answers_of(self._cluster, 3600.0, job)
        rows = {name: [Row(*row) for row in each] for name, each in answers.items()}
        if job is None:
            return Attempt(time=0.0, answer=Fleet(time=0.0, window=3600.0, jobs=jobs_of(rows)))
        return Attempt(time=0.0, answer=JobRanks(time=0.0, job=job, ranks=ranks_of(rows)))


def large(nodes: int, each: int = 8, ranks_of_job: int = 32) -> list[Rank]:
    """Jobs of so many ranks, a rank on each device of the nodes."""
    return [_of_large(at // each, *divmod(at, ranks_of_job)) for at in range(nodes * each)]


def _of_large(node: int, job: int, number: int) -> Rank:
    lost = ((job * 37) % 100) / 100
    file = f"/home/user{job % 50}/project/train_{job % 17}.py"
    severity, gain = "critical" if lost > 0.5 else "warning", 1 / (1.01 - lost)
    return Rank(
        job=f"{4_000_000 + job}",
        node=f"gpu-node-{node:04d}",
        rank=number,
        pid=10_000 + number,
        lost=lost,
        stalled=job % 211 == 7,
        wait=0.02 if number == job % 32 else 0.3,
        user=f"user{job % 50}",
        verdicts=(
            ("input-bound", "workers", severity, file, 40 + job % 300, lost, gain),
            ("gil-contention", "", "info", file, 12, 0.05, 1.05),
        ),
    )


@contextmanager
def served(*ranks: Rank) -> Iterator[FakePrometheus]:
    """A fake that knows these ranks; the four jobs where none are given."""
    with FakePrometheus(Cluster(list(ranks) or four_jobs())) as fake:
        yield fake
