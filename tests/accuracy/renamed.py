"""Replaces every name that the user chose in a recording by another ordinary word, misleading ones included."""

from __future__ import annotations

import ast
import dataclasses
import keyword
import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

from expected import Scenario
from msgspec.structs import replace
from recorded import Recorded
from transform import Transform

from aitop.model.event import Event
from aitop.model.host import HostSample
from aitop.model.ranks import ExchangeNotes
from aitop.model.snapshot import GrowthSites, Target
from aitop.model.stacks import Frame, StackDump, StackWindow, Statement
from aitop.model.steps import HookFacts, HookSample

# Words that people name things with. Most say something about training that will not be true of what they replace.
WORDS = Path(__file__).with_name("words.txt").read_text().split()

_IDENTIFIER = re.compile(r"(?<!\w)[^\W\d]\w*")
_STRING_PREFIX = re.compile(r"(?i)(?:[rbuf]|br|rb|fr|rf)$")
_DUNDER = re.compile(r"__\w+__")
_TARGET_OF_THREAD = re.compile(r"(?<=\()\w+(?=\)$)")


def renamed(seed: int) -> Transform:
    """Names of functions, classes, files, folders and threads of the user's, and every identifier in source text.

    Methods that a library calls by name (forward, do_GET) are no exception: what they are, the frame above them tells.
    """

    def changed(recorded: Recorded) -> Recorded:
        return _Renaming(recorded, random.Random(seed)).result()

    return changed


