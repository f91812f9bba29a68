"""Measures what goes into the root module: dtypes, number of token ids, autocast and matmul precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

ASK_EVERY_NS = 3_000_000_000
MOST_DTYPES = 8
MOST_DEPTH = 2
# With a KV cache, the mask also covers tokens that do not go in any more.
MASK = "attention_mask"
# Token ids come as (batch, length). Among several such tensors (masks, positions, labels) these names are preferred.
NAMES = ("input_ids", "ids", "tokens", "idx")


class Inputs(Measure):
    """Examines the arguments of a root's forward every few seconds, or of each forward if they contain token ids."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._journal = session.journal
        self._tensor = torch.Tensor
        self._whole = frozenset((torch.int64, torch.int32))
        self._where: str | int | None = None
        self._ask_at = 0
        self._dtypes: list[str] = []
        self._autocast: str | None = None
        self._journal.inputs = self.saw

    def look(self, now: int) -> None:
        if self._journal.inputs is None and now > self._ask_at:
            self._journal.inputs = self.saw

    def saw(self, args: tuple[Any, ...], kwargs: dict[str, Any], now: int) -> int:
        """Return the number of token ids in the arguments of a root's forward, -1 if there are none."""
        if now > self._ask_at:
            self._ask_at = now + ASK_EVERY_NS
            self._ask(args, kwargs)
            if self._journal.arguments_came is not None:
                self._journal.arguments_came(args, kwargs)
        ids = self._ids(args, kwargs)
        if ids is None:
            # Do not call this again until `look` sets it anew.
            self._journal.inputs = None
            return -1
        count = ids.numel()
        return count if type(count) is int else -1

    def facts(self) -> dict[str, Any]:
        return {
            "input_dtypes": self._dtypes,
            "autocast": self._autocast,
            "matmul_precision": matmul_precision(self._torch),
        }

    def _ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        dtypes: list[str] = []
        self._collect((args, kwargs), dtypes, 0)
        self._dtypes = dtypes[:MOST_DTYPES]
        self._autocast = autocast_dtype(self._torch)
        self._where = self._find(args, kwargs)
        self.watches = () if self._where is None else ("tokens",)

    def _collect(self, value: Any, dtypes: list[str], depth: int) -> None:
        if isinstance(value, self._tensor):
            name = str(value.dtype).removeprefix("torch.")
            if name not in dtypes:
                dtypes.append(name)
        elif depth <= MOST_DEPTH and isinstance(value, (tuple, list)):
            for item in value[:MOST_DTYPES]:
                self._collect(item, dtypes, depth + 1)
        elif depth <= MOST_DEPTH and isinstance(value, dict):
            for item in list(value.values())[:MOST_DTYPES]:
                self._collect(item, dtypes, depth + 1)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | int | None:
        """Return the name or position of the argument with token ids, or its key in a first argument that is a dict."""
        named = next((name for name in NAMES if self._is_ids(kwargs.get(name))), None)
        if named is not None:
            return named
        for position, value in enumerate(args[:4]):
            if self._is_ids(value):
                return position
        if args and isinstance(args[0], dict):
            return next((name for name in NAMES if self._is_ids(args[0].get(name))), None)
        return next((name for name, value in kwargs.items() if name != MASK and self._is_ids(value)), None)

    def _ids(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = self._where
        if where is None:
            return None
        if isinstance(where, int):
            value = args[where] if where < len(args) else None
        else:
            value = kwargs.get(where)
            if value is None and args and isinstance(args[0], dict):
                value = args[0].get(where)
        return value if self._is_ids(value) else None

    def _is_ids(self, value: Any) -> bool:
        return isinstance(value, self._tensor) and value.dtype in self._whole and value.dim() >= 2


def matmul_precision(torch: Any) -> str:
    """Return torch's precision setting for float32 matrix products: highest, high or medium."""
    # The older way to ask raises if the precision was set in the newer way, and warns in torch 2.9.
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        return str(torch.get_float32_matmul_precision())
    if getter("mkldnn", "matmul") == "bf16":
        return "medium"
    return "high" if getter("cuda", "matmul") == "tf32" else "highest"


def autocast_dtype(torch: Any) -> str | None:
    """Return the dtype of the autocast that is active in the calling thread, None without one."""
    if torch.is_autocast_enabled():
        dtype = torch.get_autocast_gpu_dtype() if not hasattr(torch, "get_autocast_dtype") else None
        return str(dtype or torch.get_autocast_dtype("cuda")).removeprefix("torch.")
    try:
        enabled = torch.is_autocast_enabled("cpu")
    except TypeError:
        # torch before 2.4 has another function for the CPU.
        enabled = torch.is_autocast_cpu_enabled()
        return str(torch.get_autocast_cpu_dtype()).removeprefix("torch.") if enabled else None
    return str(torch.get_autocast_dtype("cpu")).removeprefix("torch.") if enabled else None
