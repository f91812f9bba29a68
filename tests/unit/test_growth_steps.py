"""Which growth sites run at every step, how long what they make longer lives, and what may shorten it."""

import textwrap

import pytest

from aitop.sources.growth import find_all, find_growth


def sites(source):
    return [site for _, site in find_growth(textwrap.dedent(source), "train.py")]


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


def test_a_function_that_a_training_loop_calls_runs_at_every_step():
    (site,) = sites(TRACKER.format("pass"))
    assert (site.grown, site.every_step, site.within, site.unless) == ("self.seen", True, None, None)


def test_the_loop_may_call_it_through_others_and_from_another_file():
    tracker = textwrap.dedent(TRACKER).partition("tracker =")[0].format("pass")
    main = "def one(batch):\n    loss = net(batch)\n    loss.backward()\n    tracker.rank(loss)\n\n"
    main += "def epoch():\n    for batch in batches:\n        one(batch)\n"
    assert [site.every_step for _, site in find_all({"tracker.py": tracker, "main.py": main})] == [True]
    assert sites(tracker) == []


@pytest.mark.parametrize(
    "trim",
    [
        "if self.keep:\n                self.seen = self.seen[-self.keep:]",
        "if self.keep and len(self.seen) > 99:\n                del self.seen[:9]",
        "if self.keep is not None:\n                self.seen.clear()",
    ],
)
def test_what_only_a_setting_shortens_may_grow(trim):
    (site,) = sites(TRACKER.format(trim))
    assert site.every_step and site.unless


@pytest.mark.parametrize(
    "trim",
    [
        "self.seen = self.seen[-9:]",
        "if len(self.seen) > self.keep:\n                self.seen.pop(0)",
        "if self.count % 100 == 0:\n                self.seen.clear()",
        "while len(self.seen) > self.keep:\n                self.seen.pop(0)",
    ],
)
def test_what_is_shortened_now_and_then_does_not_grow(trim):
    assert sites(TRACKER.format(trim)) == []


def test_what_is_made_for_each_step_does_not_grow():
    assert sites(TRACKER.format("pass").replace("tracker.rank", "Tracker(3).rank")) == []
    fill = "def fill(parts, x):\n    parts.append(x)\n\nkept = []\n"
    fresh = textwrap.dedent(LOOP.format("found = []; fill(found, x)"))
    lasting = textwrap.dedent(LOOP.format("fill(kept, x)"))
    assert sites(fill + fresh) == []
    assert sites(fill.replace("kept = []", "n, kept = 0, deque(maxlen=9)") + lasting) == []
    assert [site.every_step for site in sites(fill + lasting)] == [True]


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
    assert sites(source) == []


def test_reading_a_data_set_is_not_done_at_every_step():
    source = """
    class Rows:
        def load(self, file):
            for line in file:
                self.rows.append(line)

    rows = Rows()
    rows.load(open("rows"))
    """ + LOOP.format("pass")
    assert [site.every_step for site in sites(source)] == [False]


def test_what_an_evaluation_collects_lives_in_its_loop():
    source = """
        def evaluate(model, loader):
            found = []
            for x in loader:
                found.append(model(x).tolist())
            return sum(found)
    """
    (site,) = sites(source)
    assert site.within == (4, 5)


CARRIED = """
    state = torch.zeros(4, 9)
    for x, y in stream:
        out, state = cell(x, state)
        loss = criterion(out, y)
        loss.backward({})
        {}
"""


def test_a_state_that_carries_its_graph_on():
    (site,) = sites(CARRIED.format("retain_graph=True", "pass"))
    assert (site.grown, site.keeps_graph, site.every_step) == ("state", True, True)


@pytest.mark.parametrize(
    ("retain", "then"),
    [
        ("", "pass"),
        ("retain_graph=True", "state = state.detach()"),
        ("retain_graph=True", "state.detach_()"),
        ("retain_graph=True", "state = repackage(state)"),
    ],
)
def test_a_state_without_its_graph_is_none(retain, then):
    assert sites(CARRIED.format(retain, then)) == []


def test_a_parameter_that_is_handed_over_alike_is_a_setting():
    clip = """
    def clip(norms, norm, keep, last):
        norms.append(norm)
        if {}:
            norms.clear()

    norms = []
    """ + LOOP.format("clip(norms, loss.item(), 9 if args.short else None, last=y)")
    (site,) = sites(clip.format("keep"))
    assert site.every_step and site.unless
    assert sites(clip.format("last")) == []


def test_a_state_that_only_a_setting_detaches():
    (site,) = sites(CARRIED.format("retain_graph=not args.cut", "if args.cut:\n            state = state.detach()"))
    assert site.keeps_graph and site.unless == 7


HOOKED = """
    kept = {{}}

    def watch(name):
        def hook(module, args, output):
            {}
        return hook

    for name, module in net.named_modules():
        module.register_forward_hook(watch(name))
""" + LOOP.format("pass")


@pytest.mark.parametrize("keeps", ["kept.setdefault(name, []).append(output)", "kept[name].append(output)"])
def test_what_a_forward_hook_keeps_grows_at_every_step(keeps):
    (site,) = sites(HOOKED.format(keeps))
    assert (site.function, site.every_step) == ("watch.<locals>.hook", True)


def test_a_forward_hook_that_keeps_the_last_output_of_each_module():
    assert sites(HOOKED.format("kept[name] = output")) == []
    assert (
        sites(HOOKED.format("kept.setdefault(name, []).append(output)").replace("register_forward_hook", "note")) == []
    )
