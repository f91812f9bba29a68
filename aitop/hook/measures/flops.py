"""Counts the floating-point operations of a backward and its forward from the shapes in the autograd graph.

Also, which part of them gives gradients that no optimizer uses, as those of a teacher that runs without `no_grad`.

Only the shapes along the edges of the graph are read. Saved tensors are left alone, because reading one may run code
(activation checkpointing recomputes it). Operations are counted as in torch.utils.flop_counter: matrix products,
convolutions and attention, with two operations for a multiply-add.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compiler import keep_from_compiling
from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

Shape = tuple[int, ...]

# A round counts the graphs of several consecutive backwards, because a step may have several different ones. A round
# is due at once and then every EVERY_NS, and begins at this backward after that.
FIRST_BACKWARD = 3
EVERY_NS = 60_000_000_000

# A large model's graph has some thousand nodes, each of which takes a microsecond or two.
MOST_NODES = 20_000
# The most CPU time for one graph; the clock is read every NODES_A_READ nodes. CPU time, not wall time, because on a
# crowded machine the thread may have to wait for a core.
MOST_NS, NODES_A_READ = 15_000_000, 64
# Backwards in a round: a multiple of most numbers of backwards that a step may have.
GRAPHS = 12
MOST_NS_A_ROUND = 3_000_000

# A second round follows soon: by the first one, an optimizer that steps less often may not be known yet.
SOON_NS, SETTLED_STEPS = 5_000_000_000, 8

# Whether it still has a gradient is asked of the first leaves of a graph, then of one in so many, as it takes 5 µs.
FIRST_LEAVES, LEAVES_A_LOOK = 16, 8

# Custom autograd functions that compute nothing worth counting: what data parallelism puts around a model.
TRANSPARENT = ("_DDPSink", "RegisterPostBackward", "PreBackward", "PostBackward", "PostAccumulate")
# Custom autograd functions that hide a whole model, or parts of it.
OPAQUE = ("CompiledFunction", "CheckpointFunction")


class Walk(NamedTuple):
    """The result of one walk through an autograd graph.

    ops             number of nodes, without the leaves
    dtypes          floating-point operations by dtype
    convolutions    how many of them are in convolutions
    hidden          names of functions whose operations cannot be told from shapes
    whole           False if a limit ended the walk
    left            a parameter that no optimizer updates still has a gradient, of an earlier backward
    """

    ops: int
    dtypes: dict[str, float]
    convolutions: float
    hidden: tuple[str, ...]
    whole: bool
    left: bool = False

    @property
    def flops(self) -> float:
        return sum(self.dtypes.values())


def walk(outputs: Any, custom: Any, most_nodes: int, most_ns: int, updated: AbstractSet[int] = frozenset()) -> Walk:
    """Walk through the autograd graph of `outputs` (a sequence of tensors), for at most `most_ns` of CPU time.

    `custom` is the class of the nodes of autograd functions that are written in Python, `updated` the ids of the
    parameters that optimizers update; empty if they are not known.
    """
    until = time.thread_time_ns() + most_ns
    waiting = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
    seen, ops, visited, leaves, convolutions, left = set(waiting), 0, 0, 0, 0.0, False
    dtypes: dict[str, float] = {}
    hidden: list[str] = []
    while waiting and len(seen) < most_nodes:
        if visited % NODES_A_READ == 0 and time.thread_time_ns() >= until:
            break
        visited += 1
        node = waiting.pop()
        inputs = node.next_functions
        if inputs:
            ops += 1
        elif updated and not left:
            leaves += 1
            left = (leaves <= FIRST_LEAVES or leaves % LEAVES_A_LOOK == 0) and _is_left(node, updated)
        kind = node.name().removesuffix("Backward0")
        if kind in COUNTS:
            made = _operations(kind, node, inputs)
            if made is None:
                hidden.append(kind)
            else:
                dtype = str(node._input_metadata[0].dtype).removeprefix("torch.")
                dtypes[dtype] = dtypes.get(dtype, 0.0) + made
                convolutions += made if kind.startswith("Convolution") else 0.0
        elif isinstance(node, custom) and not kind.startswith(TRANSPARENT):
            hidden.append(kind.removesuffix("Backward"))
        for other, _ in inputs:
            if other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)
    return Walk(ops, dtypes, convolutions, tuple(dict.fromkeys(hidden)), not waiting, left)


def _operations(kind: str, node: Any, inputs: Any) -> float | None:
    """Return the operations of a node and of its forward; None if they cannot be told."""
    try:
        return COUNTS[kind](node, inputs)
    except (AttributeError, RuntimeError, IndexError):
        # Another version of torch, or a tensor that has no single shape (nested).
        return None


def _is_left(leaf: Any, updated: AbstractSet[int]) -> bool:
    """Return whether a leaf of the graph is a parameter that no optimizer updates and that has a gradient already."""
    variable = getattr(leaf, "variable", None)
    return variable is not None and id(variable) not in updated and variable.grad is not None


def unused_part(outputs: Any, updated: AbstractSet[int], most_ns: int) -> float | None:
    """Return the part (0..1) of the operations that only give gradients of parameters that no optimizer updates.

    None if that is not known: if a parameter of an optimizer has a gradient already, as where gradients are
    accumulated, those of an optimizer that steps more rarely may wait for it. Or if it took more than `most_ns` of CPU
    time.
    """
    until = time.thread_time_ns() + most_ns
    nodes = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
    seen, serving, made = set(nodes), set(), dict[Any, float]()
    # The edges, as two lists: ten thousand pairs might make Python collect garbage here.
    below: list[Any] = []
    above: list[Any] = []
    for visited, node in enumerate(nodes):
        if visited % NODES_A_READ == 0 and time.thread_time_ns() >= until:
            return None
        inputs = node.next_functions
        if not inputs and not _is_left(node, updated):
            serving.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in updated and variable.grad is not None:
                return None
        kind = node.name().removesuffix("Backward0")
        if kind in COUNTS:
            made[node] = _operations(kind, node, inputs) or 0.0
        for other, _ in inputs:
            if other is not None:
                below.append(other)
                above.append(node)
                if other not in seen:
                    seen.add(other)
                    nodes.append(other)
    known = 0
    # Most edges come after those above them, so few rounds are needed.
    while known < len(serving):
        known = len(serving)
        serving.update(user for node, user in zip(reversed(below), reversed(above), strict=True) if node in serving)
    whole = sum(made.values())
    return sum(flops for node, flops in made.items() if node not in serving) / whole if known and whole else None


def _result(node: Any) -> Shape:
    return tuple(node._input_metadata[0].shape)


def _input(inputs: Any, position: int) -> Shape | None:
    """Return the shape of the input at `position` if a gradient flows to it, else None."""
    node, output = inputs[position]
    return None if node is None else tuple(node._input_metadata[output].shape)


def _passes(inputs: Any, first: int, second: int) -> int:
    """Return how many products of this size are made: one in the forward, and one for each factor's gradient."""
    return 1 + (inputs[first][0] is not None) + (inputs[second][0] is not None)


