"""A small deterministic training run that says how it fares when asked: `fault_target.py FOLDER KIND [STEPS]`.

Each loss goes to FOLDER/losses, a line `start` before those of each start of the program. What it is asked lies in
FOLDER/ask, one word; the answer is added to FOLDER/said. With STEPS it makes so many without a pause and ends: what
an undisturbed run computes.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e" / "frameworks"))

from originals import Originals

PAUSE = 0.03
BATCH = 8
SETTLED = 3
# Workers and epochs of the kinds: one worker that stays, or two new ones every few steps.
KINDS = {"steady": (1, True, 64), "churn": (2, False, 6)}
AGAIN = "FAULT_TARGET_AGAIN"
SIGNALS = ("SigBlk", "SigIgn", "SigCgt", "TracerPid", "Seccomp")


class Rows(Dataset):
    def __init__(self, batches: int) -> None:
        self.rows = torch.randn(batches * BATCH, 12, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], index % 3


class Run:
    """The model, its data and the notes. `pause` is how long each step sleeps, in seconds."""

    def __init__(self, kind: str, folder: Path, pause: float) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        workers, stay, batches = KINDS[kind]
        self.folder, self.pause = folder, pause
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.loader = DataLoader(Rows(batches), BATCH, shuffle=True, num_workers=workers, persistent_workers=stay)
        self.losses = (folder / "losses").open("a", buffering=1)
        self.said = (folder / "said").open("a", buffering=1)
        self.losses.write("start\n")
        self.originals: Originals | None = None
        self.globals: set[str] = set()
        self.steps = 0

    def batches(self):
        while True:
            yield from self.loader

    def step(self, rows: torch.Tensor, labels: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(rows), labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def train(self, wanted: int | None) -> None:
        """Until asked to end, or for as many steps as are wanted."""
        batches = self.batches()
        for rows, labels in batches:
            self.losses.write(self.step(rows, labels).hex() + "\n")
            self.steps += 1
            if self.steps == SETTLED:
                self.originals, self.globals = Originals(), set(globals())
            if self.steps == wanted:
                return
            time.sleep(self.pause)
            word = self.asked()
            if word == "end":
                return
            if word == "exec":
                batches.close()
                self.loader._iterator = None
                os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, AGAIN: "1"})
            if word == "sleep":
                self.sleep_in_kernel()
            elif word is not None:
                self.answer(word, rows, labels)

    def asked(self) -> str | None:
        try:
            word = (self.folder / "ask").read_text()
        except FileNotFoundError:
            return None
        (self.folder / "ask").unlink()
        return word

    def sleep_in_kernel(self) -> None:
        """An uninterruptible sleep until FOLDER/awake, a pipe, is opened: a parent waits so for what it has started."""
        opened_first = (os.POSIX_SPAWN_OPEN, 0, str(self.folder / "awake"), os.O_RDONLY, 0)
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opened_first]), 0)

    def answer(self, word: str, rows: torch.Tensor, labels: torch.Tensor) -> None:
        bad = self.children_come_and_go(rows, labels) if word == "fork" else []
        self.said.write(json.dumps({"asked": word, "step": self.steps, "bad": bad, "state": self.state()}) + "\n")

    def state(self) -> dict[str, object]:
        """All that a monitor might leave behind in here."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {
            "changed": self.changed(),
            "files": files(),
            "threads": len(os.listdir("/proc/self/task")),
            "signals": [status[name].strip() for name in SIGNALS if name in status],
            "globals": sorted(set(globals()) - self.globals),
            "importers": [
                str(importer).partition(" at 0x")[0] for importer in (*sys.meta_path, len(sys.path_hooks), *sys.path)
            ],
            "tracing": [sys.gettrace() is None, sys.getprofile() is None],
        }

    def changed(self) -> list[str]:
        """What a hook has replaced. A program that was watched from its beginning is asked for the hook's code."""
        if self.originals is None:
            return ["asked too early"]
        if AGAIN not in os.environ:
            return self.originals.changed()
        left = [name for name in list(sys.modules) if "aitop" in name]
        left += [str(call) for call in gc.callbacks if "aitop" in str(type(call).__module__ or "") or is_ours(call)]
        for owner in (torch, torch.autograd, torch.optim.Optimizer, nn.Module, nn.Sequential, DataLoader):
            left += [f"{owner.__name__}.{name}" for name, value in vars(owner).items() if is_ours(value)]
        return left

    def children_come_and_go(self, rows: torch.Tensor, labels: torch.Tensor) -> list[str]:
        """A child that trains, one that becomes another program, one started by subprocess; what went wrong."""
        bad = []
        trains = os.fork()
        if not trains:
            losses = [self.step(rows, labels) for _ in range(3)]
            os._exit(0 if all(loss == loss for loss in losses) else 3)
        becomes = os.fork()
        if not becomes:
            os.execv("/bin/sh", ["sh", "-c", "exit 0"])
        for name, child in (("trains", trains), ("becomes", becomes)):
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            bad += [f"the child that {name} ended with {code}"] if code else []
        done = subprocess.run([sys.executable, "-S", "-c", "print(6 * 7)"], capture_output=True, text=True, check=False)
        return bad + ([] if (done.stdout, done.stderr) == ("42\n", "") else [f"subprocess: {done}"])


def is_ours(value: object) -> bool:
    """Whether a function, or what it wraps another in, is of a hook."""
    code = getattr(value, "__code__", None) if callable(value) and not isinstance(value, types.ModuleType) else None
    return "aitop" in getattr(code, "co_filename", "")


def files() -> list[str]:
    """What is open, without numbers; tensors on their way from workers come and go."""
    opened = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "/torch_" not in target and not target.endswith("/fd"):
            opened.append(target.partition(":[")[0])
    return sorted(opened)


if __name__ == "__main__":
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else None
    Run(sys.argv[2], Path(sys.argv[1]), 0.0 if steps else PAUSE).train(steps)
