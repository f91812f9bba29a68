"""`aitop export` beside real programs: training runs, Prometheus, node_exporter and a collector."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from expected import WORKLOAD_DIR
from exported_job import JOB
from process_group import process_group
from prometheus_client import CollectorRegistry, start_http_server
from real_prometheus import Prometheus, answer_of, prometheus
from recorded_runs import snapshots_of
from serving_run import free_port
from waiting import until

from aitop.model.fleet import straggler_of
from aitop.outputs.prometheus.families import JobsCollector
from aitop.sources.prometheus.address import parse
from aitop.sources.prometheus.fleet import FleetReader

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
DEPLOYMENTS = files("aitop.commands").joinpath("deployments")
ALERTS = DEPLOYMENTS.joinpath("alerts.yaml").read_text(encoding="utf-8")
SECRET = "hunter2hunter2"
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on the PATH")


def answer_if_any(url: str) -> str:
    try:
        return answer_of(url)
    except OSError:
        return ""


def exporter(*arguments: str, node: str = "n1"):
    command = (sys.executable, "-m", "aitop", "export", *arguments)
    return process_group(*command, env=os.environ | {"NODE_NAME": node}, stderr=subprocess.DEVNULL)


def sleeper():
    """A process that does nothing."""
    return process_group(sys.executable, "-c", "import time; time.sleep(300)")


@contextmanager
def scraping(
    folder: Path, targets: Sequence[str], rules: str | None = None, **settings: object
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these addresses every second, with these settings of the job."""
    job = {"job_name": "aitop", "honor_labels": True, "static_configs": [{"targets": list(targets)}], **settings}
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [job]}
    if rules is not None:
        (folder / "rules.yaml").write_text(rules)
        config["rule_files"] = ["rules.yaml"]
    with prometheus(folder, config) as server:
        yield server


@pytest.fixture(scope="module")
def secretive(slow_loader_script, tmp_path_factory):
    """A run that waits for its data, with a secret among its arguments and in its environment, from its first step on.

    The last test that needs it ends it.
    """
    command = (sys.executable, "-X", f"token={SECRET}", str(slow_loader_script))
    log = tmp_path_factory.mktemp("secretive") / "log"
    with log.open("w") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        with process_group(*command, env=ONE_THREAD | {"API_TOKEN": SECRET}, **streams) as process:
            until(lambda: "step 1:" in log.read_text(), 120, pause=0.1, why_not=log.read_text)
            yield process


@needs("prometheus")
def test_the_alert_fires_for_the_run_that_waits_for_data_and_for_no_other(tmp_path, secretive, training):
    rules = re.sub(r"for: \S+", "for: 3s", ALERTS)
    ports, slow = [free_port(), free_port()], secretive
    healthy = training(WORKLOAD_DIR / "healthy.py").wait_steps(1)
    of_healthy = exporter("--pid", str(healthy.pid), "--prometheus", str(ports[0]), "--every", "2s", node="n1")
    of_slow = exporter("--pid", str(slow.pid), "--prometheus", str(ports[1]), "--every", "2s", node="n2")
    with of_healthy, of_slow, scraping(tmp_path, [f"127.0.0.1:{port}" for port in ports], rules) as server:

        def settled():
            alerts = [alert for alert in server.ask("alerts")["alerts"] if alert["state"] == "firing"]
            fired = {(alert["labels"]["alertname"], alert["labels"]["node"]) for alert in alerts}
            severities = {series["metric"]["severity"] for series in server.query('aitop_verdict_order{node="n1"}')}
            return alerts if severities == {"info"} and fired == {("AitopInputBound", "n2")} else None

        alerts = until(settled, 120, pause=0.5)
    assert alerts[0]["labels"]["job"] == f"n2/{slow.pid}"
    assert re.search(r"slow_loader\.py:\d+", alerts[0]["annotations"]["description"])


