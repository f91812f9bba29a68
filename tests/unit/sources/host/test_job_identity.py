"""Which job a process belongs to, by control groups and environments as Slurm, Kubernetes, Docker and Ray make them."""

from __future__ import annotations

import pytest

from aitop.sources.host.command_lines import launcher_name
from aitop.sources.host.identity import identified

ID = "3f1b" * 16
UID = "0a1b2c3d-4e5f-6789-abcd-ef0123456789"


def job(group="", **environment):
    return identified(42, "n1", "ada", group=group, environment=environment)


@pytest.mark.parametrize(
    ("group", "number", "step"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "4711", "0"),
        ("0::/system.slice/n1_slurmstepd.scope/job_4711/step_batch/user", "4711", "batch"),
        ("4:cpuset:/slurm/uid_1000/job_4711/step_extern\n1:name=systemd:/slurm", "4711", "extern"),
    ],
)
def test_slurm_by_the_control_group(group, number, step):
    identity = job(group, SLURM_JOB_ID="1", SLURM_STEP_ID="9")
    assert (identity.id, identity.step, identity.scheduler) == (number, step, "slurm")


def test_slurm_by_the_environment_where_it_makes_no_groups():
    identity = job("0::/user.slice/session-1.scope", SLURM_JOB_ID="4711", SLURM_STEP_ID="2")
    assert (identity.id, identity.step, identity.scheduler) == ("4711", "2", "slurm")


@pytest.mark.parametrize(
    "group",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
        f"cri-containerd-{ID}.scope",
        f"0::/../../kubepods-besteffort-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
        f"5:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/",
    ],
)
def test_a_pod_and_its_container(group):
    identity = job(group, HOSTNAME="train-0", SLURM_STEP_ID="7")
    assert (identity.id, identity.pod, identity.container, identity.scheduler) == (UID, "train-0", ID, "kubernetes")
    assert identity.step is None


def test_a_container_is_no_job():
    identity = job(f"0::/system.slice/docker-{ID}.scope", HOSTNAME="box")
    assert (identity.id, identity.container, identity.pod, identity.scheduler) == ("n1/42", ID, None, None)


def test_ray_has_its_id_beside_the_process():
    identity = job(RAY_JOB_ID="01000000")
    assert (identity.id, identity.ray_job, identity.scheduler) == ("n1/42", "01000000", "ray")


@pytest.mark.parametrize("value", ["4711; rm -rf /", "", "password", "9" * 40, "١٢٣", "1\n2"])
def test_values_that_no_scheduler_gives_are_not_taken(value):
    identity = job(SLURM_JOB_ID=value, RAY_JOB_ID=value, SECRET="hunter2")
    assert (identity.id, identity.ray_job, identity.scheduler) == ("n1/42", None, None)
    assert "hunter2" not in str(identity)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("/usr/bin/python3", "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"), "torchrun"),
        (("python", "-m", "torch.distributed.run", "train.py"), "torch.distributed.run"),
        (("slurmstepd: [4711.0]",), "slurmstepd"),
        (("python", "train.py", "--secret", "torchrun"), None),
        ((), None),
    ],
)
def test_only_known_launchers_have_a_name(arguments, name):
    assert launcher_name(arguments) == name
