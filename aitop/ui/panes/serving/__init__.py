"""The serving pane: figures, what turns and requests consist of, charts over time, and the histogram of latencies."""
