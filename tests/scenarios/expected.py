"""What each training script suffers from, for tests and benchmarks to hold the diagnosis against."""

from dataclasses import dataclass
from pathlib import Path

SCENARIO_DIR = Path(__file__).resolve().parent
WORKLOAD_DIR = SCENARIO_DIR.parents[1] / "aitop" / "workloads"


@dataclass(frozen=True)
class Scenario:
    """A script, its fault and where it lies.

    `subtypes` are the acceptable ones, empty where the verdict has none. `guilty` are substrings of the lines that
    may be named (each occurs on one line of the script); empty where no line is at fault. `fixed` says that the
    script with `--fixed` is faster, so that a predicted speed-up can be held against the real one.
    """

    name: str
    script: Path
    verdict: str
    subtypes: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    guilty: tuple[str, ...] = ()
    fixed: bool = True

    def guilty_lines(self):
        """Line numbers of the guilty substrings in the script."""
        lines = self.script.read_text().splitlines()
        found = {part: [n for n, line in enumerate(lines, 1) if part in line] for part in self.guilty}
        ambiguous = {part: numbers for part, numbers in found.items() if len(numbers) != 1}
        if ambiguous:
            raise ValueError(f"{self.script.name}: not exactly one line for {ambiguous}")
        return {numbers[0] for numbers in found.values()}


def _scenario(name, *rest, **more):
    return Scenario(name, SCENARIO_DIR / f"{name.split(':')[0]}.py", *rest, **more)


def _workload(name, *rest, **more):
    return Scenario(name, WORKLOAD_DIR / f"{name.replace('-', '_')}.py", *rest, **more)


SCENARIOS = (
    _scenario(
        "tutorial_loader",
        "input-bound",
        ("transform",),
        guilty=("image[0, y, x] = int(tokens", "for x in range(width):", "for y in range(height):"),
    ),
    _scenario(
        "tutorial_latency",
        "input-bound",
        ("workers", "storage"),
        guilty=("int.from_bytes(self.connection.read(4)",),
    ),
    _scenario(
        "custom_loop",
        "input-bound",
        ("transform",),
        guilty=(
            "record = json.loads(line)",
            'value = float(record["features"].get(',
            "values.append(max(-3.0",
            "for i in range(FIELDS):",
        ),
    ),
    _scenario("custom_storage", "input-bound", ("storage",), guilty=("time.sleep(MOUNT_LATENCY)",)),
    _scenario(
        "collate_slow",
        "input-bound",
        ("collate",),
        guilty=("padded[row, column] = token", "mask[row, column] = 1.0", "for column, token in enumerate(tokens):"),
    ),
    _scenario("respawn", "input-bound", ("respawn",), guilty=("for support, label in loader:",)),
    _scenario(
        "eval_often",
        "eval-stall",
        guilty=("logits = model(x)", "correct += (logits.argmax(1) == y)", "for x, y in loader:"),
    ),
    _scenario("host_io", "host-io-stall", guilty=("self.db.commit()", 'self.db.execute("INSERT')),
    _scenario("host_io:http", "host-io-stall", args=("--sink", "http"), guilty=("urllib.request.urlopen(self.url",)),
    _scenario(
        "python_overhead",
        "python-overhead",
        guilty=(
            "hidden = torch.tanh(x[:, f, None]",
            "outputs.append((hidden * self.w2[f])",
            "for f in range(x.shape[1]):",
        ),
    ),
    _scenario(
        "optimizer_heavy",
        "optimizer-bound",
        guilty=(
            "p.mul_(1 - group",
            "m.mul_(beta1)",
            "v.mul_(beta2)",
            "denominator = (v.sqrt()",
            "p.addcdiv_(m",
            "optimizer.step()",
        ),
    ),
    _scenario("optimizer_heavy:stock", "optimizer-bound", args=("--stock", "1"), guilty=("optimizer.step()",)),
    _scenario("healthy_mlp", "compute-bound", fixed=False),
    _scenario("healthy_transformer", "compute-bound", fixed=False),
    _scenario("healthy_eval", "compute-bound", fixed=False),
    _workload("slow-loader", "input-bound", ("workers", "storage"), guilty=("time.sleep(ROUND_TRIP)",)),
    _workload(
        "slow-transform",
        "input-bound",
        ("transform",),
        guilty=(
            "distance = ((row - middle) ** 2",
            "out[row, column] = image[row, column]",
            "for column in range(SIDE):",
            "for row in range(SIDE):",
        ),
    ),
    _workload("checkpoints", "checkpoint-stall", guilty=("torch.save(state, packed)",)),
    _workload("leak", "memory-leak", guilty=("history.append(loss)",), fixed=False),
    _workload("healthy", "compute-bound", fixed=False),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
