"""Growth sites of several shapes of training code. `# G` marks a site that keeps a graph, `# g` one that does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import snapshot, steps

from aitop.engine import growth
from aitop.engine.growth import GrowthFinder
from aitop.model.host import ProcessId
from aitop.model.snapshot import Series
from aitop.model.stacks import Frame, StackCount, StackWindow
from aitop.sources.code import growth as reading
from aitop.sources.code import syntax
from aitop.sources.code.growth import growth_sites

SHAPES = {
    "list of losses at module level": """
        losses = []
        for epoch in range(3):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss)  # G
        """,
    "sum of losses": """
        def train(model, loader):
            total = 0.0
            for x, y in loader:
                out = model(x)
                loss = F.cross_entropy(out, y)
                loss.backward()
                total += loss  # G
            return total
        """,
    "sum of plain numbers": """
        def train(model, loader):
            total = correct = 0
            for x, y in loader:
                loss = loss_fn(model(x), y)
                loss.backward()
                total += loss.item() * x.size(0)
                total = total + float(loss)
                correct += (model(x).argmax(1) == y).sum().item()
        """,
    "loss made plain under its own name": """
        def train():
            total = 0
            for x, y in loader:
                loss = loss_fn(model(x), y)
                loss.backward()
                loss = loss.item()
                total += loss
        """,
    "fresh in the loop": """
        for x, y in loader:
            parts = []
            for head in heads:
                parts.append(head(x))
            loss = sum(parts)
            loss.backward()
        """,
    "a bounded queue": """
        recent = deque(maxlen=100)
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
            recent.append(loss)
        """,
    "emptied by the epoch": """
        for epoch in range(90):
            outputs = []
            for x, y in loader:
                out = model(x)
                loss = loss_fn(out, y)
                loss.backward()
                outputs.append(out)  # G
        """,
    "a collate function": """
        def collate(batch):
            xs, ys = [], []
            for x, y in batch:
                xs.append(x)
                ys.append(y)
            return xs, ys

        def parse(text):
            words = []
            for part in text.split():
                words.append(part)
            return words
        """,
    "a history kept by a method": """
        class Trainer:
            def __init__(self):
                self.history = []

            def training_step(self, batch):
                x, y = batch
                out = self.model(x)
                loss = self.criterion(out, y)
                self.history.append(out)  # G
                return loss
        """,
    "a history emptied at the end of the epoch": """
        class Module:
            def __init__(self):
                self.outputs = []

            def validation_step(self, batch):
                self.outputs.append(self.model(batch))

            def on_validation_epoch_end(self):
                self.outputs.clear()
        """,
    "predictions of an evaluation": """
        def evaluate(model, loader):
            predictions = []
            for x in loader:
                predictions.append(model(x))
            return predictions

        def evaluate_into(model, loader, out):
            for x in loader:
                out.append(model(x))  # g
        """,
    "detached, moved to the host": """
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            loss.backward()
            seen.append(out.detach().cpu())  # g
            kept.append(out.cpu())  # G
            names.append(out.cpu().detach().numpy())  # g
        """,
    "a dictionary": """
        log = {}
        for step, (x, y) in enumerate(loader):
            loss = loss_fn(model(x), y)
            loss.backward()
            log[step] = loss  # G
            log["last"] = loss
        """,
    "lists in a dictionary": """
        history = {"loss": [], "acc": []}
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            loss.backward()
            history["loss"].append(loss)  # G
            history["acc"].append(accuracy(out, y))  # G
            history["right"].append(accuracy(out, y).item())  # g
        """,
    "a list added to a list": """
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
            log += [loss.item()]  # g
            kept += [loss]  # G
        """,
    "accelerate": """
        def main():
            total_loss = 0
            for step, batch in enumerate(train_dataloader):
                outputs = model(**batch)
                loss = outputs.loss
                total_loss += loss  # G
                accelerator.backward(loss)
                optimizer.step()
        """,
    "several losses of one step": """
        for x, y in loader:
            loss = 0
            for head in heads:
                loss += loss_fn(head(x), y)
            loss.backward()
            optimizer.step()
        """,
    "while with a cache by key": """
        cache = {}
        while True:
            request = queue.get()
            key = hash(request)
            cache[key] = request  # g
        """,
    "made plain only under a condition": """
        history = []
        while True:
            criterion(model(inputs), labels).backward()
            loss = criterion(model(valid_inputs), valid_labels)
            if args.fixed:
                loss = loss.item()
            history.append(loss)  # G
        """,
    "made plain on both ways": """
        history = []
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            if args.mean:
                loss = loss.mean().item()
            else:
                loss = float(loss)
            history.append(loss)  # g
        """,
    "plain in the branch that keeps it": """
        for step, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            loss.backward()
            if step % 10 == 0:
                loss = loss.item()
                history.append(loss)  # g
        """,
}


def sites(source):
    return growth_sites({"train.py": source})


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name):
    source = textwrap.dedent(SHAPES[name])
    lines = source.splitlines()
    expected = {n: line.endswith("# G") for n, line in enumerate(lines, 1) if line.endswith(("# G", "# g"))}
    assert {site.line: site.keeps_graph for site in sites(source)} == expected


@pytest.mark.parametrize("name", SHAPES)
def test_no_name_of_the_users_matters(name):
    source = textwrap.dedent(SHAPES[name])
    words = r"\b(model|criterion|loss_fn|loss|outputs|out|accuracy|total|history|predictions|logits)\b(?!=)"
    renamed = re.sub(words, lambda word: f"zebra_{len(word[0])}_{word[0][-1]}", source)
    assert renamed != source or not re.search(words, source)
    assert [(site.line, site.keeps_graph) for site in sites(renamed)] == [
        (site.line, site.keeps_graph) for site in sites(source)
    ]


def test_sites_that_keep_a_graph_come_first_and_carry_their_text():
    source = textwrap.dedent(
        """
        def train():
            names, losses = [], []
            for x, y in loader:
                loss = loss_fn(model(x), y)
                loss.backward()
                names.append(str(x))
                losses.append(loss)
        """
    )
    first, second = sites(source)
    assert (first.line, first.text, first.function, first.keeps_graph) == (8, "losses.append(loss)", "train", True)
    assert (second.text, second.keeps_graph) == ("names.append(str(x))", False)


def test_methods_have_qualified_names():
    (site,) = sites(textwrap.dedent(SHAPES["a history kept by a method"]))
    assert site.function == "Trainer.training_step"


LOOP = """
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        {}
"""
TRACKER = """
    class Tracker:
        def __init__(self, keep):
            self.keep = keep
            self.count = 0
            self.seen = []

        def rank(self, losses):
            self.count += 1
            self.seen.extend(losses)
            {}
            return sorted(self.seen)

    tracker = Tracker(9)
