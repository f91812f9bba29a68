"""Causes: each claims entries of the ledger and explains them."""
