"""Operations from the shapes in the autograd graph, against torch's own counter."""

from __future__ import annotations

import time

import pytest
import torch
from hook_runs import Net
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from aitop.hook.measures import flops
from aitop.hook.measures.flops import FIRST_BACKWARD, MOST_NODES, MOST_NS, Graphs, figures, walk
from aitop.hook.phases import wrap_backward

CUSTOM = torch.autograd.function.BackwardCFunction


def walked(model, *inputs):
    return walk((model(*inputs).float().sum(),), CUSTOM, MOST_NODES, 10 * MOST_NS)


def counted(model, *inputs) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        model(*inputs).float().sum().backward()
    return counter.get_total_flops()


class Attention(nn.Module):
    """Attention in plain products, as torch's counter has no count of its kernel for the CPU."""

    def __init__(self, size=32, heads=4):
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.more, self.less = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        parts = self.into(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = parts.unbind(2)
        scores = (query @ key.transpose(-1, -2)).softmax(-1)
        x = x + self.out((scores @ value).transpose(1, 2).flatten(2))
        return x + self.less(functional.gelu(self.more(x)))


def mlp():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32, bias=False), nn.GELU(), nn.Linear(32, 4))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 4, 3),
        nn.Flatten(),
        nn.Linear(4 * 9 * 9, 10),
    )


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (mlp(), (5, 16)),
        (mlp(), (2, 5, 16)),
        (cnn(), (2, 3, 16, 16)),
        (nn.Sequential(Attention(), Attention()), (2, 9, 32)),
    ],
)
def test_as_torch_counts(model, inputs):
    rows = torch.randn(inputs)
    walked_graph = walked(model, rows)
    assert walked_graph.whole and walked_graph.hidden == ()
    assert walked_graph.flops == pytest.approx(counted(model, rows), rel=0.01)


def test_attention_is_two_products_forward_and_five_backward():
    query, key = torch.randn(2, 3, 7, 8, requires_grad=True), torch.randn(2, 3, 5, 8, requires_grad=True)
    out = functional.scaled_dot_product_attention(query, key, key)
    walked_graph = walk((out.sum(),), CUSTOM, MOST_NODES, 10 * MOST_NS)
    assert walked_graph.flops in (7 * 2 * 2 * 3 * 7 * 5 * 8, 6 * 2 * 2 * 3 * 7 * 5 * 8)


def test_recurrent_weights_are_used_at_every_moment():
    model = nn.LSTM(16, 32)
    out = model(torch.randn(7, 4, 16))[0].sum()
    assert walk((out,), CUSTOM, MOST_NODES, MOST_NS).flops == 6 * 7 * 4 * (4 * 32 * 16 + 4 * 32 * 32)


@pytest.mark.parametrize("gradient", [False, True])
def test_packed_sequences_have_a_row_for_each_of_their_moments(gradient):
    """On the device "meta", cuDNN's graph is there without a GPU."""
    lengths, weights = [4, 4, 4, 3], nn.LSTM(16, 32, device="meta")._flat_weights
    rows, state = torch.empty(15, 16, device="meta", requires_grad=gradient), torch.empty(1, 4, 32, device="meta")
    lstm = 2
    settings = lstm, 32, 0, 1, False, 0.0, True, False, lengths, None
    out = torch._cudnn_rnn(rows, weights, 4, None, state, state, *settings)[0]
    assert out.grad_fn.name() == "CudnnRnnBackward0" and out.shape == (15, 32)
    assert walk((out,), CUSTOM, MOST_NODES, MOST_NS).flops == 6 * 15 * (4 * 32 * 16 + 4 * 32 * 32)


def test_dtypes_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        walked_graph = walked(mlp(), torch.randn(5, 16))
    assert set(walked_graph.dtypes) == {"bfloat16"}


def test_saved_tensors_are_left_alone():
    """Asking for them would run the owner's code, as checkpointing does to compute them anew."""
    asked = []
    model, rows = Attention(), torch.randn(2, 9, 32)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: asked.append(1) or tensor):
        out = model(rows).sum()
    assert walk((out,), CUSTOM, MOST_NODES, MOST_NS).flops > 0
    assert asked == []
    again = checkpoint(model, rows.requires_grad_(), use_reentrant=False).sum()
    assert walk((again,), CUSTOM, MOST_NODES, MOST_NS).flops > 0


def test_a_graph_that_hides_its_shapes_says_so():
    model, rows = mlp(), torch.randn(5, 16, requires_grad=True)
    walked_graph = walk((checkpoint(model, rows, use_reentrant=True).sum(),), CUSTOM, MOST_NODES, MOST_NS)
    assert figures(torch, [walked_graph]) == {"flops_basis": "CheckpointFunction hides its shapes"}


