"""What calling an operation costs on the host, however little it computes: one model for every cause that needs it.

Figures are CPU seconds of one core of an AMD EPYC, torch 2.13.0, measured on 2026-11-22: a loop over small additions
with gradients took 3.4 microseconds per operation and 5.5 per node of its backward pass, `nn.Linear(8, 8)` on one
sample 6.3 per call. The optimizer's are of Adam over many small tensors. A slower machine, or one whose cores others
use, takes longer: compare them with seconds that were multiplied by `evidence.running`.
"""

from __future__ import annotations

# Seconds of one small operation called from Python, with its autograd node; of that node in the backward pass; of a
# layer on one sample.
FORWARD, BACKWARD, LAYER = 3.4e-6, 5.5e-6, 6.3e-6
# The length of a call as a multiple of the part of it that holds the GIL. That part is a quarter of plain arithmetic,
# half of indexing or of calling a layer, and 37 % on average of loops over such calls. (5 % of an nn.GRU.)
WHOLE_CALL = 2.7
# An operation that takes no longer than this is mostly call overhead (loops over small operations: 5 to 6 microseconds
# each, layers on small batches: 30 and more).
MOSTLY_CALLING = 4 * FORWARD
# Seconds per tensor, and per parameter, of an optimizer's update: one by one, with foreach, and fused.
ONE_BY_ONE, FOREACH, FUSED = (24.5e-6, 1.8e-9), (14e-6, 3e-9), (4.5e-6, 0.8e-9)
# Seconds that Adam takes longer for each number in a vector register that holds a denormal one (Intel Xeon,
# 2026-11-26). They were the same in all three ways, for 431,000 and for 1,300,000 parameters, of which 2 to 60 % were
# denormal.
DENORMAL = 13e-9
# Seconds per tensor, and per parameter, on a GPU, all tensors together.
CUDA_TOGETHER = (0.3e-6, 3e-11)
