"""From sampled frames to meaning: whose code runs, in which phase of a step, and what the thread does there."""
