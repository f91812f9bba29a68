"""python-overhead: loops of small operations, seen from outside and counted, and what only looks like them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from snapshot_builder import RANK, line, snapshot, stacks, steps

from aitop.diagnosis import optimizer, python_overhead
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases, Stacks, ThreadShare
from aitop.model.stacks import Frame
from aitop.model.steps import HookFacts

STACKED = "vectors = self.model(torch.stack([features for features, _ in taken]))"


def fired(judgement):
    assert isinstance(judgement, Finding), judgement
    return judgement.verdict


def counted(ops):
    return HookFacts(way="attach", python="3.11", torch="2", ops=ops)


HEADER = line("forward", 0.05, phase="forward", activity="compute", number=20, text="for t in range(x.shape[1]):")


BODY = line("forward", 0.35, phase="forward", activity="compute", number=21, text="h = self.cell(x[:, t], h)")
LOOPED = replace(BODY, loop=HEADER.text, text="out.append(self.head(x[:, t]))")


LOOPING = Phases(forward=0.4, backward=0.55, optimizer=0.05)


def seen_from_outside(lines, phases=LOOPING, gil=None):
    base = stacks(lines, phases=phases)
    threads = (ThreadShare(pid=RANK, thread="MainThread", samples=100, gil=gil),)
    held = Stacks(
        seconds=base.seconds, samples=base.samples, processes=base.processes, lines=base.lines, threads=threads
    )
    return snapshot(phases=phases, stacks=held)


def test_a_loop_of_small_operations_shows_without_the_hook():
    verdict = fired(python_overhead.judge(seen_from_outside([HEADER, LOOPED], gil=0.15)))
    assert verdict.where[0].line == 21 and verdict.confidence <= 0.5
    assert 0.5 < verdict.share < 0.8


def test_the_head_of_a_loop_is_evidence_where_the_lock_is_held_now_and_then():
    assert fired(python_overhead.judge(seen_from_outside([HEADER, LOOPED], gil=0.07))).where[0].line == 21
    assert python_overhead.judge(seen_from_outside([LOOPED], gil=0.07)) is None


def test_no_backward_pass_holds_the_lock_however_small_what_it_goes_back_through():
    """Of what is not the backward pass a quarter holds the lock: those are small operations."""
    body = line("integrate", 0.18, phase="forward", activity="python", number=27, text="h = a * h + b * u[:, t]")
    body = replace(body, loop="for t in range(u.shape[1]):")
    phases = Phases(forward=0.2, backward=0.7, optimizer=0.1)
    assert fired(python_overhead.judge(seen_from_outside([body], phases, gil=0.08))).where[0].line == 27
    assert python_overhead.judge(seen_from_outside([body], phases, gil=0.04)) is None


def test_a_short_loop_beside_much_else_does_not_stand_for_all_of_it():
    """Weights are counted in a loop of their own: nothing is known of the model by that."""
    head = line("main", 0.03, activity="compute", number=33, text="for p in net.parameters():")
    model = line("main", 0.3, phase="forward", activity="compute", number=29, text="y = net(x)")
    back = line("main", 0.5, phase="backward", activity="compute", number=31, text="loss.backward()")
    assert python_overhead.judge(seen_from_outside([head, model, back], gil=0.2)).level < 0.1


def test_the_head_of_the_loop_that_makes_steps_is_no_evidence():
    head = line("main", 0.1, activity="compute", number=28, text="for rows in torch.randperm(n).split(64):")
    model = line("main", 0.1, phase="forward", activity="compute", number=29, text="y = net(x[rows])")
    loss = line("main", 0.3, activity="compute", number=30, text="loss = (y - t[rows]).pow(2).mean()")
    back = line("main", 0.4, phase="backward", activity="compute", number=31, text="loss.backward()")
    lines = [head, model, *(replace(one, loop=head.text) for one in (loss, back))]
    found = python_overhead.judge(seen_from_outside(lines, gil=0.2))
    assert found is None or found.level < 0.15


@pytest.mark.parametrize(
    ("head", "call", "layers"),
    [
        ("for block in self.blocks:", "x = block(x)", True),
        ("for norm, layer in zip(self.norms, self.layers):", "x = x + layer(norm(x))", True),
        ("for i in range(self.depth):", "x = self.layers[i](x)", True),
        ("for t in range(n):", "h = self.cell(x[:, t], h)", False),
        ("for a, b in pairs:", "total = total + gap(e[a], e[b])", False),
    ],
)
def test_a_loop_over_layers_is_a_deep_model(head, call, layers):
    above = Frame(function="GPT.forward", file="/x/model.py", line=40, user=True, text=call, loop=head)
    inner = replace(line("Block.forward", 0.4, phase="forward", activity="compute", text="x + self.mlp(x)"), loop=head)
    seen = seen_from_outside([replace(inner, via=(above,))], gil=0.15)
    assert (python_overhead.judge(seen) is None) == layers


def test_a_loop_of_large_operations_lets_go_of_the_lock():
    assert python_overhead.judge(seen_from_outside([HEADER, LOOPED], gil=0.02)) is None


def test_the_head_of_a_loop_need_not_be_seen_where_the_lock_is_held():
    body = replace(BODY, loop="for t in range(x.shape[1]):")
    assert fired(python_overhead.judge(seen_from_outside([body], gil=0.2))).where[0].line == 21
    assert python_overhead.judge(seen_from_outside([body], gil=0.02)) is None
    assert python_overhead.judge(seen_from_outside([body])) is None, "nobody asked who holds the lock"


def test_the_loop_that_makes_steps_is_no_loop_of_small_operations():
    loss = line("main", 0.3, activity="compute", number=30, text="loss = ((y - t) ** 2).mean()")
    back = line("main", 0.3, phase="backward", activity="compute", number=31, text="loss.backward()")
    model = line("main", 0.3, phase="forward", activity="compute", number=29, text="y = model(x)")
    lines = [replace(one, loop="for x, t in loader:") for one in (loss, back)]
    shares = Phases(forward=0.3, backward=0.3, outside=0.3)
    assert python_overhead.judge(seen_from_outside([*lines, model], shares, gil=0.2)) is None


def between(*rest):
    """Work of a training function between its forward pass (line 29) and its backward pass (line 40)."""
    model = line("main", 0.3, phase="forward", activity="compute", number=29, text="y = model(x)")
    back = line("main", 0.3, phase="backward", activity="compute", number=40, text="loss.backward()")
    return seen_from_outside([model, back, *rest], Phases(forward=0.3, backward=0.3, outside=0.4))


def test_what_is_computed_for_the_backward_pass_by_hand_is_no_overhead():
    ratio = line("main", 0.13, activity="compute", number=31, text="ratio = (log_p - old).exp()")
    clipped = line("main", 0.1, activity="compute", number=32, text="clipped = ratio.clamp(0.8, 1.2) * gain")
    below = line("gain_of", 0.1, activity="compute", number=7, via=[("main", 30, "gain = gain_of(values)")])
    assert python_overhead.judge(between(ratio, clipped, below)) is None


def test_what_is_done_with_the_gradients_is_not_done_for_them():
    norms = [line("main", 0.1, activity="compute", number=at, text="norms = stack(sizes).sum()") for at in (41, 42, 43)]
    update = line("main", 0.1, phase="optimizer", activity="compute", number=50, text="optimizer.step()")
    assert fired(python_overhead.judge(between(*norms, update))).share == pytest.approx(0.3)


def test_what_takes_most_between_the_passes_and_is_named_no_loss_may_be_anything():
    matrix = line("main", 0.35, activity="compute", number=31, text="counts = torch.histc(torch.cdist(y, y))")
    assert fired(python_overhead.judge(between(matrix))).where[0].line == 31
    after = replace(matrix, line=41)
    assert fired(python_overhead.judge(between(after))).where[0].line == 41
    calling = line("main", 0.35, activity="compute", number=29, text="choice = Categorical(logits=model(x))")
    assert python_overhead.judge(between(calling)) is None
    named = replace(matrix, text="sinkhorn_loss = (torch.cdist(y, y) * plan).sum()")
    assert python_overhead.judge(between(named)) is None


@pytest.mark.parametrize(
    ("text", "phase", "loop"),
    [
        (STACKED, "forward", False),
        (STACKED, "outside", False),
        ("y = model(torch.stack([to_tensor(x) for x in xs]))", "forward", False),
        ("h = torch.stack([self.cell(x[:, t], h) for t in range(n)])", "forward", True),
        ("loss = sum(((e[i] - e[j]) ** 2).sum() for i, j in pairs)", "outside", True),
        ("for t in range(n):  # every frame", "forward", True),
        ("q, k, v = (part.view(b, n, 8, d).transpose(1, 2) for part in self.qkv(x).split(c, 2))", "forward", False),
    ],
)
def test_a_comprehension_is_a_loop_only_if_it_works_for_each_element(text, phase, loop):
    inner = line("forward", 0.4, phase=phase, activity="compute", text=text)
    shares = Phases(forward=0.4 if phase == "forward" else 0.0, backward=0.4, outside=0.4)
    finding = python_overhead.judge(seen_from_outside([inner], shares, gil=0.3))
    assert ("tiny" in finding.verdict.title if finding else False) == loop


@pytest.mark.parametrize(
    ("text", "in_order"),
    [
        ("h = self.cell(x[:, t], h)", True),
        ("h, c = self.cell(x[:, t], (h, c))", True),
        ("h = a * h + (1 - a) * u[:, t]", True),
        ("total = total + (e[i] - e[j]).pow(2).sum()", False),
        ("out[i] = self.head(x[i])", False),
        ("hidden = torch.tanh(x[:, f, None] * self.w1[f])", False),
    ],
)
def test_a_loop_that_carries_a_state_gains_less(text, in_order):
    body = replace(BODY, text=text, loop="for t in range(n):")
    verdict = fired(python_overhead.judge(seen_from_outside([body], gil=0.3)))
    assert any("needs what the last one made" in told for told in verdict.evidence) == in_order
    assert (verdict.share < 0.5) == in_order


def test_layers_without_a_loop_are_no_overhead():
    assert python_overhead.judge(seen_from_outside([BODY], gil=0.15)) is None


BY_HAND = line("model", 0.4, activity="compute", number=10, text="x = torch.tanh(x @ w)")


@pytest.mark.parametrize("ops", [12, None], ids=["counted", "from outside"])
def test_a_model_without_modules_is_no_overhead(ops):
    if ops is None:
        seen = snapshot(phases=Phases(forward=0.0, backward=0.55, optimizer=0.05, outside=0.4), lines=[BY_HAND])
    else:
        seen = snapshot(
            steps(seconds=0.1, backward=0.055, optimizer=0.005),
            lines=[BY_HAND],
            facts=counted(ops),
        )
    assert python_overhead.judge(seen) is None


def test_a_loss_of_small_operations_by_hand_counts_with_its_backward():
    pairs = line("contrastive", 0.4, activity="compute", number=13, text="d = (e[i] - e[j]).pow(2).sum()")
    seen = snapshot(
        steps(seconds=0.014, backward=0.008, forward=0.0001),
        lines=[pairs],
        facts=counted(2000),
    )
    assert fired(python_overhead.judge(seen)).share == pytest.approx(0.85, abs=0.05)


UPDATE = "for p, (m, v) in state.items():"


def updates(*texts):
    """Lines of a loop over the parameters."""
    found = [line("update", 0.2, activity="compute", number=13 + at, text=text) for at, text in enumerate(texts)]
    return [replace(one, loop=UPDATE) for one in found]


@pytest.mark.parametrize("first", ["m.mul_(0.9).add_(p.grad, alpha=0.1)", "grad = p.grad + decay * p"])
def test_an_update_by_hand_is_the_optimizers_and_no_overhead_of_other_python(first):
    lines = updates(first, "hat = m / (1 - 0.9**t)", "p.sub_(rate * hat)")
    back = line("main", 0.3, phase="backward", activity="compute", number=40, text="loss.backward()")
    shares = Phases(forward=0.1, backward=0.3, optimizer=0.0, outside=0.6)
    seen = seen_from_outside([*lines, back], shares, gil=0.3)
    verdict = fired(optimizer.judge(seen))
    assert (verdict.share, verdict.where[0].function) == (pytest.approx(0.6 * optimizer.UNCOUNTED, abs=1e-3), "update")
    assert verdict.confidence <= 0.5 and "if they are many small tensors" in verdict.title
    assert python_overhead.judge(seen) is None


@pytest.mark.parametrize("text", ["total += p.grad.norm() ** 2", "p.grad.zero_()", "mean.mul_(0.999).add_(p)"])
def test_what_only_looks_at_gradients_updates_nothing(text):
    assert optimizer.judge(seen_from_outside(updates(text), Phases(backward=0.5, outside=0.5))) is None


def test_clipping_beside_an_optimizer_is_no_update_by_hand():
    lines = updates("p.grad.clamp_(-1.0, 1.0)", "p.grad.add_(noise)")
    seen = seen_from_outside(lines, Phases(forward=0.2, backward=0.3, optimizer=0.1, outside=0.4))
    assert optimizer.judge(seen).level < 0.1
    assert fired(python_overhead.judge(seen)).where[0].function == "update"


def test_a_line_that_updates_in_the_training_loop_does_not_stand_for_the_whole_loop():
    update = line("main", 0.05, activity="compute", number=43, text="w -= rate * w.grad")
    other = line("main", 0.4, number=44, text="report(x)")
    back = line("main", 0.3, phase="backward", number=40, text="loss.backward()")
    lines = [replace(one, loop="while True:") for one in (update, other, back)]
    seen = seen_from_outside(lines, Phases(forward=0.1, backward=0.3, outside=0.45))
    assert optimizer.judge(seen).level < 0.1
    assert fired(python_overhead.judge(seen)).where[0].line == 44
