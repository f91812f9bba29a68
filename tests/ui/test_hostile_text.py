"""Every text of a Snapshot replaced by what a terminal would obey: nothing of it gets to the screen or into a file."""

from __future__ import annotations

import typing
from types import NoneType, UnionType

import msgspec
import pytest
import sample_snapshots as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aitop.commands.diagnose import render

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eab\u2066\u200b\r\n\t\x00</code><script>x</script>[bold]/e"
OPENED_BY = ("enter", "escape", "S", "escape", "T", "escape", "h", "escape", "t", "f")
CONTROLS = st.text(st.characters(categories=("Cc", "Cf", "Zl", "Zp")) | st.sampled_from("a</>&[x]'\""), min_size=1)


def poisoned(value, hint, evil):
    """`value` with `evil` at the end of every text in it whose type lets it be any text."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return poisoned(value, arguments[0], evil)
    if origin in (typing.Union, UnionType):
        fitting = [one for one in arguments if one is not NoneType]
        return (
            value if value is None or (len(fitting) > 1 and str not in fitting) else poisoned(value, fitting[0], evil)
        )
    if hint is str:
        return value + evil
    if isinstance(value, msgspec.Struct):
        hints = typing.get_type_hints(type(value), include_extras=True)
        changed = {name: poisoned(getattr(value, name), hints[name], evil) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, tuple) and arguments:
        each = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(poisoned(one, kind, evil) for one, kind in zip(value, each, strict=True))
    if isinstance(value, dict) and arguments:
        return {key: poisoned(one, arguments[1], evil) for key, one in value.items()}
    return value


def evil_snapshot(name, evil=EVIL):
    snapshot = samples.ALL[name]()
    return poisoned(snapshot, type(snapshot), evil)


def test_the_poison_is_in():
    found = evil_snapshot("input_bound")
    assert EVIL in found.target.command
    assert all(verdict.title.endswith(EVIL) for verdict in found.diagnosis.verdicts)


async def test_no_screen_passes_it_on(look_at):
    async with look_at(evil_snapshot("input_bound"), size=(120, 36)) as eyes:
        for name in samples.ALL:
            await eyes.give(evil_snapshot(name))
            for key in (None, *(OPENED_BY if name in ("measured", "two_ranks", "hang") else ())):
                if key is not None:
                    await eyes.press(key)
                for row in eyes.rows():
                    assert all(segment.text.isprintable() for segment in row), (name, key)


@pytest.mark.parametrize("form", ["text", "json", "html"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(evil=CONTROLS, name=st.sampled_from(list(samples.ALL)))
def test_no_report_passes_it_on(form, name, evil):
    written = render(evil_snapshot(name, evil), form)
    assert written.replace("\n", "").isprintable()


def test_markup_stays_text():
    for name in samples.ALL:
        assert "<script" not in render(evil_snapshot(name), "html")
