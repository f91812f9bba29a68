"""Reads the jobs of a cluster from the metrics of `aitop export` in Prometheus, by a few aggregated queries.

Labels are foreign: an element without a job, or with a value that cannot be, is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from aitop.errors import AitopError, NotEnoughEvidenceError
from aitop.model.fleet import LEAST_LEAD, Attempt, CodeLine, Finding, Fleet, FleetJob, FleetRank, JobRanks
from aitop.model.verdict import Severity
from aitop.sources.host.identity import node_name
from aitop.sources.prometheus.address import Address
from aitop.sources.prometheus.client import Row, ask

WINDOW_SECONDS = 3600.0
MOMENTS = 60
"""At how many points of the window the loss is evaluated."""
RECENT = "5m"
"""The span over which the length of a step is averaged."""
LONGEST_LABEL = 500
LARGEST_NUMBER = 2**31
Answers = Mapping[str, Sequence[Row]]
Key = tuple[str, ...]
WEIGHTS: dict[Severity, float] = {"critical": 2e7, "warning": 1e7, "info": 0.0}
"""Added to the summed shares of a verdict, so that a serious one outweighs whatever lighter ones add up to."""
_SEVERITIES: dict[str, Severity] = {severity: severity for severity in WEIGHTS}
VERDICT = ("verdict", "subtype", "severity", "file", "line")
LABELS = ("job", "node", "rank", "pid", "user", *VERDICT)
_RENAMED = {name: f"exported_{name}" for name in LABELS}
"""Prometheus renames a label of ours where the scrape gives one of that name."""


class FleetReader:
    """Reads the jobs, and the ranks of a job. Every call asks anew, may take some seconds, and may raise AitopError."""

    def __init__(self, address: Address, window: float = WINDOW_SECONDS) -> None:
        self.address = address
        self.window = window

    @property
    def shown(self) -> str:
        """The address without name and password."""
        return self.address.shown

    def jobs(self) -> Fleet:
        """All jobs that are watched now. Raises NotEnoughEvidenceError where nobody watches."""
        asked = time.monotonic()
        answers = ask(self.address, page(self.window))
        fleet = Fleet(time=asked, window=self.window, jobs=jobs_of(answers))
        watching = max(fleet.nodes, round(sum(_values(answers["watching"]).values())))
        if not fleet.jobs and not watching:
            raise NotEnoughEvidenceError(
                f"Prometheus at {self.address.shown} knows of no node that aitop watches now",
                "run `aitop export --all --prometheus HOST:PORT` on the nodes, and let Prometheus scrape it",
            )
        return replace(fleet, watching=watching)

    def ranks(self, job: str) -> JobRanks:
        """The ranks of one job over all its nodes; none if it has ended."""
        asked = time.monotonic()
        return JobRanks(time=asked, job=job, ranks=ranks_of(ask(self.address, detail(job))))

    def job_with(self, pids: Collection[int]) -> str:
        """The job to which most of these processes of this machine belong. Raises AitopError where there is none."""
        name = json.dumps(node_name())
        selectors = (f'pid=~"{"|".join(map(str, pids))}", {label}={name}' for label in ("node", "exported_node"))
        query = " or ".join(f"aitop_up{{{selector}}}" for selector in selectors)
        jobs = _values(ask(self.address, {"jobs": f"count by ({_labels('job')}) ({query})"})["jobs"], "job")
        if not jobs:
            raise AitopError(
                f"Prometheus at {self.address.shown} does not know this job as one of the node {name}",
                "run `aitop export --all --prometheus HOST:PORT` here",
            )
        return max(jobs, key=jobs.__getitem__)[0]

    def attempt(self, job: str | None = None) -> Attempt:
        """All jobs, or the ranks of `job`. An error is returned as the problem of the attempt."""
        try:
            answer = self.jobs() if job is None else self.ranks(job)
        except AitopError as error:
            return Attempt(time=time.monotonic(), problem=str(error))
        return Attempt(time=answer.time, answer=answer)


def page(window: float) -> dict[str, str]:
    """The queries for all jobs, by name. Each returns a few rows a job, however many ranks there are."""
    job, step = _labels("job"), max(1, round(window / MOMENTS))
    seen = f"sum_over_time(aitop_wasted_gpu_ratio[{round(window)}s:{step}s])"
    return {
        "up": f"count by ({job}, {_labels('node')}) (aitop_up)",
        "watching": f"count(count by ({_labels('node')}) (aitop_jobs))",
        "user": f"count by ({job}, {_labels('user')}) (aitop_job_info)",
        "stalled": f"sum by ({job}) (aitop_stalled) > 0",
        "lost": f"avg by ({job}) (aitop_wasted_gpu_ratio)",
        "wasted": f"sum by ({job}) ({seen}) * {step} / 3600",
        "verdict": _first(job, ""),
        "speedup": _speedup(job, ""),
        "late": _late(job),
    }


def detail(job: str) -> dict[str, str]:
    """The queries for the ranks of one job, by name."""
    rank = _labels("node", "rank")
    wait, step = 'aitop_phase_ratio{phase="communication", JOB}', 'kind="step", JOB'
    seconds, steps = (
        f"sum by ({rank}) (rate(aitop_unit_seconds_{part}{{{step}}}[{RECENT}]))" for part in ("sum", "count")
    )
    queries = {
        "up": f"max by ({rank}, pid) (aitop_up{{JOB}})",
        "stalled": f"max by ({rank}) (aitop_stalled{{JOB}})",
        "lost": f"max by ({rank}) (aitop_wasted_gpu_ratio{{JOB}})",
        "wait": f"max by ({rank}) ({wait})",
        "step": f"{seconds} / ({steps} > 0)",
        "verdict": _first(rank, "JOB"),
        "speedup": _speedup(rank, "JOB"),
    }
    # In PromQL a string is quoted as in JSON.
    name = json.dumps(job, ensure_ascii=False)
    ours, renamed = f'job={name}, exported_job=""', f"exported_job={name}"
    return {
        key: f"({query.replace('JOB', ours)}) or ({query.replace('JOB', renamed)})" for key, query in queries.items()
    }


def _labels(*names: str) -> str:
    """These labels for a `by` clause, each under both names that it may have."""
    return ", ".join(f"{name}, {_RENAMED[name]}" for name in names)


def _first(by: str, selector: str) -> str:
    """The query for the verdict of each group `by`: of its ranks' first verdicts the most serious, then the largest.

    One without a share of the time, as a hang or the slowest requests, counts as 0.
    """
    sums = []
    for severity, weight in WEIGHTS.items():
        labels = f'{{severity="{severity}", {selector}}}'
        first = f"aitop_verdict_order{labels} == 1"
        shares = f"(aitop_verdict_share{labels} and {first}) or ({first}) * 0"
        sums.append(f"sum by ({by}, {', '.join(VERDICT)}) ({shares}) + {weight:.0f}")
    return f"topk by ({by}) (1, {' or '.join(sums)})"


def _speedup(by: str, selector: str) -> str:
    """The query for the predicted speedup of the first verdicts of each group `by`."""
    same = f"on ({_labels('job', 'node', 'rank')}, verdict)"
    first = f"aitop_verdict_speedup{{{selector}}} and {same} (aitop_verdict_order{{{selector}}} == 1)"
    return f"max by ({by}, verdict) ({first})"


def _late(job: str) -> str:
    """The query for the first verdict of the late rank of each job: the one that waits least, as others wait for it.

    Its value is how much less that rank waits than the others do on average, as a share of time. That is n / (n - 1)
    times what it is below the average of all n ranks; a rank alone gives 0 / 0, which is above nothing.
    An exporter knows only the ranks of its machine, which may all wait for one elsewhere: hence a query over all.
    """
    rank = _labels("job", "node", "rank")
    waits = f'max by ({rank}) (aitop_phase_ratio{{phase="communication"}})'
    ranks = f"count by ({job}) ({waits})"
    below = f"topk by ({job}) (1, avg by ({job}) ({waits}) - on ({job}) group_right () {waits})"
    least = f"{below} * on ({job}) group_left () ({ranks} / ({ranks} - 1))"
    return f"(aitop_verdict_order == 1) * on ({rank}) group_left () ({least} >= {LEAST_LEAD})"


def jobs_of(answers: Answers) -> tuple[FleetJob, ...]:
    """Make jobs of the answers to the queries of `page`."""
    nodes: dict[str, dict[str, float]] = {}
    for (job, node), ranks in _values(answers["up"], "job", "node").items():
        if job and ranks >= 1:
            nodes.setdefault(job, {})[node] = ranks
    figures = {name: _values(answers[name], "job") for name in ("stalled", "lost", "wasted")}
    findings = _findings(answers, {(job,): sum(on.values()) for job, on in nodes.items()}, "job")
    for key, straggler in _stragglers(answers).items():
        found = findings.get(key)
        # "comm-bound" is how the other ranks see it, the subtype how the late one does.
        same = found is not None and found.verdict in ("comm-bound", straggler.subtype)
        if found and found.verdict not in ("straggler", "hang") and (same or found.severity != "critical"):
            findings[key] = straggler
    users: dict[str, set[str]] = {}
    for job, user in _values(answers["user"], "job", "user"):
        users.setdefault(job, set()).add(user)
    jobs = []
    for job, ranks_on in nodes.items():
        ranks, key = round(sum(ranks_on.values())), (job,)
        jobs.append(
            FleetJob(
                job=job,
                nodes=tuple(sorted(node for node in ranks_on if node)),
                ranks=ranks,
                user=", ".join(sorted(filter(None, users.get(job, ())))) or None,
                stalled=min(ranks, round(figures["stalled"].get(key, 0.0))),
                lost=_ratio(figures["lost"].get(key)),
                wasted=figures["wasted"].get(key),
                finding=findings.get(key),
            )
        )
    return tuple(jobs)


def ranks_of(answers: Answers) -> tuple[FleetRank, ...]:
    """Make ranks of the answers to the queries of `detail`."""
    figures = {name: _values(answers[name], "node", "rank") for name in ("stalled", "lost", "wait", "step")}
    findings = _findings(answers, {}, "node", "rank")
    ranks = []
    for (node, rank, pid), up in _values(answers["up"], "node", "rank", "pid").items():
        key = (node, rank)
        ranks.append(
            FleetRank(
                node=node,
                rank=_whole(rank),
                pid=_whole(pid),
                watched=up > 0,
                stalled=figures["stalled"].get(key, 0.0) > 0,
                step=figures["step"].get(key),
                wait=_ratio(figures["wait"].get(key)),
                lost=_ratio(figures["lost"].get(key)),
                finding=findings.get(key),
            )
        )
    return tuple(ranks)


def _findings(answers: Answers, ranks: Mapping[Key, float], *labels: str) -> dict[Key, Finding]:
    """The first verdict of each group. Its summed share is divided by the group's number of `ranks` (default 1)."""
    speedups = _values(answers["speedup"], *labels, "verdict")
    findings = {}
    for row in answers["verdict"]:
        verdict, subtype, name, file, line = _key(row, VERDICT)
        severity, key = _SEVERITIES.get(name), _key(row, labels)
        if severity is None or not verdict:
            continue
        share = (row.value - WEIGHTS[severity]) / ranks.get(key, 1.0)
        findings[key] = Finding(
            verdict=verdict,
            subtype=subtype or None,
            severity=severity,
            share=min(1.0, share) if share > 0 else None,
            speedup=speedups.get((*key, verdict)),
            where=CodeLine(file, _whole(line) or 0) if file else None,
        )
    return findings


