"""The jobs of a cluster, and the ranks of one of them."""