def test_a_real_run_is_told_in_every_way_and_its_series_end_with_it(tmp_path, secretive):
    """The last one that needs the run: it ends it."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otlp is not installed")
    import otlp_receiver as otlp

    job, port, file = secretive, free_port(), tmp_path / "aitop.prom"
    ways = ("--prometheus", str(port), "--textfile", str(file))
    with otlp.Receiver() as receiver:

        def events():
            records = otlp.records_in(receiver.bodies["/v1/logs"])
            return [record.event_name for record in records if otlp.attributes(record)["verdict"] == "input-bound"]

        with exporter("--pid", str(job.pid), *ways, "--otlp", receiver.url, "--every", "2s") as export:
            text, line = until(lambda: scraped_verdict(port), 60, pause=0.5)
            assert f'job="n1/{job.pid}"' in line
            assert "slow_loader.py" in line
            assert f'pid="{job.pid}"' in text
            written = until(lambda: file.exists() and "aitop_verdict_share{" in file.read_text() and file.read_text())
            until(events, 60, pause=0.5)
            shares = otlp.metrics_in(receiver.bodies["/v1/metrics"][-1])["aitop_verdict_share"].gauge.data_points
            (with_line,) = [share for share in map(otlp.attributes, shares) if "line" in share]
            assert (with_line["job"], with_line["verdict"]) == (f"n1/{job.pid}", "input-bound")
            assert with_line["file"].endswith("slow_loader.py")
            assert SECRET in Path(f"/proc/{job.pid}/cmdline").read_text() and SECRET not in text + written
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            # The processes named have ended, so there is nothing left to export.
            assert export.wait(20) == 0
        assert (events()[0], events()[-1]) == ("aitop.verdict.begin", "aitop.verdict.end")
        assert not any(SECRET.encode() in body for bodies in receiver.bodies.values() for body in bodies)
        receiver.shutdown()
    assert not file.exists()


def scraped_verdict(port: int) -> tuple[str, str] | None:
    """A scrape that has the verdict, and the line of it."""
    text = answer_if_any(f"http://127.0.0.1:{port}/metrics")
    lines = re.findall(r'^aitop_verdict_order\{.*verdict="input-bound".*\} 1\.0$', text, re.MULTILINE)
    return (text, lines[0]) if lines else None


def certificate(folder: Path, name: str) -> dict[str, str]:
    """A key and a certificate that it signed itself, for 127.0.0.1."""
    files = {"key_file": str(folder / f"{name}.key"), "cert_file": str(folder / f"{name}.crt")}
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", files["key_file"], "-out", files["cert_file"]]
    subprocess.run(words, check=True, capture_output=True)
    return files


@needs("prometheus")
@needs("openssl")
def test_prometheus_scrapes_over_https_with_a_certificate_of_its_own_and_not_without(tmp_path):
    server, client, port = certificate(tmp_path, "server"), certificate(tmp_path, "client"), free_port()
    arguments = ["--tls-cert", server["cert_file"], "--tls-key", server["key_file"]]
    arguments += ["--tls-clients", client["cert_file"]]
    with sleeper() as target, ExitStack() as running:
        running.enter_context(exporter("--pid", str(target.pid), "--prometheus", str(port), *arguments))
        trusted = {"ca_file": server["cert_file"]}
        servers = {}
        for name, settings in (
            ("with", {"scheme": "https", "tls_config": trusted | client}),
            ("without", {"scheme": "https", "tls_config": trusted}),
            ("plain", {}),
        ):
            (tmp_path / name).mkdir()
            servers[name] = running.enter_context(scraping(tmp_path / name, [f"127.0.0.1:{port}"], **settings))
        until(lambda: servers["with"].query("aitop_jobs"), 60, pause=0.5)
        for name in ("without", "plain"):
            (up,) = until(lambda name=name: servers[name].query("up"), 20, pause=0.5)
            assert up["value"][1] == "0"
            assert not servers[name].query("aitop_jobs")


AS_USER = """
import os, sys, time
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
while True:
    time.sleep(0.001)
"""
NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""What root starts a program with that may look into its own processes only."""


