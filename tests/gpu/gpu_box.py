"""The machine on which prove.py proves something: its device, and why one is missing."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aitop.model.gpu import GpuDevice, GpuSample
from aitop.sources.devices import device_source
from aitop.sources.source import SourceError

SCENARIO_SCRIPTS = Path(__file__).resolve().parents[1] / "accuracy" / "scenarios"


class SkippedError(Exception):
    """A check that cannot be made here, and why."""


@dataclass
class Box:
    """The machine: where results go, which device is used, and why something is missing ("" where nothing is).

    `arguments` are for every script: those of a rehearsal, without a device, let them run on the CPU.
    """

    out: Path
    index: int = 0
    name: str = ""
    why_no_cuda: str = ""
    why_no_nvml: str = ""
    arguments: tuple[str, ...] = ()

    @classmethod
    def here(cls, out: Path, index: int) -> Box:
        """What is here. Scripts that are started later use this device alone."""
        os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        paths = [str(SCENARIO_SCRIPTS), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        box = cls(out, index)
        box.name, box.why_no_cuda = _cuda_device()
        try:
            box.device()
        except SourceError as error:
            box.why_no_nvml = error.reason
        except IndexError:
            box.why_no_nvml = f"the driver has no device {index}"
        return box

    def words(self) -> str:
        return self.name or f"No device that computes: {self.why_no_cuda}"

    def recording(self, name: str) -> Path:
        """Where the recording of a run is kept."""
        return self.out / "recordings" / f"{name}.jsonl.gz"

    def must_have(self, needs: Sequence[str]) -> None:
        """Raise SkippedError where this machine lacks what a check needs."""
        missing = {"cuda": self.why_no_cuda, "nvml": self.why_no_nvml}
        for need in needs:
            if missing[need]:
                raise SkippedError(f"no device: {missing[need]}")

    def device(self) -> GpuDevice:
        """What the driver says of the device now. Raises SourceError."""
        source = device_source(frozenset)
        source.open()
        try:
            for _ in range(3):
                samples = source.read()
                time.sleep(0.2)
            return next(sample for sample in samples if isinstance(sample, GpuSample)).devices[self.index]
        finally:
            source.close()


def _cuda_device() -> tuple[str, str]:
    """The device's name, or why torch cannot compute on one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "", "there is no CUDA driver (libcuda.so.1)"
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    name = done.stdout.strip()
    return name, "" if name else f"torch sees no CUDA device {done.stderr.strip()[-200:]}".strip()
