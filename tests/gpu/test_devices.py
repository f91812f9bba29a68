"""Which source of devices a machine gets, and what is loaded for it."""

from __future__ import annotations

import os

import pytest

from aitop.sources.nvml import count_cards

pytestmark = pytest.mark.e2e

ASK = """
import sys
from aitop.sources.devices import device_source, device_users
from aitop.sources.source import SourceError
source = device_source(frozenset)
try:
    source.open()
    print(len(source.read()[0].devices))
except SourceError as error:
    print(error.state, error.reason)
source.close()
print(len(device_users()), "pynvml" in sys.modules)
"""


def test_without_the_driver_the_source_says_so_and_pynvml_is_not_loaded(tmp_path, printed):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")  # hides the real one of a machine that has it
    lines = printed({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, ASK)
    card = "an NVIDIA GPU is here, but not its driver (libnvidia-ml.so.1 not found)"
    assert lines == [f"absent {card if count_cards() else 'there is no NVIDIA GPU here'}", "0 False"]


def test_with_the_driver_its_devices_are_read(fake_nvml, printed):
    assert printed(fake_nvml("two-gpus", TARGET_PID=str(os.getpid())), ASK) == ["2", "1 True"]