""" + LOOP.format("tracker.rank(loss.tolist())")


def texts(source):
    return [site.text for site in sites(textwrap.dedent(source))]


def test_the_loop_may_call_it_through_others_and_from_another_file():
    tracker = textwrap.dedent(TRACKER).partition("tracker =")[0].format("pass")
    main = "def one(batch):\n    loss = net(batch)\n    loss.backward()\n    tracker.rank(loss)\n\n"
    main += "def epoch():\n    for batch in batches:\n        one(batch)\n"
    assert [site.line for site in growth_sites({"tracker.py": tracker, "main.py": main})] == [10]
    assert texts(tracker) == []


@pytest.mark.parametrize(
    ("trim", "grows"),
    [
        ("pass", True),
        ("if self.keep:\n                self.seen = self.seen[-self.keep:]", True),
        ("if self.keep is not None:\n                self.seen.clear()", True),
        ("self.seen = self.seen[-9:]", False),
        ("if len(self.seen) > self.keep:\n                self.seen.pop(0)", False),
        ("if self.count % 100 == 0:\n                self.seen.clear()", False),
        ("while len(self.seen) > self.keep:\n                self.seen.pop(0)", False),
    ],
)
def test_what_is_shortened_now_and_then_does_not_grow_unless_a_flag_decides(trim, grows):
    assert texts(TRACKER.format(trim)) == ["self.seen.extend(losses)"] * grows


def test_taking_what_waits_in_a_queue_is_no_growth():
    source = """
        class Service:
            def take(self):
                taken = [self.requests.get()]
                while len(taken) < self.most:
                    taken.append(self.requests.get_nowait())
                return taken

            def run(self):
                while True:
                    taken = self.take()
                    answers = self.model(taken)
    """
    assert texts(source) == []


def test_what_grows_at_every_step_comes_before_the_reading_of_a_data_set():
    source = """
    class Rows:
        def load(self, file):
            for line in file:
                self.rows.append(line)

    rows = Rows()
    rows.load(open("rows"))
    """ + LOOP.format("seen.append(x)")
    assert texts(source) == ["seen.append(x)", "self.rows.append(line)"]


HOOKED = """
    kept = {{}}

    def watch(name):
        def hook(module, args, output):
            {}
        return hook

    for name, module in net.named_modules():
        module.register_forward_hook(watch(name))
