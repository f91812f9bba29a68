"""Servers as people start them are recognised with their version and their processes' parts, without the hook."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest
from serving_run import free_port
from waiting import until

pytestmark = pytest.mark.e2e

FLASK = "from flask import Flask\napp = Flask(__name__)\n@app.get('/')\ndef root(): return 'hello'\n"
FASTAPI = (
    "import sys, uvicorn\nfrom fastapi import FastAPI\napp = FastAPI()\n@app.get('/')\ndef root(): return {}\n"
    "if __name__ == '__main__': uvicorn.run(app, port=int(sys.argv[1]), log_level='warning')\n"
)
AIOHTTP = (
    "import sys\nfrom aiohttp import web\nasync def root(request): return web.json_response({})\n"
    "app = web.Application()\napp.router.add_get('/', root)\nweb.run_app(app, port=int(sys.argv[1]), print=None)\n"
)
WAITRESS = (
    "import sys, waitress\n"
    "def application(environ, start_response):\n    start_response('200 OK', [])\n    return [b'hello']\n"
    "waitress.serve(application, host='127.0.0.1', port=int(sys.argv[1]))\n"
)
ASGI = (
    "async def app(scope, receive, send):\n    if scope['type'] != 'http': return\n"
    "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
    "    await send({'type': 'http.response.body', 'body': b'hello'})\n"
)
SANIC = (
    "from sanic import Sanic, text\napp = Sanic('app')\n@app.get('/')\nasync def root(request): return text('hello')\n"
)
LITSERVE = """
import sys
import litserve

class Api(litserve.LitAPI):
    def setup(self, device): pass
    def predict(self, request): return {"output": request["input"]}

if __name__ == "__main__":
    litserve.LitServer(Api(), accelerator="cpu", workers_per_device=2).run(
        port=int(sys.argv[1]), generate_client_file=False, log_level="warning"
    )
"""


def wait_for(port: int) -> None:
    """Until something answers in HTTP."""

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    until(answers, pause=0.2)


@pytest.mark.parametrize(
    ("library", "source", "command", "name", "parts"),
    [
        pytest.param("uvicorn", FASTAPI, ["app.py", "PORT"], "uvicorn", {"API server": 1}, id="fastapi in a script"),
        pytest.param(
            "uvicorn",
            FASTAPI,
            ["-m", "uvicorn", "app:app", "--port", "PORT", "--workers", "2"],
            "uvicorn",
            {"launcher": 1, "API server": 2},
            id="uvicorn with workers",
        ),
        pytest.param(
            "gunicorn",
            FLASK,
            ["-m", "gunicorn", "app:app", "-b", "127.0.0.1:PORT", "-w", "2"],
            "gunicorn",
            {"launcher": 1, "worker": 2},
            id="gunicorn",
        ),
        pytest.param("aiohttp", AIOHTTP, ["app.py", "PORT"], "aiohttp", {"API server": 1}, id="aiohttp"),
        pytest.param(
            "flask", FLASK, ["-m", "flask", "run", "--port", "PORT"], "werkzeug", {"API server": 1}, id="flask"
        ),
        pytest.param(
            "waitress",
            WAITRESS,
            ["app.py", "PORT"],
            "waitress",
            {"API server": 1},
            id="waitress",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "hypercorn",
            ASGI,
            ["-m", "hypercorn", "app:app", "-b", "127.0.0.1:PORT"],
            "hypercorn",
            {"launcher": 1, "API server": 1},
            id="hypercorn",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "granian",
            ASGI,
            ["-m", "granian", "--interface", "asgi", "app:app", "--port", "PORT"],
            "granian",
            {"launcher": 1, "API server": 1},
            id="granian",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sanic",
            SANIC,
            ["-m", "sanic", "app:app", "--port", "PORT", "--workers", "1"],
            "sanic",
            {"launcher": 1, "API server": 1},
            id="sanic",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "litserve",
            LITSERVE,
            ["app.py", "PORT"],
            "litserve",
            {"worker": 2, "API server": 2},
            id="litserve",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_server_is_known_from_outside(library, source, command, name, parts, start, watched, tmp_path: Path):
    pytest.importorskip(library)
    (tmp_path / "app.py").write_text(source)
    port = free_port()
    argv = [sys.executable, *(word.replace("PORT", str(port)) for word in command)]
    process = start(argv, wait=False, cwd=tmp_path)
    wait_for(port)

    def check(report):
        assert report["target"]["engine"] == f"{name} {version(name)}"
        assert report["target"]["kind"] == "inference"
        names = [member.get("part") for member in report["target"]["processes"]]
        assert {part: names.count(part) for part in parts} == parts
        assert "loader-worker" not in {member["role"] for member in report["target"]["processes"] if "part" in member}
        assert report["sources"]["server"] == {"state": "absent", "reason": f"aitop knows no /metrics of {name}"}
        assert report["serving"]["basis"] == "stacks"

    watched(process.pid, check, "--no-hook")
