"""A Prometheus of the machine's own (Debian: the package prometheus), on the loopback."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from process_group import process_group
from serving_run import free_port
from waiting import until


class Prometheus:
    """Where it is, and what its API answers."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of /api/v1."""
        return json.loads(answer_of(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

    def query(self, expression: str) -> Any:
        return self.ask("query", query=expression)["result"]

    def ready(self) -> bool:
        try:
            return bool(answer_of(f"{self.url}/-/ready"))
        except OSError:
            return False


def answer_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@contextmanager
def prometheus(folder: Path, config: Mapping[str, object], store: Path | None = None) -> Iterator[Prometheus]:
    """One with this configuration, from when it is ready on. All that it writes is in the folder, or in the store."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    server, log = Prometheus(free_port()), folder / "prometheus.log"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={store or folder / 'data'}"]
    options.append(f"--web.listen-address={server.address}")
    with log.open("w") as output:
        quiet = {"stdout": output, "stderr": subprocess.STDOUT}
        with process_group("prometheus", *options, cwd=folder, **quiet):
            until(server.ready, 30, pause=0.1, why_not=log.read_text)
            yield server