""" + LOOP.format("pass")


def test_what_a_forward_hook_keeps_grows_at_every_step():
    keeps = "kept.setdefault(name, []).append(output)"
    (site,) = sites(textwrap.dedent(HOOKED.format(keeps)))
    assert site.function == "watch.<locals>.hook"
    assert texts(HOOKED.format("kept[name].append(output)")) == ["kept[name].append(output)"]
    assert texts(HOOKED.format("kept[name] = output")) == [], "one output for each module"
    assert texts(HOOKED.format(keeps).replace("register_forward_hook", "note")) == []


@pytest.mark.parametrize("source", ["def f(:", "\0", "x = " + "(" * 500 + ")" * 500, ""])
def test_what_is_not_python_has_no_sites(source):
    assert sites(source) == ()


def test_a_long_chain_of_assignments_is_read_at_once():
    chain = "\n".join(f"    if c{n}:\n        x = x + x - x" for n in range(60))
    source = f"for x in loader:\n{chain}\n    loss.backward()\n    seen.append(x)\n"
    assert [site.text for site in sites(source)] == ["seen.append(x)"]


WORDS = ["x", "loss", "total", "self.seen", "model", "(", ")", "[", "]", ":", "\n", "\n    ", " for ", " in ", " = "]
WORDS += [
    " += ",
    ".append(",
    ".backward()",
    "with torch.no_grad():",
    "def step(self):",
    "[1:]",
    "del ",
    ",",
    "*",
    "lambda: ",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_never_raises(source):
    sites(source)


def window(file):
    frames = (Frame("main", str(file), 3, True), Frame("get", "/lib/queue.py", 1))
    stacks = (StackCount(pid=os.getpid(), thread="MainThread", main=True, frames=(0, 1), count=5),)
    return StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=frames, stacks=stacks)


@pytest.fixture
def rising(monkeypatch):
    monkeypatch.setattr(growth, "rises", lambda snapshot: True)


def look(finder, stacks):
    finder.saw(stacks)
    finder.consider(snapshot())


@pytest.mark.parametrize(("grows", "read"), [(0, False), (1, True)])
def test_code_is_read_only_while_memory_rises(tmp_path, grows, read):
    """Reading beside a server took 0.3 s of CPU, and most runs have no leak."""
    came = threading.Event()
    finder = GrowthFinder(os.getpid(), lambda event: came.set())
    finder.saw(window(tmp_path / "train.py"))
    points = tuple((960.0 + second, 1e9 + grows * second * 5e6) for second in range(40))
    times, values = zip(*points, strict=True)
    finder.consider(snapshot(steps(), series={"rss": Series(times=times, values=values)}))
    assert came.wait(10 if read else 0.2) is read


def test_a_file_is_read_once(tmp_path, rising):
    file = tmp_path / "train.py"
    file.write_text("seen = []\nfor step in range(9):\n    seen.append(step)\n")
    told, came = [], threading.Event()

    def emit(event):
        told.append(event)
        came.set()

    finder = GrowthFinder(os.getpid(), emit)
    look(finder, window(file))
    assert came.wait(10)
    assert [(site.line, site.text) for site in told[0].sites] == [(3, "seen.append(step)")]
    look(finder, window(file))
    assert len(told) == 1


def test_each_file_is_read_as_the_process_that_runs_it(tmp_path, monkeypatch, rising):
    """And as the first one, which lives on, where that sees the same."""
    came, asked = threading.Event(), []

    class Code:
        def of(self, pid):
            process = ProcessId(1 if pid in (1, 2) else pid, 1.0)
            return SimpleNamespace(process=process, text=lambda file: asked.append((pid, file)))

    monkeypatch.setattr(growth, "CodeOfProcesses", Code)
    finder = GrowthFinder(1, lambda event: came.set())
    seen = window(tmp_path / "a.py")
    frames = (*seen.frames, Frame("step", str(tmp_path / "b.py"), 3, True))
    stacks = [(2, (0, 1)), (3, (0, 2))]
    counted = tuple(StackCount(pid=pid, thread="MainThread", main=True, frames=at, count=1) for pid, at in stacks)
    look(finder, StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=frames, stacks=counted))
    assert came.wait(10)
    assert asked == [(2, frames[0].file), (3, frames[2].file)]
    assert finder._files == {frames[0].file: 1, frames[2].file: 3}


def test_a_hanging_file_system_holds_nothing_up(tmp_path, monkeypatch, rising):
    released = threading.Event()
    monkeypatch.setattr(growth, "growth_sites", lambda texts: released.wait(10) and ())
    told = []
    finder = GrowthFinder(os.getpid(), told.append)
    for number in range(3):
        look(finder, window(tmp_path / f"{number}.py"))
    assert told == []
    released.set()


def test_what_python_thinks_of_the_users_code_is_not_told():
    """It would be written into the screen."""
    code = r"""
from aitop.sources.code.growth import growth_sites
code = "xs = ['\\d']\nfor step in range(9):\n    xs.append(1if step else 2)\n    loss.backward()\n"
assert growth_sites({"x.py": code})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_would_overflow_the_parsers_stack_is_not_read(monkeypatch):
    loop = "seen = []\nfor step in range(9):\n    seen.append(step)\n"
    monkeypatch.setattr(syntax, "LIMITS_DEPTH", False)
    for one in ("+1", ".b", "()", "[0]", "**a"):
        assert reading.growth_sites({"x.py": f"{loop}x = a{one * 2 * syntax.DEEPEST}\n"}) == ()
    flat = f"x = [{'1.5, -2, ' * syntax.DEEPEST}]\n".replace("-", "") + "y = a.b + c(1)\n" * syntax.DEEPEST
    assert len(reading.growth_sites({"x.py": loop + flat})) == 1
