"""Runs on a device that each wait for one thing: for results, copies, launches or the device's memory."""

from snapshot_builder import facts, line, on_gpu, steps

from aitop.model.steps import CallSite

ITEM = CallSite(kind="blocking", name="item", file="/x/train.py", line=88, function="main", calls=80, seconds=1.6)


READS = line("main", 0.4, activity="wait-device", number=88, text="total += loss.item()")


def reading(busy, **fields):
    return on_gpu(
        steps(seconds=0.1, forward=0.02, backward=0.02, blocking=0.04, blockings=2),
        busy=busy, facts=facts(cuda=True, calls=(ITEM,)), lines=[READS], **fields,
    )  # fmt: skip


COPY = line("main", 0.4, phase="transfer", activity="native", work="copy", number=40, text="x = x.to(device)")


COPYING = {
    "seconds": 0.1,
    "forward": 0.02,
    "backward": 0.02,
    "transfer": 0.04,
    "transfer_apart": 0.04,
    "transfer_bytes": 80 * 2**20,
}


LAUNCHES = {"seconds": 0.05, "forward": 0.018, "backward": 0.022, "optimizer": 0.008, "samples": 32}


COMPUTES = {"seconds": 0.05, "forward": 0.02, "backward": 0.02}
