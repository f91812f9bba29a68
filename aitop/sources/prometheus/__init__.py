"""What a Prometheus server knows of a cluster: its HTTP API, its answers, and the jobs that they tell of."""
