"""The arithmetic of predictions, against cases worked out by hand."""

from __future__ import annotations

import pytest

from aitop.diagnosis.what_if import Loading, without


def test_amdahl():
    assert without(0.0) == 1.0
    assert without(0.5) == pytest.approx(2.0)
    assert without(1.0) == pytest.approx(100.0)


def test_saturated_sleeping_workers_scale_until_loading_is_hidden():
    # A step of 100 ms waits 80; two workers, so one batch takes one worker 200 ms and computing takes 20 ms.
    loading = Loading(step=0.1, wait=0.08, workers=2, cores_per_worker=0.0, free_cores=1.0)
    assert loading.load == pytest.approx(0.2)
    assert loading.speedup_with(4) == pytest.approx(2.0)
    assert loading.best_workers() == 12
    assert loading.speedup_with(12) == pytest.approx(5.0)


def test_computing_workers_are_capped_by_the_cores():
    loading = Loading(step=0.1, wait=0.08, workers=2, cores_per_worker=1.0, free_cores=0.1)
    assert loading.best_workers() == 2
    assert loading.speedup_with(2) == pytest.approx(1.0)


def test_loading_in_the_main_process_can_only_be_overlapped():
    loading = Loading(step=0.1, wait=0.05, workers=0, cores_per_worker=1.0, free_cores=1.0)
    assert loading.speedup_with(1) == pytest.approx(2.0)
    no_core = Loading(step=0.1, wait=0.05, workers=0, cores_per_worker=1.0, free_cores=0.0)
    assert no_core.speedup_with(1) == pytest.approx(1.0)
    slow = Loading(step=0.1, wait=0.09, workers=0, cores_per_worker=1.0, free_cores=1.0)
    assert slow.best_workers() == 1
    assert slow.speedup_with(1) == pytest.approx(1 / 0.9)
