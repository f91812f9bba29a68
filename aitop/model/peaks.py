"""Peak rates of GPUs by name and dtype: dense (without sparsity), in FLOP/s, at the boost clock.

Sources: NVIDIA's data sheets of each card, and for GeForce the appendices of the Ampere GA102, Ada and Blackwell RTX
architecture papers. GeForce cards multiply 16-bit values at half of their rate when they accumulate in float32, as
torch does: that rate is given.
"""

from __future__ import annotations

import re

TERA = 1e12

# TFLOP/s in float64 (by tensor cores where they do it), float32 (without tensor cores), tf32, float16, bfloat16; 0 is
# not supported.
_Rates = tuple[float, float, float, float, float]
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")

_H100_SXM: _Rates = (67, 67, 494.7, 989.4, 989.4)
_H100_NVL: _Rates = (60, 60, 417.5, 835.5, 835.5)
_A100: _Rates = (19.5, 19.5, 156, 312, 312)

# Patterns of the whole name without "NVIDIA" and "Tesla"; the first that matches counts.
_CARDS: tuple[tuple[str, _Rates], ...] = (
    (r"GB200( .*)?", (40, 80, 1250, 2500, 2500)),
    (r"B200( .*)?", (37, 75, 1125, 2250, 2250)),
    (r"H200 NVL", _H100_NVL),
    (r"H200( .*)?", _H100_SXM),
    (r"GH200 .*", _H100_SXM),
    (r"H100 NVL", _H100_NVL),
    (r"H100 PCIe", (51, 51, 378, 756, 756)),
    (r"H100( SXM.*| 80GB HBM3)", _H100_SXM),
    (r"H800( SXM.*|)", (1, 67, 494.7, 989.4, 989.4)),
    (r"H20", (1, 44, 74, 148, 148)),
    (r"A100[ -].*", _A100),
    (r"A800[ -].*", _A100),
    (r"A30", (10.3, 10.3, 82, 165, 165)),
    (r"A40", (0, 37.4, 74.8, 149.7, 149.7)),
    (r"A10", (0, 31.2, 62.5, 125, 125)),
    (r"RTX A6000", (0, 38.7, 77.4, 154.8, 154.8)),
    (r"RTX 6000 Ada Generation", (0, 91.1, 182.1, 364.2, 364.2)),
    (r"L40S", (0, 91.6, 183, 362, 362)),
    (r"L40", (0, 90.5, 90.5, 181, 181)),
    (r"L4", (0, 30.3, 60, 121, 121)),
    (r"V100S-PCIE-.*", (8.2, 16.4, 0, 130, 0)),
    (r"V100-SXM[23]-.*", (7.8, 15.7, 0, 125, 0)),
    (r"V100-PCIE-.*", (7, 14, 0, 112, 0)),
    (r"T4", (0, 8.1, 0, 65, 0)),
)

# GeForce: TFLOP/s in float32; tf32 is as fast, 16 bits are twice as fast. Mobile cards of the same number are slower.
_GEFORCE = {
    "3060": 12.7, "3060 Ti": 16.2, "3070": 20.3, "3070 Ti": 21.7, "3080": 29.8, "3080 Ti": 34.1, "3090": 35.6,
    "3090 Ti": 40.0, "4060": 15.1, "4060 Ti": 22.1, "4070": 29.1, "4070 SUPER": 35.5, "4070 Ti": 40.1,
    "4070 Ti SUPER": 44.1, "4080": 48.7, "4080 SUPER": 52.2, "4090": 82.6, "5070": 30.9, "5070 Ti": 43.9,
    "5080": 56.3, "5090": 104.8,
}  # fmt: skip


def peak(name: str, dtype: str) -> float | None:
    """FLOP/s of the card of this name in `dtype` (one of DTYPES); None for cards and dtypes not known."""
    rates = _rates(name)
    if rates is None or dtype not in DTYPES:
        return None
    rate = rates[DTYPES.index(dtype)]
    if not rate and dtype == "tf32":
        # Cards from before Ampere compute tf32 as float32.
        rate = rates[DTYPES.index("float32")]
    return rate * TERA if rate else None


def _rates(name: str) -> _Rates | None:
    card = re.sub(r"^(NVIDIA |Tesla )+", "", name.strip())
    geforce = re.fullmatch(r"GeForce RTX (\d{4}(?: Ti)?(?: SUPER)?)(?: \d+GB)?", card)
    if geforce is not None:
        single = _GEFORCE.get(geforce[1])
        return None if single is None else (0, single, single, 2 * single, 2 * single)
    return next((rates for pattern, rates in _CARDS if re.fullmatch(pattern, card)), None)
