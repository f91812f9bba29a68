"""precision: the device computes in a wider type than it needs to: float64, or float32 beside idle tensor cores."""

from __future__ import annotations

import re

from aitop.diagnosis import op_cost
from aitop.diagnosis.device import activity_of_devices, idle_share, on_gpu, own_devices
from aitop.diagnosis.evidence import RUNNING, Lines, main_lines, operations_of_step, running
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, estimated, fix
from aitop.model.peaks import peak
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts
from aitop.model.units import percent
from aitop.model.verdict import Fix

# What computes in float64 takes half the time in float32: half the bytes, and twice the SIMD lanes. Small operations
# gain less. On a CPU training steps of linear layers, a transformer, GRUs and norms became 1.8 to 2.5 times as fast,
# but those of convolutions, LSTMs and GELUs 2.3 to 6 times.
FLOAT64_SAVED, LEAST_SAVED, MOST_SAVED = 0.5, 0.25, 0.83
# Tensor cores of data-centre cards multiply TF32 and 16-bit types by the data sheet five to sixteen times as fast as
# plain cores do float32; memory seldom keeps up with more than four. Cards that are not known are taken for those of
# workstations, and GeForce has no gain from TF32.
MOST_FASTER, USUALLY_FASTER = 4.0, 2.0
# The share of the data sheet's figure that good matrix products reach.
REACHED = 0.8
# A device that idles for more than MOST_IDLE is not the limit; tensor cores active for TENSOR_CORES_IN_USE are in use.
MOST_IDLE = 0.35
TENSOR_CORES_IN_USE = 0.1

TF32 = re.compile(
    r"\b(?:A\d+G?|H\d{2,3}|B\d{3}|GH\d+|GB\d+|L4|L40S?|RTX [3-5]0\d\d|RTX A\d+|RTX \d000 Ada|RTX PRO \d{4})\b"
)
HALF_ONLY = re.compile(r"\b(?:V100|T4|TITAN V|TITAN RTX|RTX 20\d\d|Quadro RTX)\b")


