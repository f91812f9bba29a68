"""Two ways in that follow each other: what the first has left, and what it answers late."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aitop.attach import attempt, entrance
from aitop.attach.refusal import AttachRefused
from aitop.engine import hook_requests


def test_the_line_is_left_to_its_readers_where_two_ways_brought_it_in() -> None:
    withdrawn: list[bool] = []
    way = SimpleNamespace(withdraw=lambda target, *, in_use: withdrawn.append(in_use))
    request = SimpleNamespace(close=lambda: None)
    tried = attempt.Attempt.__new__(attempt.Attempt)
    tried._target = None  # type: ignore[assignment]
    for entered in ([way], [way, way]):
        pending = SimpleNamespace(entered=entered, request=request, way="x")
        tried._settle(pending, "installed")  # type: ignore[arg-type]
    assert withdrawn == [False, True, True]


def test_an_answer_that_comes_while_another_way_is_refused_is_not_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(("installed", None, "installed", None))

    def wait(limit: object) -> None:
        raise AttachRefused("denied", "not this way")

    def close() -> attempt.Attachment | None:
        answer = next(answers)
        return None if answer is None else attempt.Attachment("another way", answer)

    tried = SimpleNamespace(wait=wait, close=close)
    monkeypatch.setattr(entrance, "Attempt", lambda *args, **options: tried)
    monkeypatch.setattr(hook_requests, "begin", lambda *args, **options: tried)
    on_the_way = hook_requests.HookRequests()
    for install in (lambda: entrance.install(7), lambda: on_the_way.bring_in(7)):
        install()
        with pytest.raises(AttachRefused, match="not this way"):
            install()
    assert on_the_way.hooked == {7}
