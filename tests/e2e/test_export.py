"""`aitop export` beside real programs: training runs, Prometheus and promtool."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
import yaml
from exported_job import JOB
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from recorded_runs import snapshots_of
from serving_run import free_port

from aitop import cli
from aitop.model.fleet import straggler_of
from aitop.outputs.prometheus.families import JobsCollector
from aitop.sources.prometheus.address import parse
from aitop.sources.prometheus.fleet import FleetReader

pytestmark = [pytest.mark.e2e]
DEPLOYMENTS = files("aitop.commands").joinpath("deployments")
ALERTS = DEPLOYMENTS.joinpath("alerts.yaml").read_text(encoding="utf-8")
SECRET = "hunter2hunter2"
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def needs(program: str):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on the PATH")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def until(true, seconds: float, pause: float = 0.5):
    """What `true` returns, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(pause)
    return value


@contextmanager
def started(*command: str, **options):
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        # With its loader workers.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def workload(name: str):
    """A run with a secret among its arguments and in its environment."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = (sys.executable, "-X", f"token={SECRET}", "-m", f"aitop.workloads.{name}")
    return started(*command, env=ONE_THREAD | {"API_TOKEN": SECRET}, **quiet)


def exporter(*arguments: str, node: str = "n1"):
    environment = os.environ | {"NODE_NAME": node}
    return started(sys.executable, "-m", "aitop", "export", *arguments, env=environment, stderr=subprocess.DEVNULL)


@contextmanager
def prometheus(folder: Path, targets: list[str], rules: str | None = None, **settings: object):
    """A Prometheus that scrapes these addresses every second, with these settings; gives a function for its API."""
    job = {
        "job_name": "aitop",
        "honor_labels": True,
        "static_configs": [{"targets": targets}],
        **settings,
    }
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [job]}
    if rules is not None:
        (folder / "rules.yaml").write_text(rules)
        config["rule_files"] = ["rules.yaml"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    options.append(f"--web.listen-address=127.0.0.1:{port}")

    def ask(path: str, **parameters: str):
        return json.loads(get(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

    def ready():
        try:
            return get(f"http://127.0.0.1:{port}/-/ready")
        except OSError:
            return None

    with started("prometheus", *options, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        until(ready, 20)
        ask.url = f"http://127.0.0.1:{port}"
        yield ask


@needs("promtool")
@pytest.mark.parametrize("name", ["serve", "simulated-gpu"])
def test_promtool_finds_nothing_to_object_to_in_the_metrics(name):
    collector, registry = JobsCollector("n1"), CollectorRegistry()
    for snapshot in snapshots_of(name):
        collector.take(JOB, snapshot)
    registry.register(collector)
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=generate_latest(registry), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")


@needs("promtool")
def test_promtool_takes_the_alerts(tmp_path):
    (tmp_path / "alerts.yaml").write_text(ALERTS)
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "alerts.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on the PATH")
def test_systemd_takes_the_unit(tmp_path):
    unit = DEPLOYMENTS.joinpath("aitop-export.service").read_text(encoding="utf-8")
    (tmp_path / "aitop-export.service").write_text(unit.replace("/opt/aitop/bin/aitop", sys.executable))
    command = ["systemd-analyze", "verify", str(tmp_path / "aitop-export.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "aitop-export" in line]
    assert complaints == []


def test_the_shell_takes_the_prolog_and_it_never_fails(tmp_path):
    script = tmp_path / "aitop.sh"
    script.write_text(DEPLOYMENTS.joinpath("slurm.sh").read_text(encoding="utf-8"))
    for context in ("prolog_slurmd", "epilog_slurmd", ""):
        environment = {"PATH": str(tmp_path), "SLURM_SCRIPT_CONTEXT": context, "SLURM_JOB_ID": "1", "AITOP": "/bin/sh"}
        done = subprocess.run(["/bin/sh", str(script)], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"")


def test_the_daemon_set_has_what_reading_other_pods_takes():
    documents = list(yaml.safe_load_all(DEPLOYMENTS.joinpath("kubernetes.yaml").read_text(encoding="utf-8")))
    (pod,) = [document["spec"]["template"]["spec"] for document in documents if document["kind"] == "DaemonSet"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert cli.parse(container["command"][1:]).prometheus.endswith(f":{container['ports'][0]['containerPort']}")


def test_kubernetes_takes_the_daemon_set():
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    documents = list(yaml.safe_load_all(DEPLOYMENTS.joinpath("kubernetes.yaml").read_text(encoding="utf-8")))
    for document in documents:
        schemas.validate(document, "1.28", strict=True)
    documents[-1]["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(schemas.ValidationError):
        schemas.validate(documents[-1], "1.28", strict=True)


@pytest.mark.slow
def test_a_real_run_is_scraped_and_its_series_end_with_it(tmp_path):
    port, file = free_port(), tmp_path / "aitop.prom"
    url = f"http://127.0.0.1:{port}/metrics"
    with workload("slow_loader") as job:
        time.sleep(3)
        arguments = ("--pid", str(job.pid), "--prometheus", str(port), "--textfile", str(file), "--every", "2s")
        with exporter(*arguments) as export:
            until(lambda: file.exists(), 20)

            def judged():
                """The scrape that has the verdict, and the line of it."""
                text = get(url)
                orders = re.findall(r'^aitop_verdict_order\{.*verdict="input-bound".*\} 1\.0$', text, re.MULTILINE)
                return orders and (text, orders)

            text, (first,) = until(judged, 40)
            assert f'job="n1/{job.pid}"' in first
            assert "slow_loader.py" in first
            assert f'pid="{job.pid}"' in text
            written = until(lambda: (seen := file.read_text()) and "share{" in seen and seen, 10)
            assert "aitop_verdict_share{" in written
            assert SECRET in Path(f"/proc/{job.pid}/cmdline").read_text() and SECRET not in text + written
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            # The processes named have ended, so there is nothing left to export.
            assert export.wait(20) == 0
    assert not file.exists()


def certificate(folder: Path, name: str) -> dict[str, str]:
    """A key and a certificate that it signed itself, for 127.0.0.1."""
    files = {"key_file": str(folder / f"{name}.key"), "cert_file": str(folder / f"{name}.crt")}
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", files["key_file"], "-out", files["cert_file"]]
    subprocess.run(words, check=True, capture_output=True)
    return files


@pytest.mark.slow
@needs("prometheus")
@needs("openssl")
def test_prometheus_scrapes_over_https_with_a_certificate_of_its_own_and_not_without(tmp_path):
    server, client, port = certificate(tmp_path, "server"), certificate(tmp_path, "client"), free_port()
    arguments = ["--tls-cert", server["cert_file"], "--tls-key", server["key_file"]]
    arguments += ["--tls-clients", client["cert_file"]]
    with started(sys.executable, "-c", "import time; time.sleep(300)") as target, ExitStack() as running:
        running.enter_context(exporter("--pid", str(target.pid), "--prometheus", str(port), *arguments))
        trusted = {"ca_file": server["cert_file"]}
        ups = {}
        for name, settings in (
            ("with", {"scheme": "https", "tls_config": trusted | client}),
            ("without", {"scheme": "https", "tls_config": trusted}),
            ("plain", {}),
        ):
            (tmp_path / name).mkdir()
            asking = prometheus(tmp_path / name, [f"127.0.0.1:{port}"], **settings)
            ups[name] = running.enter_context(asking)
        until(lambda: ups["with"]("query", query="aitop_jobs")["result"], 60)
        for name in ("without", "plain"):
            (up,) = until(lambda name=name: ups[name]("query", query="up")["result"], 20)
            assert up["value"][1] == "0"
            assert not ups[name]("query", query="aitop_jobs")["result"]


@pytest.mark.slow
def test_a_collector_gets_the_metrics_and_the_verdicts_of_a_real_run():
    otlp = pytest.importorskip("test_export_otlp", reason="the extra otlp is not installed")
    with otlp.Receiver() as receiver, workload("slow_loader") as job:
        time.sleep(3)

        def events():
            records = otlp.records_in(receiver.bodies["/v1/logs"])
            return [record.event_name for record in records if otlp.attributes(record)["verdict"] == "input-bound"]

        with exporter("--pid", str(job.pid), "--otlp", receiver.url, "--every", "2s") as export:
            until(events, 60)
            shares = otlp.metrics_in(receiver.bodies["/v1/metrics"][-1])["aitop_verdict_share"].gauge.data_points
            (first,) = [share for share in map(otlp.attributes, shares) if "line" in share]
            assert (first["job"], first["verdict"]) == (f"n1/{job.pid}", "input-bound")
            assert first["file"].endswith("slow_loader.py")
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            assert export.wait(20) == 0
        assert (events()[0], events()[-1]) == ("aitop.verdict.begin", "aitop.verdict.end")
        assert not any(SECRET.encode() in body for bodies in receiver.bodies.values() for body in bodies)
        receiver.shutdown()


AS_USER = """
import os, sys, time
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
while True:
    time.sleep(0.001)