@needs("setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of two users")
def test_root_watches_jobs_of_all_users_and_without_its_rights_only_its_own():
    with ExitStack() as running:
        jobs = [running.enter_context(process_group(sys.executable, "-c", AS_USER, user)) for user in ("0", "65534")]
        pids, port = [str(job.pid) for job in jobs], free_port()
        with exporter("--pid", *pids, "--prometheus", str(port), "--every", "2s"):

            def judged():
                text = answer_if_any(f"http://127.0.0.1:{port}/metrics")
                ups = re.findall(r'aitop_up\{.*pid="(\d+)".*\} 1\.0', text)
                return sorted(ups) == sorted(pids) == sorted(re.findall(r'verdict_share\{.*job="n1/(\d+)"', text))

            until(judged, 60, pause=0.5)
        words = [sys.executable, "-m", "aitop", "export", "--pid", *pids, "--prometheus", str(port)]
        done = subprocess.run([*NO_RIGHTS, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert f"process {pids[1]} belongs to user nobody" in done.stderr


NODE_EXPORTER = "prometheus-node-exporter"


@needs(NODE_EXPORTER)
def test_node_exporter_reads_the_text_file_whole_while_it_is_replaced(tmp_path):
    port, file = free_port(), tmp_path / "aitop.prom"
    options = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={tmp_path}"]
    options.append(f"--web.listen-address=127.0.0.1:{port}")
    with sleeper() as target, ExitStack() as running:
        running.enter_context(process_group(NODE_EXPORTER, *options, **QUIET))
        export = running.enter_context(exporter("--pid", str(target.pid), "--textfile", str(file), "--every", "1s"))
        until(file.exists, 60)

        def metrics():
            return until(lambda: answer_if_any(f"http://127.0.0.1:{port}/metrics"), 20)

        written = set()

        def read_of_four_files():
            written.add(file.stat().st_mtime_ns)
            text = metrics()
            assert "node_textfile_scrape_error 0" in text
            assert 'aitop_jobs{node="n1"}' in text
            return len(written) >= 4

        until(read_of_four_files, 60)
        export.terminate()
        export.wait(20)
        assert "aitop_jobs" not in metrics()


NODE = """
import json, os, signal, socket, subprocess, sys
socket.sethostname(sys.argv[1])
# The first process of a pid namespace gets only signals that it handles.
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
for words, variables in json.loads(sys.argv[2]):
    subprocess.Popen(words, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""
"""What the first process of a node does: it starts jobs and an exporter, and waits for them."""


def as_root(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def network(*nodes: str):
    """A network namespace for each of these names, all on one bridge, and the address of each."""
    bridge, part = f"aitop{os.getpid() % 10_000}", f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    spaces = {node: f"{bridge}-{node}" for node in nodes}
    addresses = {node: f"{part}.{number}" for number, node in enumerate(nodes, start=1)}
    steps = [f"link add {bridge} type bridge", f"addr add {part}.254/24 dev {bridge}", f"link set {bridge} up"]
    for node, space in spaces.items():
        steps += [f"netns add {space}", f"link add {bridge}{node} type veth peer name eth0 netns {space}"]
        steps += [f"link set {bridge}{node} master {bridge}", f"link set {bridge}{node} up"]
        steps += [f"-n {space} addr add {addresses[node]}/24 dev eth0", f"-n {space} link set eth0 up"]
        steps += [f"-n {space} link set lo up"]
    try:
        for step in steps:
            if not as_root("ip", *step.split()):
                pytest.skip(f"not permitted here: ip {step}")
        if not as_root("unshare", "--pid", "--uts", "--fork", "--mount-proc", "true"):
            pytest.skip("not permitted here: unshare --pid")
        yield spaces, addresses
    finally:
        for space in spaces.values():
            as_root("ip", "netns", "del", space)
        as_root("ip", "link", "del", bridge)


@needs("prometheus")
def test_two_nodes_with_four_jobs_are_judged_soon_after_their_start(tmp_path, slow_loader_script):
    """A slow loader, a hang, a healthy run, and a job with one rank on each of two machines, of which one is late.

    The machines are namespaces: network, processes and host name are of their own. Only the hook tells a straggler. How
    soon all is judged depends on how long four jobs take to import torch here.
    """
    rules = re.sub(r"for: \S+", "for: 3s", ALERTS)
    names = {"1": "slow_loader", "2": "hang", "3": "healthy", "4": "straggler"}
    programs = {job: ["-m", f"aitop.workloads.{name}"] for job, name in names.items()}
    programs["1"] = [str(slow_loader_script)]
    python, ranks = sys.executable, str(Path(__file__).with_name("ranks") / "job.py")
    with ExitStack() as running:
        spaces, addresses = running.enter_context(network("n1", "n2"))
        export = [python, "-m", "aitop", "export", "--all", "--hook", "--prometheus", "0.0.0.0:9464", "--every", "5s"]
        for rank, (node, jobs) in enumerate((("n1", ("1", "2")), ("n2", ("3",)))):
            there = [([python, *programs[job]], {"SLURM_JOB_ID": job}) for job in jobs]
            meeting = {"MASTER_ADDR": addresses["n1"], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
            numbers = {"SLURM_JOB_ID": "4", "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
            there += [([python, ranks, "input"], numbers | meeting), (export, {})]
            alone = ["unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
            words = ["ip", "netns", "exec", spaces[node], *alone, python, "-c", NODE, node, json.dumps(there)]
            running.enter_context(process_group(*words, env=ONE_THREAD))
        targets = [f"{address}:9464" for address in addresses.values()]
        server = running.enter_context(scraping(tmp_path, targets, rules))

        def firing():
            """Alert, node and workload of all that fires."""
            alerts = [alert["labels"] for alert in server.ask("alerts")["alerts"] if alert["state"] == "firing"]
            return {(labels["alertname"], labels["node"], names[labels["job"]]) for labels in alerts}

        def judged():
            """The first verdict by node and workload."""
            first = [series["metric"] for series in server.query("aitop_verdict_order == 1")]
            return {(labels["node"], names[labels["job"]]): (labels["verdict"], labels["severity"]) for labels in first}

        wanted = {("AitopInputBound", "n1", "slow_loader"), ("AitopJobStalled", "n1", "hang")}
        # The late rank waits for its data.
        wanted |= {("AitopStraggler", "n2", "straggler"), ("AitopInputBound", "n2", "straggler")}
        expected = {
            ("n1", "slow_loader"): ("input-bound", "critical"),
            ("n1", "hang"): ("hang", "critical"),
            ("n1", "straggler"): ("comm-bound", "warning"),
            ("n2", "straggler"): ("input-bound", "critical"),
        }

        def settled():
            verdicts = judged()
            _, severity = verdicts.pop(("n2", "healthy"), (None, None))
            return firing() == wanted and severity == "info" and verdicts == expected

        until(settled, 240, pause=0.5)
        command = [python, "-m", "aitop", "fleet", "--prometheus", server.url, "--format", "json", "--over", "5m"]
        fleet = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)
        late = straggler_of(FleetReader(parse(server.url)).ranks("4").ranks)
    order = {names[job["job"]]: job for job in fleet["jobs"]}
    # What stands still comes first, what is in order last.
    assert (next(iter(order)), list(order)[-1], len(order)) == ("hang", "healthy", 4)
    assert (order["straggler"]["nodes"], order["straggler"]["ranks"]) == (["n1", "n2"], 2)
    verdict = order["straggler"]["verdict"]
    assert (verdict["id"], verdict["subtype"], verdict["where"]["file"]) == ("straggler", "input-bound", ranks)
    assert late is not None
    assert (late.node, late.rank) == ("n2", 1)


@needs("prometheus")
def test_every_query_of_the_dashboard_returns_data(tmp_path):
    """Recordings are played to a real Prometheus: among them are a server, ranks and a device."""
    names = ["slow-loader", "serve", "straggler", "hang", "simulated-gpu"]
    collector, registry, port = JobsCollector("n1"), CollectorRegistry(), free_port()
    registry.register(collector)
    start_http_server(port, "127.0.0.1", registry)
    collector.cpu = 0.01
    playing = threading.Event()

    def play():
        jobs = {number: with_first_tokens(snapshots_of(name)) for number, name in enumerate(names, start=1)}
        for turn in range(20):
            for number, snapshots in jobs.items():
                job = msgspec.structs.replace(JOB, pid=number, id=str(number))
                collector.take(job, snapshots[min(len(snapshots) - 1, len(snapshots) * (turn + 5) // 20)])
            if playing.wait(0.5):
                return

    player = threading.Thread(target=play)
    player.start()
    dashboard = json.loads(DEPLOYMENTS.joinpath("grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 12
    with scraping(tmp_path, [f"127.0.0.1:{port}"]) as server:
        player.join()

        def has_data(query):
            result = server.query(query)
            return result and any(series["value"][1] != "NaN" for series in result)

        for query in queries:
            filled = query.replace("$__rate_interval", "30s").replace("$node", ".*").replace("$job", ".*")
            until(lambda filled=filled: has_data(filled), 20, pause=0.2, why_not=lambda query=query: query)
        for variable in dashboard["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["query"]["query"]).groups()
            assert server.ask(f"label/{label}/values", **{"match[]": metric})


def with_first_tokens(snapshots):
    """The recorded server is no language model: its requests get a first token halfway."""

    def halfway(request):
        return msgspec.structs.replace(request, first_token=request.seconds / 2)

    def changed(serving):
        return serving and msgspec.structs.replace(serving, requests=tuple(map(halfway, serving.requests)))

    return [msgspec.structs.replace(snapshot, serving=changed(snapshot.serving)) for snapshot in snapshots]