def _stragglers(answers: Answers) -> dict[Key, Finding]:
    """A finding "straggler" for each job that waits for one rank, with the verdict on this rank as the subtype.

    It is as severe as that verdict, but at least a warning.
    """
    found = {}
    for row in answers["late"]:
        if row.value <= 0.0:
            continue
        verdict, severity, file, line = _key(row, ("verdict", "severity", "file", "line"))
        found[_key(row, ("job",))] = Finding(
            verdict="straggler",
            subtype=verdict or None,
            severity="critical" if severity == "critical" else "warning",
            share=_ratio(row.value),
            where=CodeLine(file, _whole(line) or 0) if file else None,
        )
    return found


def _values(rows: Sequence[Row], *labels: str) -> dict[Key, float]:
    """The values by these labels, those of equal labels added up; without negative ones, which none of ours is."""
    values: dict[Key, float] = {}
    for row in rows:
        if 0 <= row.value < LARGEST_NUMBER:
            key = _key(row, labels)
            values[key] = values.get(key, 0.0) + row.value
    return values


def _key(row: Row, labels: Sequence[str]) -> Key:
    """What aitop has exported under these names, empty where one is missing."""
    known = row.labels
    return tuple([(known.get(_RENAMED[name]) or known.get(name, ""))[:LONGEST_LABEL] for name in labels])


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _ratio(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)
