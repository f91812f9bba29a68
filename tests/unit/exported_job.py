"""A job of which metrics are exported."""

from aitop.model.job import Job

JOB = Job(pid=7, node="n1", id="4711", user="ada", scheduler="slurm", step="0")
