"""Growth sites of several shapes of training code. `# G` marks a site that keeps a graph, `# g` one that does not."""

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aitop.sources.growth import find_growth

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
    "the same with item": """
        losses = []
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            losses.append(loss.item())  # g
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
    "sum written out, scaled": """
        def train():
            for x, y in loader:
                loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                running_loss = running_loss + loss / 4  # G
        """,
    "fresh in the loop": """
        for x, y in loader:
            parts = []
            for head in heads:
                parts.append(head(x))
            loss = sum(parts)
            loss.backward()
        """,
    "cleared in the loop, now and then": """
        window = []
        for step, (x, y) in enumerate(loader):
            loss = loss_fn(model(x), y)
            loss.backward()
            window.append(loss)
            if step % 100 == 0:
                print(sum(window))
                window.clear()
        """,
    "a bounded queue": """
        recent = deque(maxlen=100)
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
            recent.append(loss)
        """,
    "kept short by slicing": """
        recent = []
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
            recent.append(loss.item())
            recent = recent[-100:]
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
    "under no_grad": """
        @torch.no_grad()
        def evaluate(model, loader):
            predictions = []
            for x in loader:
                predictions.append(model(x))  # g
            return predictions

        def evaluate_with(model, loader, out):
            for x in loader:
                with torch.no_grad():
                    logits = model(x)
                out.append(logits)  # g
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
            history["acc"].append(accuracy(out, y))  # g
        """,
    "list concatenation and torch.cat": """
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            loss.backward()
            log += [loss.item()]  # g
            log = log + [(step, loss)]  # G
            bank = torch.cat([bank, out])  # G
            bank_2 = torch.cat([bank_2, out.detach()], dim=0)  # g
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
    "detached before it is summed": """
        def main():
            total_loss = 0
            for step, batch in enumerate(train_dataloader):
                outputs = model(**batch)
                loss = outputs.loss
                total_loss += loss.detach().float()
                accelerator.backward(loss)
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
    "made plain on both ways, which is not seen": """
        history = []
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            if args.mean:
                loss = loss.mean().item()
            else:
                loss = float(loss)
            history.append(loss)  # G
        """,
    "plain in the branch that keeps it": """
        for step, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            loss.backward()
            if step % 10 == 0:
                loss = loss.item()
                history.append(loss)  # g
        """,
    "an unknown step function": """
        total_loss = 0
        for batch in loader:
            loss = train_step(batch)
            total_loss += loss  # g
        """,
    "a global": """
        seen = []

        def transform(image):
            global count
            for piece in image:
                seen.append(piece)  # g
        """,
}


def sites(source):
    return [site for _, site in sorted(find_growth(source, "train.py"), key=lambda ranked: ranked[0])]


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name):
    source = textwrap.dedent(SHAPES[name])
    lines = source.splitlines()
    expected = {n: line.endswith("# G") for n, line in enumerate(lines, 1) if line.endswith(("# G", "# g"))}
    assert {site.line: site.keeps_graph for site in sites(source)} == expected


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


@pytest.mark.parametrize("source", ["def f(:", "\0", "x = " + "(" * 500 + ")" * 500, ""])
def test_what_is_not_python_has_no_sites(source):
    assert find_growth(source, "x.py") == []


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
    find_growth(source, "x.py")
