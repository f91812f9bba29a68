"""Makes the fabricated snapshots importable: `from sample_snapshots import input_bound`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