"""
NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""What root starts a program with that may look into its own processes only."""


@pytest.mark.slow
@needs("setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of two users")
def test_root_watches_jobs_of_all_users_and_without_its_rights_only_its_own():
    with ExitStack() as running:
        jobs = [running.enter_context(started(sys.executable, "-c", AS_USER, user)) for user in ("0", "65534")]
        pids, port = [str(job.pid) for job in jobs], free_port()
        with exporter("--pid", *pids, "--prometheus", str(port), "--every", "2s"):

            def judged():
                text = answer_of(f"http://127.0.0.1:{port}/metrics") or ""
                ups = re.findall(r'aitop_up\{.*pid="(\d+)".*\} 1\.0', text)
                return sorted(ups) == sorted(pids) == sorted(re.findall(r'verdict_share\{.*job="n1/(\d+)"', text))

            until(judged, 60)
        words = [sys.executable, "-m", "aitop", "export", "--pid", *pids, "--prometheus", str(port)]
        done = subprocess.run([*NO_RIGHTS, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert f"process {pids[1]} belongs to user nobody" in done.stderr


NODE_EXPORTER = "prometheus-node-exporter"


@pytest.mark.slow
@needs(NODE_EXPORTER)
def test_node_exporter_reads_the_text_file_whole_while_it_is_replaced(tmp_path):
    port, file = free_port(), tmp_path / "aitop.prom"
    options = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={tmp_path}"]
    options.append(f"--web.listen-address=127.0.0.1:{port}")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with started(sys.executable, "-c", "import time; time.sleep(300)") as target, ExitStack() as running:
        running.enter_context(started(NODE_EXPORTER, *options, **quiet))
        export = running.enter_context(exporter("--pid", str(target.pid), "--textfile", str(file), "--every", "1s"))
        until(file.exists, 60)
        written, seen = set(), 0
        while len(written) < 4:
            written.add(file.stat().st_mtime_ns)
            text = until(lambda: answer_of(f"http://127.0.0.1:{port}/metrics"), 10)
            assert "node_textfile_scrape_error 0" in text
            assert 'aitop_jobs{node="n1"}' in text
            seen += 1
        export.terminate()
        export.wait(20)
        assert "aitop_jobs" not in until(lambda: answer_of(f"http://127.0.0.1:{port}/metrics"), 10)
    assert seen >= 4


def answer_of(url: str) -> str | None:
    try:
        return get(url)
    except OSError:
        return None


@pytest.mark.slow
@needs("prometheus")
def test_the_alert_fires_for_the_run_that_waits_for_data_and_for_no_other(tmp_path, slow_loader):
    rules = re.sub(r"for: \S+", "for: 3s", ALERTS)
    ports = [free_port(), free_port()]
    slow = slow_loader
    with workload("healthy") as healthy:
        time.sleep(4)
        one = exporter("--pid", str(healthy.pid), "--prometheus", str(ports[0]), "--every", "2s", node="n1")
        other = exporter("--pid", str(slow.pid), "--prometheus", str(ports[1]), "--every", "2s", node="n2")
        with one, other, prometheus(tmp_path, [f"127.0.0.1:{port}" for port in ports], rules) as ask:

            def firing():
                return [alert for alert in ask("alerts")["alerts"] if alert["state"] == "firing"]

            def settled():
                alerts, seen = firing(), ask("query", query='aitop_verdict_order{node="n1"}')["result"]
                fired = {(alert["labels"]["alertname"], alert["labels"]["node"]) for alert in alerts}
                quiet = {series["metric"]["severity"] for series in seen} == {"info"}
                return alerts if quiet and fired == {("AitopInputBound", "n2")} else None

            alerts = until(settled, 120)
    assert alerts[0]["labels"]["job"] == f"n2/{slow.pid}"
    assert re.search(r"slow_loader\.py:\d+", alerts[0]["annotations"]["description"])


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


@pytest.mark.slow
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
            running.enter_context(started(*words, env=ONE_THREAD))
        ask = running.enter_context(prometheus(tmp_path, [f"{one}:9464" for one in addresses.values()], rules))

        def firing():
            """Alert, node and workload of all that fires."""
            alerts = [alert["labels"] for alert in ask("alerts")["alerts"] if alert["state"] == "firing"]
            return {(one["alertname"], one["node"], names[one["job"]]) for one in alerts}

        def judged():
            """The first verdict by node and workload."""
            first = [series["metric"] for series in ask("query", query="aitop_verdict_order == 1")["result"]]
            return {(one["node"], names[one["job"]]): (one["verdict"], one["severity"]) for one in first}

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

        until(settled, 240)
        command = [python, "-m", "aitop", "fleet", "--prometheus", ask.url, "--format", "json", "--over", "5m"]
        fleet = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)
        late = straggler_of(FleetReader(parse(ask.url)).ranks("4").ranks)
    order = {names[job["job"]]: job for job in fleet["jobs"]}
    # What stands still comes first, what is in order last.
    assert (next(iter(order)), list(order)[-1], len(order)) == ("hang", "healthy", 4)
    assert (order["straggler"]["nodes"], order["straggler"]["ranks"]) == (["n1", "n2"], 2)
    verdict = order["straggler"]["verdict"]
    assert (verdict["id"], verdict["subtype"], verdict["where"]["file"]) == ("straggler", "input-bound", ranks)
    assert late is not None
    assert (late.node, late.rank) == ("n2", 1)


@pytest.mark.slow
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
    with prometheus(tmp_path, [f"127.0.0.1:{port}"]) as ask:
        player.join()
        time.sleep(1)
        for query in queries:
            filled = query.replace("$__rate_interval", "30s").replace("$node", ".*").replace("$job", ".*")
            result = ask("query", query=filled)["result"]
            assert result, query
            assert any(series["value"][1] != "NaN" for series in result), query
        for variable in dashboard["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["query"]["query"]).groups()
            assert ask(f"label/{label}/values", **{"match[]": metric})


def with_first_tokens(snapshots):
    """The recorded server is no language model: its requests get a first token halfway."""

    def halfway(request):
        return msgspec.structs.replace(request, first_token=request.seconds / 2)

    def changed(serving):
        return serving and msgspec.structs.replace(serving, requests=tuple(map(halfway, serving.requests)))

    return [msgspec.structs.replace(snapshot, serving=changed(snapshot.serving)) for snapshot in snapshots]
