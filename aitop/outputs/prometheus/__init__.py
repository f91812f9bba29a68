"""Metrics of the jobs on this machine, in the data model of Prometheus: what `aitop export` serves and sends."""
