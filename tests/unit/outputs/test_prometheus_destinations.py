"""Where metrics go: addresses, and the text file of the node exporter."""

import os
import stat
import threading

import pytest
from prometheus_client import CollectorRegistry, Gauge

from aitop.outputs.prometheus.destinations import Address, parse_address, write_textfile


def test_without_a_host_only_this_machine_is_answered():
    known = {"9464": "127.0.0.1", ":9464": "127.0.0.1", "0.0.0.0:9464": "0.0.0.0", "[::1]:9464": "::1", "n:9464": "n"}
    assert {text: parse_address(text) for text in known} == {text: Address(host, 9464) for text, host in known.items()}
    for text in ("", "host", "host:", "host:0", "host:70000", "host:-1", "1.2.3.4:http"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_address(text)


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("aitop_jobs", "AI jobs.", registry=registry).set(3)
    return registry


def test_the_text_file_is_replaced_whole_and_all_may_read_it(registry, tmp_path):
    path = tmp_path / "aitop.prom"
    ended = threading.Event()
    seen = set()

    def read():
        while not ended.is_set():
            seen.add(path.read_text())

    before = os.umask(0o077)
    try:
        write_textfile(registry, path)
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(20):
            write_textfile(registry, path)
        ended.set()
        reader.join()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert len(seen) == 1
    assert "aitop_jobs 3.0" in seen.pop()
    assert os.listdir(tmp_path) == ["aitop.prom"]


def test_a_text_file_that_cannot_be_written_leaves_nothing_behind(registry, tmp_path):
    (tmp_path / "aitop.prom").mkdir()
    with pytest.raises(OSError):
        write_textfile(registry, tmp_path / "aitop.prom")
    assert os.listdir(tmp_path) == ["aitop.prom"]