@rule("precision", 0.15, 0.1, scope=Scope(each_unit=True, everywhere=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether a narrower type would make the device faster, where the device is the limit."""
    facts = snapshot.facts
    if facts is None:
        return _by_counters(snapshot) or "in which types the model computes is known only from inside of the process"
    if not facts.parameter_dtypes:
        return _by_counters(snapshot) or "no model with parameters was seen to run yet"
    if "float64" in facts.parameter_dtypes and not facts.autocast:
        return _float64(snapshot, facts)
    if on_gpu(snapshot) and facts.parameter_dtypes[0] == "float32":
        return _float32(snapshot, facts)
    return None


def _float64(snapshot: Snapshot, facts: HookFacts) -> Explanation | str:
    device = on_gpu(snapshot)
    idle = idle_share(snapshot) if device else 0.0
    if idle is None:
        return "the parameters are float64; whether the GPU is the limit is not measured"
    lines = main_lines(
        snapshot, lambda entry: entry.does in RUNNING and (entry.phase == "forward" or entry.within_step)
    )
    computing = (1.0 - idle) if device else _computing(snapshot, lines)
    share = computing * FLOAT64_SAVED
    pipe = activity_of_devices(snapshot, "fp64") if device else None
    only = facts.parameter_dtypes == ("float64",)
    root = facts.root or "the model"
    evidence = [f"parameters of {root} are {' and '.join(facts.parameter_dtypes)}"]
    if facts.input_dtypes:
        evidence.append(f"its inputs are {', '.join(facts.input_dtypes)}")
    evidence.append(f"{percent(computing)} of each step computes in it, beyond the cost of calling operations")
    if pipe is not None:
        evidence.append(f"float64 units at work {percent(pipe)} of the time")
    return Explanation(
        share=share,
        saved=estimated(share, computing * LEAST_SAVED, computing * MOST_SAVED),
        signals=(only, "float64" in facts.input_dtypes or bool(pipe), computing > 0.7),
        # Where only some parameters are float64 it is not known how much of the time is theirs.
        doubtful=not only,
        title=f"{root} computes in float64: float32 takes half the time or less",
        lines=lines,
        claims=(),
        evidence=evidence,
        fixes=(
            fix(f"{root} and its inputs in float32: model.float(), batch.float(), and no set_default_dtype", share),
            fix("NumPy makes float64 unless told: .astype(np.float32) before torch.from_numpy"),
        ),
    )


def _computing(snapshot: Snapshot, lines: Lines) -> float:
    """Share of a step on the CPU that computes, without the cost of calling operations, forward and backward.

    That cost is estimated from the part of the time in which the GIL is held, and from the number of operations in the
    graph; the smaller estimate counts.
    """
    phases = ("forward", "backward", "optimizer", "evaluation")
    whole = main_lines(snapshot, lambda entry: entry.phase in phases or entry.within_step).share
    by_lock = whole * min(1.0, op_cost.WHOLE_CALL * lines.part(lambda entry: entry.does == "python"))
    step = snapshot.steps.mean if snapshot.steps else None
    ops = operations_of_step(snapshot)
    if ops is None or not step:
        return whole - by_lock
    by_count = ops * (op_cost.FORWARD + op_cost.BACKWARD) / (step * running(snapshot))
    return whole - min(whole, by_lock, by_count)


def _tensor_cores(snapshot: Snapshot) -> tuple[bool, bool]:
    """Whether the devices have tensor cores for TF32, and whether they are known to have no tensor cores at all."""
    names = [device.name for device in own_devices(snapshot) if device.name]
    tf32 = any(TF32.search(name) for name in names)
    return tf32, bool(names) and not tf32 and not any(HALF_ONLY.search(name) for name in names)


def _saved(snapshot: Snapshot, dtype: str) -> float:
    """The share of the time of float32 products that the slowest of the devices saves with products in this dtype."""
    names = [device.name or "" for device in own_devices(snapshot)]
    rates = [(peak(name, dtype), peak(name, "float32")) for name in names]
    faster = [narrow / single if narrow and single else USUALLY_FASTER for narrow, single in rates]
    return 1.0 - 1.0 / max(1.0, min([MOST_FASTER, *faster]))


def _narrower(snapshot: Snapshot, products: float, root: str) -> tuple[float, tuple[Fix, ...]]:
    """The share of the time that the smallest change saves, and the changes; `products` is their share of the time."""
    tf32, _ = _tensor_cores(snapshot)
    autocast = f'torch.autocast("cuda", dtype=torch.{"bfloat16" if tf32 else "float16"})'
    wide = f"{autocast} around the forward pass{f' of {root}' if root else ''}"
    if tf32 and (share := products * _saved(snapshot, "tf32")):
        least = fix('torch.set_float32_matmul_precision("high"): TF32 on tensor cores, no other change', share)
        return share, (least, fix(wide))
    share = products * _saved(snapshot, "bfloat16" if tf32 else "float16")
    return share, (fix(wide if tf32 else f"{wide}, with a GradScaler in training", share),)


def _by_counters(snapshot: Snapshot) -> Explanation | None:
    """The verdict that the device's own counters give on float32 beside idle tensor cores, whatever library is in use.

    On an H100 they showed float32 units at work for 0.74 of the time in matrix products that reached 0.69 of the data
    sheet's figure, and for 0.09 in normalisations.
    """
    tf32, _ = _tensor_cores(snapshot)
    products, tensor = activity_of_devices(snapshot, "fp32"), activity_of_devices(snapshot, "tensor")
    if not tf32 or products is None or tensor is None or tensor >= TENSOR_CORES_IN_USE:
        return None
    share, fixes = _narrower(snapshot, min(0.95, products / REACHED), "")
    return Explanation(
        share=share,
        signals=(True, True),
        most_sure=0.6,
        title="the GPU computes in float32 beside idle tensor cores",
        lines=main_lines(snapshot, lambda entry: entry.phase in ("forward", "host")),
        claims=(),
        evidence=(
            f"float32 units at work {percent(products)} of the time",
            f"tensor cores at work {percent(tensor)} of the time",
        ),
        fixes=fixes,
    )


def _float32(snapshot: Snapshot, facts: HookFacts) -> Explanation | str | None:
    """The verdict on float32 products on plain cores, with tensor cores idle beside them."""
    if facts.autocast or (facts.matmul_precision or "highest") != "highest" or facts.flops_dtype == "tf32":
        # Convolutions use TF32 unless that is switched off, whatever the precision of matrix products.
        return None
    if facts.matmul_precision is None:
        return "parameters are float32; whether products may use TF32 is not known"
    tf32, without = _tensor_cores(snapshot)
    if without:
        return None
    idle = idle_share(snapshot)
    if idle is None:
        return "parameters are float32; whether the GPU is the limit is not measured"
    tensor = activity_of_devices(snapshot, "tensor")
    if idle > MOST_IDLE or (tensor is not None and tensor >= TENSOR_CORES_IN_USE):
        return None
    mfu = snapshot.steps.mfu if snapshot.steps else None
    products = mfu / REACHED if mfu is not None else activity_of_devices(snapshot, "fp32")
    if products is None:
        return "parameters are float32 and tensor cores unused; how much of a step is products is not measured"
    root = facts.root or "the model"
    share, fixes = _narrower(snapshot, min(0.95, products, 1.0 - idle), root)
    evidence = [f"parameters of {root} are float32, no autocast, float32_matmul_precision is highest"]
    if mfu is not None:
        evidence.append(f"products reach {percent(mfu)} of what the GPU can do in float32")
    if tensor is not None:
        evidence.append(f"tensor cores at work {percent(tensor)} of the time")
    return Explanation(
        share=share,
        signals=(tensor is not None, mfu is not None, tf32),
        # The gain depends on how much of the time is products, which is an estimate.
        most_sure=0.6,
        title="float32 products leave the tensor cores idle",
        lines=main_lines(snapshot, lambda entry: entry.phase == "forward"),
        claims=(),
        evidence=evidence,
        fixes=fixes,
    )
