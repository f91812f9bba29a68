"""Ranks spend their steps exchanging data: comm-bound."""

from __future__ import annotations

from aitop.diagnosis.evidence import confidence
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.steps import DdpInfo
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Verdict

MIN_STEPS = 10
CRITICAL_SHARE = 0.4
ACCUMULATED = 4
OVERLAPPED = 0.5


def comm_bound(snapshot: Snapshot) -> Judgement:
    """Even the rank that waits least waits long: that is the exchange, not another rank."""
    ranks = snapshot.ranks
    if ranks is None:
        return None
    if ranks.steps < MIN_STEPS or not ranks.step or ranks.exchange is None:
        return Abstention(
            id="comm-bound", reason=f"{ranks.steps} steps of several ranks so far; {MIN_STEPS} are needed"
        )
    share = min(0.95, ranks.exchange / ranks.step)
    ddp = snapshot.facts.ddp if snapshot.facts else None
    return Finding(
        Verdict(
            id="comm-bound",
            severity="critical" if share >= CRITICAL_SHARE else "warning",
            share=round(share, 4),
            speedup=round(without(share), 3),
            confidence=confidence(ddp is not None, share > CRITICAL_SHARE, steps=ranks.steps),
            title=f"{percent(share)} of each step is exchange between ranks that no computing hides",
            evidence=tuple(_evidence(1e3 * ranks.exchange, ddp)),
            fixes=tuple(_fixes(share, ddp)),
            ranks=tuple(one.rank for one in ranks.ranks if one.rank is not None),
        ),
        level=share,
    )


def _evidence(milliseconds: float, ddp: DdpInfo | None) -> list[str]:
    told = [f"even the rank that waits least waits {milliseconds:.1f} ms of each step for the exchange"]
    if ddp is None:
        return told
    if ddp.gradient_bytes:
        told.append(
            f"{ddp.gradient_bytes / 1e6:.0f} MB of gradients a step over {ddp.backend or 'an unnamed backend'}"
            + (f", in buckets of {ddp.bucket_cap_mb:.0f} MB" if ddp.bucket_cap_mb else "")
        )
    if ddp.communication and ddp.overlap is not None:
        hidden = min(1.0, ddp.overlap / ddp.communication)
        told.append(f"{percent(hidden)} of the exchange lies in the shadow of the backward pass")
    return told


def _fixes(share: float, ddp: DdpInfo | None) -> list[Fix]:
    rarely = without(share * (1.0 - 1.0 / ACCUMULATED))
    fixes = [
        Fix(
            text=f"accumulate gradients over {ACCUMULATED} batches under `model.no_sync()`, and exchange once",
            speedup=round(rarely, 3),
        ),
        Fix(text="exchange half the bytes: model.register_comm_hook(None, bf16_compress_hook)",
            speedup=round(without(share / 2), 3)),
    ]  # fmt: skip
    if ddp is not None and ddp.communication and (ddp.overlap or 0.0) < OVERLAPPED * ddp.communication:
        fixes.append(Fix(text="a smaller bucket_cap_mb, so that the exchange begins earlier in the backward pass"))
    return fixes


RULE = Rule("comm-bound", comm_bound, Band(enter=0.2, leave=0.12))
