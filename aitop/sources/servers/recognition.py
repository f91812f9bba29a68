"""Recognises serving software from outside: by what processes call themselves, run, and have on their stacks."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aitop.model.host import ProcessId
from aitop.model.stacks import Frame, StackDump, StackWindow
from aitop.sources import procfs
from aitop.sources.foreign_file import open_as
from aitop.sources.host.command_lines import invocation
from aitop.sources.host.tree import Member
from aitop.sources.servers.engines import ENGINES, Part, ServingSoftware
from aitop.stacks.reading import own_start
from aitop.stacks.work import LEAST_SAMPLES, LEAST_SHARE

# Files of one process that are remembered: more tell nothing new.
MOST_FILES = 64
# Not a file: the key under which the samples of a process's main thread are counted.
LOOKS = ""
# How often the version is looked for: a process that starts has not loaded the package yet.
MOST_TRIES = 10
_FOLDER = re.compile(r"^(?P<folder>/[^\n]*?/(?:site|dist)-packages)/")
_MAPPED = re.compile(rb"^[^/\n]*(?P<folder>/[^\n]*?/(?:site|dist)-packages)/", re.MULTILINE)
_VERSION = re.compile(r"\d[\w.+!]{0,40}", re.ASCII)
_LIBRARY_FILE = re.compile("|".join(row.frames for row in ENGINES if row.frames))


class Server(NamedTuple):
    """The serving software of a tree: its version, and the part that each process (by pid) plays in it."""

    software: ServingSoftware
    version: str | None
    parts: Mapping[int, Part]
    commands: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """The name with the version where it is known."""
        return f"{self.software.name} {self.version}" if self.version else self.software.name

    @property
    def loops(self) -> tuple[int, ...]:
        """The processes that run the engine's loop, in the order of their pids."""
        return tuple(sorted(pid for pid, part in self.parts.items() if part.loop))

    @property
    def fronts(self) -> tuple[int, ...]:
        """The processes that take requests from the network for others, in the order of their pids."""
        return tuple(sorted(pid for pid, part in self.parts.items() if part.front))


class _Signs(NamedTuple):
    """The signs by which a process's part is recognised: see Part."""

    titles: tuple[str, ...]
    words: str
    program: str
    files: frozenset[str]
    forked: bool


class _Known(NamedTuple):
    """What is known of a process while it is named `comm` and shows these `files`.

    `fits` has the rows of ENGINES that it fits, by index: its part there, or None if it only shows the engine's files.
    """

    comm: str
    argv: tuple[str, ...]
    files: frozenset[str]
    fits: dict[int, Part | None]


class Recogniser:
    """Says which serving software a tree runs. `count` and `saw_once` may be called from any thread."""

    def __init__(self) -> None:
        self._files: dict[int, frozenset[str]] = {}
        # By pid, how many samples of its threads have each file; under LOOKS how many of its main thread there are.
        self._samples: dict[int, Counter[str]] = {}
        self._known: dict[tuple[int, int], _Known] = {}
        self._versions: dict[tuple[int, int, str], str] = {}
        self._tries: dict[tuple[int, int, str], int] = {}

    def count(self, window: StackWindow) -> None:
        """Count the samples of each process in which a serving library is on the stack, other than of its parent.

        A run that reports on itself over HTTP has next to none of them, and is no server.
        """
        served, known = _served(window.frames), self._samples
        for stack in window.stacks:
            samples = known.setdefault(stack.pid, Counter())
            for file in _files(stack.frames, window.frames, served):
                if file in samples or len(samples) < MOST_FILES:
                    samples[file] += stack.count
            samples[LOOKS] += stack.count if stack.main else 0
        for pid in {stack.pid for stack in window.stacks}:
            least = max(LEAST_SAMPLES, LEAST_SHARE * known[pid][LOOKS])
            self._remember(pid, {file for file, count in known[pid].items() if file != LOOKS and count >= least})

    def saw_once(self, dump: StackDump) -> None:
        """Remember which serving libraries are on the stacks of each process, from a single look at them."""
        served = _served(dump.frames)
        for thread in dump.threads:
            self._remember(thread.pid, _files(thread.frames, dump.frames, served))

    def _remember(self, pid: int, files: set[str]) -> None:
        known = self._files.get(pid, frozenset())
        if files - known and len(known) < MOST_FILES:
            self._files[pid] = known | files

    def look(self, processes: Sequence[Member]) -> Server | None:
        """The server that these processes are; None where nothing of the kind is recognised.

        What was recognised once stays: stacks show a library only while it works.
        """
        known = {one.key: self._look_at(one) for one in processes}
        self._known = known
        self._files = {pid: files for pid, _ in known if (files := self._files.get(pid))}
        self._samples = {pid: samples for pid, _ in known if (samples := self._samples.get(pid))}
        self._versions = {key: version for key, version in self._versions.items() if key[:2] in known}
        self._tries = {key: number for key, number in self._tries.items() if key[:2] in known}
        rows = {row for one in known.values() for row in one.fits}
        if not rows:
            return None
        row = min(rows)
        software = ENGINES[row]
        parts = {pid: part for (pid, _), one in known.items() if (part := one.fits.get(row)) is not None}
        carriers = [key for key, one in known.items() if row in one.fits]
        version = next(filter(None, (self._version(key, software, known[key].files) for key in carriers)), None)
        return Server(software, version, parts, tuple(known[key].argv for key in carriers))

    def _look_at(self, process: Member) -> _Known:
        stat = process.stat
        before = self._known.get(process.key)
        files = self._files.get(stat.pid, frozenset())
        if before is not None and before.comm == stat.comm and before.files == files:
            return before
        # A process that gives itself a title writes it over its command line.
        argv = procfs.argv(stat.pid) or process.argv
        signs = _Signs(
            titles=(stat.comm, *argv[:1]),
            words=command_words(argv) if process.python else "",
            program="" if process.python else os.path.basename(argv[0]) if argv else stat.comm,
            files=files,
            forked=process.forked,
        )
        fits: dict[int, Part | None] = {}
        for number, row in enumerate(ENGINES):
            own = _shows(files, row.frames)
            # A part's frames may occur in any server, so they count only where the engine's own are seen as well.
            seen = signs if own else signs._replace(files=frozenset())
            part = next((part for part in row.parts if _fits(part, seen)), None)
            if part is not None or own:
                fits[number] = part
        return _Known(stat.comm, argv, files, fits)

    def _version(self, key: tuple[int, int], software: ServingSoftware, files: frozenset[str]) -> str | None:
        cached = (*key, software.name)
        if cached not in self._versions and self._tries.get(cached, 0) < MOST_TRIES:
            self._tries[cached] = self._tries.get(cached, 0) + 1
            process = ProcessId(key[0], procfs.started(key[1]))
            version = version_of(process, software.distributions, files)
            if version is not None:
                self._versions[cached] = version
        return self._versions.get(cached)


