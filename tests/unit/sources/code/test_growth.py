"""Growth sites of several shapes of training code. `# G` marks a site that keeps a graph, `# g` one that does not."""

from __future__ import annotations

import builtins
import keyword
import re
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    "what is handed to what computes the loss as well": """
        def train(net, source, rows):
            seen = []
            for row in rows:
                net(source.get(row)).sum().backward()
                seen.append(source.get(row))  # g
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

        fit(Trainer())
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
            history["right"].append(accuracy(out, y).item())
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


MODEL = re.compile(r"\b(?:model|net|head|criterion|loss_fn)\(")


UPDATE = re.compile(r"\b(?:backward|optimizer\.step|fit)\(")


def shown(source, calls):
    """The lines of a source below which stacks show what is called there."""
    return {("train.py", number) for number, line in enumerate(source.splitlines(), 1) if calls.search(line)}


def sites(source, stacks_of=None):
    stacks_of = stacks_of or source
    return growth_sites({"train.py": source}, shown(stacks_of, MODEL), shown(stacks_of, UPDATE))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_the_sites_that_are_marked_in_it(name):
    source = textwrap.dedent(SHAPES[name])
    lines = source.splitlines()
    expected = {n: line.endswith("# G") for n, line in enumerate(lines, 1) if line.endswith(("# G", "# g"))}
    assert {site.line: site.keeps_graph for site in sites(source)} == expected


# Words of Python, and the methods of tensors and queues that the shapes call.
NOT_THE_USERS = {
    *keyword.kwlist,
    *dir(builtins),
    *dir(list),
    *dir(dict),
    *("argmax", "backward", "cpu", "detach", "item", "log", "mean", "numpy", "size", "split"),
    *("deque", "maxlen", "popleft", "appendleft", "G", "g"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_no_name_of_the_users_matters(name):
    source = textwrap.dedent(SHAPES[name])
    own = [word for word in dict.fromkeys(re.findall(r"\b[a-z]\w*\b(?!=)", source)) if word not in NOT_THE_USERS]
    numbered = {word: f"zebra_{number}" for number, word in enumerate(own)}
    renamed = re.sub(r"\b[a-z]\w*\b(?!=)", lambda word: numbered.get(word[0], word[0]), source)
    assert renamed != source
    assert [(site.line, site.keeps_graph) for site in sites(renamed, stacks_of=source)] == [
        (site.line, site.keeps_graph) for site in sites(source)
    ]


def test_sites_that_keep_a_graph_come_first_with_their_text_and_function():
    first, second = sites(textwrap.dedent(LOOP.format("names.append(str(x))\n        losses.append(loss)")))
    assert (first.line, first.text, first.function, first.keeps_graph) == (6, "losses.append(loss)", "<module>", True)
    assert (second.text, second.keeps_graph) == ("names.append(str(x))", False)
    (site,) = sites(textwrap.dedent(SHAPES["a history kept by a method"]))
    assert site.function == "Trainer.training_step"


def test_the_text_is_that_of_the_line_as_python_counts_lines():
    (site,) = sites("\x0c\nmark = '\x0b\x1c\u2028'\n" + textwrap.dedent(LOOP.format("losses.append(loss)")))
    assert (site.line, site.text) == (7, "losses.append(loss)")


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
    main += "def epoch():\n    for batch in batches:\n        one(batch)\n\nepoch()\n"
    update = {("main.py", 3), ("main.py", 8)}
    assert [site.line for site in growth_sites({"tracker.py": tracker, "main.py": main}, steps=update)] == [10]
    assert growth_sites({"tracker.py": tracker, "main.py": main}) == (), "it is called, but at no step"
    assert [site.line for site in growth_sites({"tracker.py": tracker})] == [10], "whoever calls it may do so at each"


@pytest.mark.parametrize(
    ("trim", "grows"),
    [
        ("pass", True),
        ("if self.keep:\n                self.seen = self.seen[-self.keep:]", True),
        ("if self.keep is not None:\n                self.seen.clear()", True),
        ("self.seen = self.seen[-9:]", False),
        ("if self.seen:\n                self.seen.pop(0)", False),
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


def test_the_reading_of_a_data_set_is_none_at_every_step():
    source = """
    class Rows:
        def load(self, file):
            for line in file:
                self.rows.append(line)

    rows = Rows()
    rows.load(open("rows"))
    """ + LOOP.format("seen.append(x)")
    assert texts(source) == ["seen.append(x)"]


NUMBERS = ("seen.append(loss.item())", "seen += [float(loss)]", "seen.append(len(x))", "seen.append(1)", "n += len(x)")


@pytest.mark.parametrize("adds", NUMBERS)
def test_numbers_explain_no_growth(adds):
    assert texts(LOOP.format(adds)) == []
    assert texts(LOOP.format("seen.append((x, loss.item()))")) == ["seen.append((x, loss.item()))"]


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


@pytest.mark.parametrize("source", ["def f(:", "\0", "x = " + "(" * 500 + ")" * 500, ""])
def test_what_is_not_python_has_no_sites(source):
    assert sites(source) == ()


def test_a_long_chain_of_assignments_is_read_at_once():
    chain = "\n".join(f"    if c{n}:\n        x = x + x - x" for n in range(60))
    source = f"for x in loader:\n{chain}\n    loss.backward()\n    seen.append(x)\n"
    assert [site.text for site in sites(source)] == ["seen.append(x)"]


WORDS = ["x", "loss", "total", "self.seen", "model", "(", ")", "[", "]", ":", "\n", "\n    ", " for ", " in ", " = "]


WORDS += [" += ", ".append(", ".backward()", "with torch.no_grad():", "def step(self):", "[1:]", "del ", ",", "*"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_reading_source_for_growth_never_raises(source):
    sites(source)


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
    monkeypatch.setattr(syntax, "DEEPEST", 1000)
    for one in ("+1", ".b", "()", "[0]", "**a"):
        assert reading.growth_sites({"x.py": f"{loop}x = a{one * 2 * syntax.DEEPEST}\n"}) == ()
    flat = f"x = [{'1.5, -2, ' * syntax.DEEPEST}]\n".replace("-", "") + "y = a.b + c(1)\n" * syntax.DEEPEST
    assert len(reading.growth_sites({"x.py": loop + flat})) == 1