class CompiledFunction(torch.autograd.Function):
    """By this name torch.compile puts a whole model into the graph."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_a_compiled_model_has_no_figure():
    walked_graph = walk((CompiledFunction.apply(mlp()(torch.randn(5, 16))).sum(),), CUSTOM, MOST_NODES, MOST_NS)
    assert figures(torch, [walked_graph]) == {"flops_basis": "CompiledFunction hides its shapes"}


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def test_custom_functions_are_named():
    walked_graph = walk((Half.apply(mlp()(torch.randn(5, 16))).sum(),), CUSTOM, MOST_NODES, MOST_NS)
    assert walked_graph.hidden == ("Half",) and walked_graph.flops > 0
    assert figures(torch, [walked_graph])["flops_basis"] == "shapes in the autograd graph, without Half"


def test_the_function_that_hides_a_model_is_named_among_many():
    names = [*(f"Own{number}" for number in range(10)), "CompiledFunction"]
    loss = torch.ones(2, requires_grad=True)
    for name in reversed(names):
        loss = type(name, (Half,), {}).apply(loss)
    walked_graph = walk((loss.sum(),), CUSTOM, MOST_NODES, MOST_NS)
    assert figures(torch, [walked_graph]) == {"flops_basis": "CompiledFunction hides its shapes"}


def test_a_walk_is_bounded():
    value = torch.ones(1, requires_grad=True)
    for _ in range(3000):
        value = value * 1.0
    assert not walk((value,), CUSTOM, 1000, 10**10).whole
    assert not walk((value,), CUSTOM, MOST_NODES, 0).whole
    walked_graph = walk((value,), CUSTOM, MOST_NODES, 10**10)
    assert walked_graph.whole and walked_graph.ops == 3000


def test_a_walk_goes_on_where_others_had_the_core_meanwhile(monkeypatch):
    """A count of some of the operations would be taken for one of all."""
    value = torch.ones(1, requires_grad=True)
    for _ in range(300):
        value = value * 1.0
    reads = iter(range(10**9, 10**18, 10**9))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(reads))
    walked_graph = walk((value,), CUSTOM, MOST_NODES, MOST_NS)
    assert walked_graph.whole and walked_graph.ops == 300


def test_the_mean_of_different_backwards(watched, monkeypatch):
    """One large and one small backward in each step."""
    monkeypatch.setattr(flops, "MOST_NS_A_ROUND", 10**10)  # on a loaded machine the first graph may take all of it
    small, large = nn.Linear(8, 8, bias=False), nn.Linear(8, 80, bias=False)
    optimizer = torch.optim.SGD([*small.parameters(), *large.parameters()], 0.1)
    rows = torch.randn(4, 8)
    for _ in range(40):
        small(rows).sum().backward()
        large(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    facts = watched.facts()
    assert facts.flops_per_backward == 2 * 4 * 8 * (8 + 80) / 2 * 2
    assert (facts.flops_basis, facts.flops_dtype) == ("shapes in the autograd graph", "float32")


def test_a_backward_with_keywords_is_counted(watched):
    """In torch 2.2 the hook wraps `torch.autograd.backward` itself."""
    session, model = watched.session, mlp()
    session.look(time.monotonic_ns())
    backward = wrap_backward(torch.autograd.backward, session)
    for _ in range(FIRST_BACKWARD):
        backward(tensors=model(torch.randn(5, 16)).sum())
    assert watched.facts().ops > 0 and session._errors.number == 0


def distil(watched, teach, times=30, clear=None):
    """Train a small model after a large one. What is told of gradients that no optimizer uses."""
    student, teacher = mlp(), nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    watched.session.look(time.monotonic_ns())
    for number in range(times):
        if number == times // 2:
            watched.session.look(time.monotonic_ns() + 10**11)
        rows = torch.randn(5, 16)
        (student(rows) - teach(teacher, rows)).square().mean().backward()
        optimizer.step()
        (clear or optimizer.zero_grad)(*(() if clear is None else (student, teacher)))
    return watched.facts().unused_gradients


def quietly(model, rows):
    with torch.no_grad():
        return model(rows)


def test_gradients_that_no_optimizer_uses(watched):
    small = 16 * 64 + 64 * 32 + 32 * 4
    large = 16 * 64 + 64 * 64 + 64 * 4
    assert distil(watched, lambda teacher, rows: teacher(rows)) == pytest.approx(large / (small + large), abs=0.05)


@pytest.mark.parametrize(
    ("teach", "clear"),
    [
        (quietly, None),
        (lambda teacher, rows: teacher(rows).detach(), None),
        (lambda teacher, rows: teacher(rows), lambda *models: [model.zero_grad() for model in models]),
        (lambda teacher, rows: teacher.requires_grad_(False)(rows), None),
    ],
    ids=["no_grad", "detached", "gradients that are cleared by hand may be used by hand", "frozen"],
)
def test_gradients_that_are_used_or_not_made(watched, teach, clear):
    assert distil(watched, teach, clear=clear) == 0.0


def test_gradients_that_accumulate_for_a_rare_optimizer_are_not_called_unused(watched):
    shared, head = nn.Linear(16, 16), nn.Linear(16, 3)
    often, rarely = torch.optim.SGD(head.parameters(), 0.1), torch.optim.SGD(shared.parameters(), 0.1)
    watched.session.look(time.monotonic_ns())
    for number in range(40):
        head(shared(torch.randn(5, 16))).square().mean().backward()
        for optimizer in (often, rarely) if number % 4 == 3 else (often,):
            optimizer.step()
            optimizer.zero_grad()
        if number == 20:
            watched.session.look(time.monotonic_ns() + 10**11)
    assert watched.facts().unused_gradients in (None, 0.0)


def test_losses_are_the_same(unhooked):
    import aitop.hook

    def losses():
        torch.manual_seed(3)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = []
        for _ in range(30):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    plain = losses()
    aitop.hook.install("run")
    assert losses() == plain
    aitop.hook._session.look(time.monotonic_ns())
    graphs = next(measure for measure in aitop.hook._session.measures if isinstance(measure, Graphs))
    assert graphs.facts()["flops_per_backward"] > 0