def _files(stack: Sequence[int], frames: Sequence[Frame], served: Mapping[int, str]) -> set[str]:
    """The files of serving software on a stack, without the frames that a forked process has from its parent."""
    if not any(index in served for index in stack):
        return set()
    own = stack[own_start([frames[index] for index in stack]) :]
    return {served[index] for index in own if index in served}


def _served(frames: Sequence[Frame]) -> dict[int, str]:
    """The files of serving libraries, by the index of their frame."""
    return {index: frame.file for index, frame in enumerate(frames) if _serves(frame.file)}


@functools.lru_cache(maxsize=8192)
def _serves(file: str) -> bool:
    """Whether this is a file of a library that serves."""
    return _LIBRARY_FILE.search(file) is not None


def command_words(argv: Sequence[str]) -> str:
    """The script or module that a Python runs and its first argument: "vllm.entrypoints.api_server --model"."""
    run = invocation(argv)
    if run.how not in ("script", "module"):
        return ""
    place = next((number for number, word in enumerate(argv) if number and word.endswith(run.what)), len(argv))
    return " ".join((run.what, *argv[place + 1 : place + 2]))


def _fits(part: Part, signs: _Signs) -> bool:
    """Whether a process is this part, by any of its signs."""
    return (
        (part.forked == signs.forked and _shows((signs.words,), part.command))
        or _shows(signs.titles, part.title)
        or _shows((signs.program,), part.program)
        or _shows(signs.files, part.frames)
    )


def _shows(texts: Iterable[str], pattern: str | None) -> bool:
    return pattern is not None and any(re.search(pattern, text) for text in texts)


def version_of(process: ProcessId, distributions: Iterable[str], files: Iterable[str]) -> str | None:
    """The version of the first of these distributions in the first folder that has any of them.

    The folders are those from which the process has loaded code: those of `files` on its stacks, then those of its
    mapped libraries. None where none of them has one. It is read from the metadata on disk: nothing is imported.
    """
    names = [_normal(name) for name in distributions]
    if not names:
        return None
    folders = {match["folder"]: None for file in files if (match := _FOLDER.match(file))}
    for mapped in _MAPPED.findall(procfs.maps(process.pid) or b""):
        folders[mapped.decode("utf-8", "replace")] = None
    for folder in folders:
        versions = _versions(process, folder)
        known = next((versions[name] for name in names if name in versions), None)
        if known is not None:
            return known
    return None


def _versions(process: ProcessId, folder: str) -> dict[str, str]:
    """The versions in what the process knows as this folder of packages, by normalised name."""
    try:
        handle = open_as(process, folder, folder=True)
    except (OSError, ValueError):
        return {}
    try:
        entries = os.listdir(handle)
    except OSError:
        return {}
    finally:
        os.close(handle)
    versions = {}
    for entry in entries:
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if _VERSION.fullmatch(version):
                versions[_normal(name)] = version
    return versions


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