class _Renaming:
    """A mapping of names, filled as names are met, and the events with it applied."""

    def __init__(self, recorded: Recorded, chance: random.Random) -> None:
        self._recorded = recorded
        self._chance = chance
        self._words = chance.sample(WORDS, len(WORDS))
        self._given: dict[str, str] = {}
        self._used = set(keyword.kwlist)
        self._own = names_defined_for(recorded.scenario)
        self._frames: dict[Frame, Frame] = {}
        self._files: dict[str, str] = {}
        # What is shown and could be judged gets the single words; what only stands in source text gets the rest.
        for frame in _user_frames(recorded.events):
            self._function(frame.function)
            self._file(frame.file)
        for name in sorted(self._own):
            self._word(name)

    def result(self) -> Recorded:
        recorded = self._recorded
        header = replace(recorded.header, target=self._target(recorded.target))
        events = tuple(self._event(event) for event in recorded.events)
        files = {Path(other).name: Path(file).name for file, other in self._files.items()}
        return dataclasses.replace(recorded, header=header, events=events, files=files)

    def _event(self, event: Event) -> Event:
        if isinstance(event, StackWindow):
            frames = tuple(self._frame(frame) for frame in event.frames)
            stacks = tuple(replace(stack, thread=self._thread(stack.thread)) for stack in event.stacks)
            looks = tuple(
                replace(look, stacks=tuple(replace(stack, thread=self._thread(stack.thread)) for stack in look.stacks))
                for look in event.looks
            )
            states = tuple(replace(state, thread=self._thread(state.thread)) for state in event.states)
            flows = tuple(
                replace(flow, file=self._file(flow.file), statements=tuple(map(self._statement, flow.statements)))
                for flow in event.flows
            )
            return replace(event, frames=frames, stacks=stacks, looks=looks, states=states, flows=flows)
        if isinstance(event, StackDump):
            frames = tuple(self._frame(frame) for frame in event.frames)
            threads = tuple(replace(thread, thread=self._thread(thread.thread)) for thread in event.threads)
            return replace(event, frames=frames, threads=threads)
        if isinstance(event, HostSample):
            processes = (replace(process, command=self._command(process.command)) for process in event.processes)
            return replace(event, processes=tuple(processes))
        if isinstance(event, HookSample) and event.facts is not None:
            return replace(event, facts=self._facts(event.facts))
        if isinstance(event, GrowthSites):
            sites = (
                replace(
                    site,
                    file=self._file(site.file),
                    function=self._function(site.function),
                    text=self._text(site.text),
                )
                for site in event.sites
            )
            return replace(event, sites=tuple(sites))
        if isinstance(event, ExchangeNotes):
            flights = tuple(
                replace(flight, where=flight.where and self._prose(flight.where)) for flight in event.flights
            )
            return replace(event, flights=flights)
        return self._target(event) if isinstance(event, Target) else event

    def _statement(self, statement: Statement) -> Statement:
        return replace(statement, outer=tuple(self._given.get(name, name) for name in statement.outer))

    def _target(self, target: Target) -> Target:
        return replace(
            target, command=self._command(target.command), script=target.script and self._file(target.script)
        )

    def _frame(self, frame: Frame) -> Frame:
        if not frame.user:
            return frame
        known = self._frames.get(frame)
        if known is None:
            known = self._frames[frame] = Frame(
                self._function(frame.function),
                self._file(frame.file),
                frame.line,
                True,
                frame.text and self._text(frame.text),
                frame.guard and self._text(frame.guard),
            )
        return known

    def _facts(self, facts: HookFacts) -> HookFacts:
        loaders = (replace(loader, dataset=self._if_own(loader.dataset)) for loader in facts.loaders)
        calls = (
            replace(call, file=self._file(call.file), function=self._function(call.function)) for call in facts.calls
        )
        return replace(
            facts,
            loaders=tuple(loaders),
            calls=tuple(calls),
            root=self._if_own(facts.root),
            optimizers=tuple(self._qualified(name) for name in facts.optimizers),
            recompile_reasons=tuple(self._prose(reason) for reason in facts.recompile_reasons),
        )

    def _if_own(self, name: str | None) -> str | None:
        return None if name is None else self._qualified(name)

    def _qualified(self, name: str) -> str:
        """A name from inside of the process, that of a library's class or of the user's."""
        return ".".join(self._word(part) if part in self._own else part for part in name.split("."))

    def _prose(self, text: str) -> str:
        """Words of a library that quote names of the user's."""
        for file, other in self._files.items():
            text = text.replace(file, other)
        return _IDENTIFIER.sub(lambda m: self._word(m[0]) if m[0] in self._own else m[0], text)

    def _thread(self, name: str) -> str:
        if name in self._own:
            return self._word(name)
        return _TARGET_OF_THREAD.sub(lambda m: self._word(m[0]) if m[0] in self._own else m[0], name)

    def _command(self, command: str) -> str:
        """A command line: the user's file in it, absolute or relative, and the arguments behind it."""
        for file, other in self._files.items():
            old, new = PurePosixPath(file).parts, PurePosixPath(other).parts
            for start in range(len(old)):
                before, middle, behind = f" {command} ".partition(f" {PurePosixPath(*old[start:])} ")
                if middle:
                    return f"{before} {PurePosixPath(*new[start:])} {self._text(behind)}".strip()
        return command

    def _function(self, name: str) -> str:
        """A qualified name; what Python names itself (<module>, <locals>, __next__) stays."""
        return ".".join(
            part if part.startswith("<") or _DUNDER.fullmatch(part) else self._word(part) for part in name.split(".")
        )

    def _file(self, path: str) -> str:
        if path not in self._files:
            pure = PurePosixPath(path)
            folders = [part if part == "/" else self._word(f"{part}/") for part in pure.parts[:-1]]
            self._files[path] = str(PurePosixPath(*folders, self._word(pure.stem) + pure.suffix))
        return self._files[path]

    def _text(self, text: str) -> str:
        """Source text with every identifier replaced, also inside of strings and comments."""

        def other(match: re.Match[str]) -> str:
            word, behind = match[0], text[match.end() : match.end() + 1]
            if keyword.iskeyword(word) or (behind in ("'", '"') and _STRING_PREFIX.match(word)):
                return word
            return self._word(word)

        return _IDENTIFIER.sub(other, text)

    def _word(self, name: str) -> str:
        """The other name of a name, always the same and of no other; a class is written like a class."""
        if name not in self._given:
            word = self._fresh()
            while (styled := _in_style(word, name)) in self._used:
                word = self._fresh()
            self._used.add(styled)
            self._given[name] = styled
        return self._given[name]

    def _fresh(self) -> str:
        return self._words.pop() if self._words else "_".join(self._chance.sample(WORDS, 2))


def _in_style(word: str, like: str) -> str:
    return "".join(part.title() for part in word.split("_")) if like[:1].isupper() else word


def _user_frames(events: Iterable[Event]) -> list[Frame]:
    """The user's frames of all stacks, each once, in the order in which they are met."""
    sampled = (event for event in events if isinstance(event, (StackWindow, StackDump)))
    return list(dict.fromkeys(frame for event in sampled for frame in event.frames if frame.user))


@cache
def names_defined_for(scenario: Scenario) -> frozenset[str]:
    """What the scenario's script, and the modules beside it that it imports, define, and how they name threads."""
    names: set[str] = set()
    waiting, read = [scenario.script], set()
    while waiting:
        file = waiting.pop()
        read.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.keyword) and node.arg == "name" and isinstance(node.value, ast.Constant):
                names.add(str(node.value.value))
            elif isinstance(node, ast.ImportFrom) and node.module:
                beside = file.with_name(f"{node.module.rpartition('.')[2]}.py")
                waiting += [beside] if beside.exists() and beside not in read else []
    return frozenset(name for name in names if not _DUNDER.fullmatch(name))
