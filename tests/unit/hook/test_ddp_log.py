"""What DDP says of its buckets, as the hook reads it."""

from types import SimpleNamespace

import pytest

from aitop.hook.measures.collectives import DDP_TIMES, DdpLog


def test_figures_of_ddp_from_before_the_attach_are_replaced_by_newer_ones(monkeypatch):
    logged = dict.fromkeys(DDP_TIMES.values(), 1_000_000) | {"iteration": 10}
    logger = SimpleNamespace(_get_ddp_logging_data=lambda: SimpleNamespace(ints_map=dict(logged), strs_map={}))
    log = DdpLog(SimpleNamespace(root_module=None))
    monkeypatch.setattr(log, "_module", lambda: SimpleNamespace(logger=logger))
    seen = []
    for iteration, milliseconds in ((10, 1), (100, 9), (200, 11)):
        logged.update(iteration=iteration, backward_compute_time=milliseconds * 1_000_000)
        log.look()
        seen.append(log.facts()["backward"])
    assert seen == pytest.approx([0.001, 0.009, 0.010])
    logged.update(iteration=300, backward_compute_time=90_000_000)
    del logged["backward_comm_time"]
    log.look()
    assert log.facts()["backward"] == pytest.approx(0.010), "a time that is missing is not 0"
