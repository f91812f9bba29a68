"""memory-leak: what grows steadily and for long is one; warming up and noise are none."""

from __future__ import annotations

import pytest
from judgements import fired
from snapshot_builder import constant, snapshot, steps

from aitop.diagnosis.conditions import memory
from aitop.model.snapshot import GrowthSite, Series


def growing(per_second, noise=0.0, count=25):
    values = tuple(1e9 + index * per_second + (noise if index % 2 else -noise) for index in range(count))
    return Series(times=tuple(1000.0 - count + index for index in range(count)), values=values)


SITE = GrowthSite(file="/x/train.py", line=40, function="main", text="history.append(loss)", keeps_graph=True)


def leak(series, *sites):
    return memory.leak(snapshot(steps(), series={"rss": series}, growth_sites=sites))


def test_steady_growth_is_a_leak_named_by_the_growing_line():
    verdict = fired(leak(growing(10e6), SITE))
    assert verdict.where[0].line == 40
    assert "loss.item()" in verdict.fixes[0].text
    assert verdict.severity == "critical"


@pytest.mark.parametrize("series", [growing(0.0, 1e6), growing(1e4), growing(1e6, 40e6), constant(2e9)])
def test_noise_is_not_a_leak(series):
    assert leak(series) is None


def test_growth_that_levels_off_is_warming_up():
    values = tuple(1e9 + 300e6 * (1 - 0.8**index) for index in range(25))
    assert leak(Series(times=tuple(float(976 + index) for index in range(25)), values=values), SITE) is None


@pytest.mark.parametrize("sites", [(), (SITE,)], ids=["no line", "a line"])
def test_source_code_names_the_line_and_decides_nothing(sites):
    assert leak(growing(10e6, count=12), *sites) is None, "too short"
    with_line, without_line = leak(growing(10e6), *sites), leak(growing(10e6))
    assert (fired(with_line).severity, with_line.level) == (fired(without_line).severity, without_line.level)


@pytest.mark.parametrize("text", ["losses.append(loss.item())", "self.total += loss.item()", "seen.append(len(batch))"])
def test_numbers_explain_no_growth(text):
    numbers = GrowthSite(file="/x/train.py", line=40, function="main", text=text)
    assert fired(leak(growing(10e6), numbers)).where == ()


def test_growth_is_critical_only_where_memory_is_full_soon():
    assert fired(leak(growing(50e6))).severity == "critical"
    assert fired(leak(growing(2e6))).severity == "warning"
