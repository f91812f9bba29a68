"""From a Snapshot to verdicts: ledgers of where time goes, rules, predicted gains, and comparisons of runs."""
