"""preprocessing-bound: in inference, making the model's input (tokenising, decoding) takes most of a request."""

from __future__ import annotations

from aitop.diagnosis.causes.serving.front import full_front
from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import (
    RUNNING,
    Lines,
    blocks_loop,
    each_unit,
    free_cores,
    main_lines,
    of_unit,
    place_of,
    records,
    samples_of,
    shares_by,
    within_first,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Loading, Scope, fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent, plural
from aitop.model.verdict import Fix

# From this share on, most of a request's time is spent making its input: users feel that, however few requests come.
MOSTLY = 0.5
WORTH_IT = 1.05
DOING = {"decode": "decoding", "tokenize": "tokenising", "collate": "collating", "weights": "building a model"}


@rule(
    "preprocessing-bound",
    # As for Python of any other kind (python-overhead), which would tell of the same lines.
    0.15,
    0.1,
    applies=lambda snapshot: snapshot.kind != "training",
    scope=Scope(idle=True),
)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether requests spend their time on the way to the model: in host work before its call, or in a data loader."""
    front = full_front(snapshot, making=True)
    if front is not None:
        return front
    if snapshot.kind == "unknown":
        return "too few samples show a forward pass to tell inference from training"
    lines = main_lines(
        snapshot,
        lambda entry: (
            entry.does in RUNNING
            # Without a user's line and without library work, it is the serving library's own hand-over.
            and (entry.where is not None or entry.work is not None)
            and not blocks_loop(entry)
            and (
                entry.phase in ("data", "preprocess", "postprocess")
                or (entry.phase == "host" and entry.position == "before")
            )
        ),
    )
    if not lines.lines:
        return None
    share = min(lines.share, host_limit(snapshot))
    of_request, at_leisure = of_unit(snapshot, share)
    work = _most_work(lines)
    # A model that is kept saves all that building it takes, not only its heaviest line.
    built = lines.part(lambda entry: entry.work == "weights") if work == "weights" else 0.0
    saved = of_request * max(within_first(lines), built)
    doing = DOING.get(work, "computing")
    made = f"{percent(lines.share)} of {samples_of(snapshot)} stack samples make {_made(lines)}, most of them: {doing}"
    unit = "each request" if at_leisure else each_unit(snapshot)
    evidence = [f"{made} in {place_of(lines.where[0])}"]
    if snapshot.phases.forward is not None:
        evidence.append(f"the model itself takes {percent(snapshot.phases.forward)}")
    if at_leisure:
        evidence.append(at_leisure)
    return Explanation(
        severity=None if not at_leisure else "warning" if of_request >= MOSTLY else "info",
        share=share,
        saved=saved,
        signals=(bool(records(snapshot)), True, of_request >= MOSTLY),
        doubtful=host_unproven(snapshot),
        title=f"{percent(of_request)} of {unit} is spent making {_made(lines)}",
        lines=lines,
        evidence=evidence,
        fixes=_fixes(snapshot, of_request, saved, lines, work),
    )


def _made(lines: Lines) -> str:
    """What is made, by most of the work and by the heaviest line: a model, or the model's input or output."""
    if _most_work(lines) == "weights":
        return "a model anew"
    return f"the model's {_side(lines)}"


def _side(lines: Lines) -> str:
    return "output" if lines.lines[0].phase == "postprocess" else "input"


def _most_work(lines: Lines) -> str:
    """The kind of library work that takes most of the lines' time; empty if that is work of no library."""
    weights = shares_by(lines.entries, lambda entry: entry.work or "")
    return max(weights, key=lambda work: weights[work])


def _fixes(snapshot: Snapshot, share: float, saved: float, lines: Lines, work: str) -> list[Fix]:
    place = place_of(lines.where[0])
    cheaper = {
        "tokenize": f"tokenise at {place} with a compiled tokenizer, several texts per call, or cache repeated ones",
        "decode": f"make decoding in {place} cheaper: a faster decoder, a binary format, the size that the model needs",
        "weights": f"build and load the model of {place} once, and keep it for all requests",
    }.get(work, f"make {place} cheaper: vectorise it, cache results that repeat, or do it once beforehand")
    loading = Loading(wait=share, free_cores=free_cores(snapshot))
    processes = loading.best_workers()
    ahead = loading.with_workers(processes)
    fixes = [fix(cheaper, saved)]
    # What is made between two passes of the model, its next pass waits for.
    if ahead.speedup > WORTH_IT and lines.lines[0].position != "within" and work != "weights":
        what = "outputs" if _side(lines) == "output" else "inputs ahead"
        makers = plural(processes, "process", "processes")
        fixes.append(fix(f"make {what} in {makers} of their own while the model runs", ahead))
    return fixes
