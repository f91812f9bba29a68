"""Snapshots and other records in which every text ends in what a terminal or a page would obey."""

from __future__ import annotations

import functools
import typing
from types import NoneType, UnionType

import msgspec
import sample_snapshots as samples
from sample_serving import SERVERS

EVERYTHING = samples.ALL | SERVERS
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eab\u2066\u200b\r\n\t\x00</code><script>x</script>[bold]/e"


@functools.cache
def hints_of(kind):
    """The types of the fields of this record."""
    return typing.get_type_hints(kind, include_extras=True)


def poisoned(value, hint, evil):
    """`value` with `evil` at the end of every text in it whose type lets it be any text."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return poisoned(value, arguments[0], evil)
    if origin in (typing.Union, UnionType):
        fitting = [argument for argument in arguments if argument is not NoneType]
        return (
            value if value is None or (len(fitting) > 1 and str not in fitting) else poisoned(value, fitting[0], evil)
        )
    if hint is str:
        return value + evil
    if isinstance(value, msgspec.Struct):
        hints = hints_of(type(value))
        changed = {name: poisoned(getattr(value, name), hints[name], evil) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, tuple) and arguments:
        each = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(poisoned(item, kind, evil) for item, kind in zip(value, each, strict=True))
    if isinstance(value, dict) and arguments:
        return {key: poisoned(item, arguments[1], evil) for key, item in value.items()}
    return value


def evil_snapshot(name, evil=EVIL):
    """The sample of this name with `evil` in every text."""
    snapshot = EVERYTHING[name]()
    return poisoned(snapshot, type(snapshot), evil)


def assert_safe(screen):
    """Nothing on this screen is more than text."""
    assert all(segment.text.isprintable() for row in screen._compositor.render_strips() for segment in row)