def _product(first: int, second: int) -> Callable[[Any, Any], float | None]:
    """Return a counter for a matrix product, batched or not, of the inputs at these positions."""

    def count(node: Any, inputs: Any) -> float | None:
        left, right = _input(inputs, first), _input(inputs, second)
        inner = left[-1] if left else right[-2] if right else None
        if inner is None:
            return None
        return 2.0 * prod(_result(node)) * inner * _passes(inputs, first, second)

    return count


def _linear(node: Any, inputs: Any) -> float | None:
    left, weight = _input(inputs, 0), _input(inputs, 1)
    inner = left[-1] if left else weight[-1] if weight else None
    return None if inner is None else 2.0 * prod(_result(node)) * inner * _passes(inputs, 0, 1)


def _convolution(node: Any, inputs: Any) -> float | None:
    weight = _input(inputs, 1)
    if weight is None:
        return None
    if not node._saved_transposed:
        size: Shape | None = _result(node)
    else:
        size = _input(inputs, 0)
    return None if size is None else 2.0 * prod(size) * prod(weight[1:]) * _passes(inputs, 0, 1)


def _attention(node: Any, inputs: Any) -> float | None:
    """Count two products forward and five backward, where the scores are recomputed. A causal mask saves none."""
    query, key, value = (_input(inputs, position) for position in range(3))
    if query is None or key is None or value is None:
        return None
    rows, columns = query[-2], key[-2]
    forward = 2.0 * prod(query[:-2]) * rows * columns * (query[-1] + value[-1])
    return forward + 2.0 * prod(query[:-2]) * rows * columns * (3 * query[-1] + 2 * value[-1])


def _recurrent(node: Any, inputs: Any) -> float | None:
    """Count, for each weight matrix, one product forward and two backward with each row of each time step."""
    # The first input is the sequence. With packed sequences it is a matrix too: all rows of all time steps.
    shapes = [_input(inputs, position) for position in range(1, len(inputs))]
    weights = sum(prod(shape) for shape in shapes if shape is not None and len(shape) == 2)
    return 6.0 * prod(_result(node)[:-1]) * weights if weights else None


COUNTS: dict[str, Callable[[Any, Any], float | None]] = {
    "Addmm": _product(1, 2),
    "Mm": _product(0, 1),
    "Bmm": _product(0, 1),
    "Baddbmm": _product(1, 2),
    "Addbmm": _product(1, 2),
    "Linear": _linear,
    "MkldnnLinear": _linear,
    "Convolution": _convolution,
    "ConvolutionOverrideable": _convolution,
    "ScaledDotProductFlashAttention": _attention,
    "ScaledDotProductFlashAttentionForCpu": _attention,
    "ScaledDotProductEfficientAttention": _attention,
    "ScaledDotProductCudnnAttention": _attention,
    "ScaledDotProductFusedAttentionOverrideable": _attention,
    "CudnnRnn": _recurrent,
    "MiopenRnn": _recurrent,
    "MkldnnRnnLayer": _recurrent,
}


class Graphs(Measure):
    """Reports the mean over the graphs of a few consecutive backwards (a round)."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._session = session
        self._journal = session.journal
        self._custom = getattr(torch.autograd.function, "BackwardCFunction", ())
        self._walks: list[Walk] = []
        # What is known of each graph: its operations, and how many of them give gradients that no optimizer uses.
        self._unused: list[tuple[float, float]] = []
        self._updated: AbstractSet[int] = frozenset()
        self._spent = 0
        self._again_at = 0
        self._pause = SOON_NS
        self._facts: dict[str, Any] = {}
        self._journal.count_ops = self.backward_begins

    def look(self, now: int) -> None:
        if now > self._again_at:
            self._again_at, self._pause = now + self._pause, EVERY_NS
            self._journal.ops_due = self._journal.ops_due or FIRST_BACKWARD

    def facts(self) -> dict[str, Any]:
        return self._facts

    def over(self) -> None:
        self._journal.ops_due = 0

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the operations of this backward's graph if its turn has come."""
        self._journal.ops_due -= 1
        if self._journal.ops_due:
            return
        try:
            # By keyword it comes only to `backward`, which torch 2.2 has in the place of the inner function.
            outputs = args[0] if args else kwargs["tensors"]
            self.add(outputs if isinstance(outputs, (tuple, list)) else (outputs,))
            self._journal.ops_due = int(bool(self._walks))
        except Exception:
            self._session.failed()

    def add(self, outputs: Any) -> None:
        """Walk through one more graph, and finish the round after GRAPHS of them or MOST_NS_A_ROUND of CPU time."""
        start = time.thread_time_ns()
        walks = self._walks
        if not walks:
            self._updated = self._parameters()
        walks.append(walk(outputs, self._custom, MOST_NODES, MOST_NS, self._updated))
        if walks[-1].whole and self._updated:
            part = unused_part(outputs, self._updated, MOST_NS) if walks[-1].left else 0.0
            self._unused += [] if part is None else [(walks[-1].flops, walks[-1].flops * part)]
        self._spent += time.thread_time_ns() - start
        self._facts["ops"] = walks[-1].ops
        if len(walks) >= GRAPHS or self._spent >= MOST_NS_A_ROUND:
            self._facts = {"ops": walks[-1].ops, **figures(self._torch, walks)}
            whole = sum(flops for flops, _ in self._unused)
            if whole > 0.0:
                self._facts["unused_gradients"] = round(sum(unused for _, unused in self._unused) / whole, 4)
            self._walks, self._unused, self._spent = [], [], 0
            self._session.facts.changed = True

    def _parameters(self) -> AbstractSet[int]:
        """Return the ids of the parameters that optimizers update; empty while these may not all be known."""
        if self._journal.steps < SETTLED_STEPS:
            return frozenset()
        optimizers = [optimizer() for optimizer, _ in list(self._session.optimizers.values())]
        groups = (group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ()))
        return {id(parameter) for group in groups for parameter in group["params"]}


keep_from_compiling(Graphs.backward_begins.__code__, inner=True)


def figures(torch: Any, walks: list[Walk]) -> dict[str, Any]:
    """Return the mean over these graphs, as fields of `HookFacts`."""
    hidden = list(dict.fromkeys(name for each in walks for name in each.hidden))
    flops = sum(each.flops for each in walks) / len(walks)
    if not all(each.whole for each in walks):
        return {"flops_basis": "the graph is too large to be looked at"}
    opaque = next((name for name in hidden if name.startswith(OPAQUE)), None)
    if opaque is not None:
        return {"flops_basis": f"{opaque} hides its shapes"}
    if not flops:
        return {}
    basis = "shapes in the autograd graph"
    if hidden:
        basis += f", without {', '.join(hidden[:3])}"
    return {"flops_per_backward": flops, "flops_basis": basis[:200], "flops_dtype": _dtype(torch, walks)}


def _dtype(torch: Any, walks: list[Walk]) -> str:
    """Return the dtype of most operations; "tf32" for float32 where torch may compute it in TF32."""
    sums: dict[str, float] = {}
    for each in walks:
        for dtype, flops in each.dtypes.items():
            sums[dtype] = sums.get(dtype, 0.0) + flops
    most = max(sums, key=lambda dtype: sums[dtype])
    if most != "float32" or not torch.cuda.is_initialized():
        return most
    convolving = sum(each.convolutions for each in walks) > sum(sums.values()) / 2
    return "tf32" if rounds_to_tf32(torch, "conv" if convolving else "matmul") else most


def rounds_to_tf32(torch: Any, operation: str) -> bool:
    """Return whether matmul or conv may compute float32 in TF32."""
    # The older getters raise if the precision was set in the newer way.
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is not None:
        return bool(getter("cuda", operation) == "tf32")
    if operation == "conv":
        return bool(torch.backends.cudnn.allow_tf32)
    return bool(torch.get_float32_matmul_precision() != "highest")
