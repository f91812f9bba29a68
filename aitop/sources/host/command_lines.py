"""What a command line says about a process: which launcher or helper it is, which script a Python runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from aitop.sources.procfs import named_python

# Programs that start the ranks of a job: one process a device, or (conda, poetry, ...) just the command given to them.
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "accelerate-launch", "deepspeed", "horovodrun", "composer", "colossalai"}
    | {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "hydra_pmi_proxy", "prted", "orted"}
    | {"srun", "slurmstepd", "conda", "mamba", "micromamba", "poetry", "hatch", "pdm", "pipenv"}
)
LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands",
    "deepspeed.launcher",
    "horovod.runner",
    "composer.cli",
)
HELPERS = frozenset(
    {"wandb", "wandb-core", "wandb-service", "tensorboard", "mlflow", "aim", "torch_shm_manager"}
    | {"nvidia-smi", "nvitop", "gpustat", "py-spy"}
)
HELPER_MODULES = (
    "torch._inductor.compile_worker",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "wandb",
    "tensorboard",
    "mlflow",
)
# Parts of paths of scripts.
HELPER_SCRIPTS = (
    "/torch/_inductor/compile_worker/",
    "/ray/_private/log_monitor.py",
    "/ray/_private/runtime_env/",
    "/ray/autoscaler/",
    "/ray/dashboard/",
)
# What some call themselves instead of their command line.
HELPER_TITLES = frozenset({"ray::DashboardAgent", "ray::RuntimeEnvAgent"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
OPTIONS_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})

Command = Literal["launcher", "helper", "python", "foreign"]


class Invocation(NamedTuple):
    """What a Python interpreter was told to run. `what` is a path, a module's name or code."""

    how: Literal["script", "module", "code", "stdin"]
    what: str


class RankNumbers(NamedTuple):
    """The numbers a launcher gave to a rank, None where it gave none. `local_world` ranks are on this machine."""

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world: int | None = None


NO_NUMBERS = RankNumbers()


def invocation(arguments: Sequence[str]) -> Invocation:
    """What `python …` runs, from its command line (argv[0] is the interpreter)."""
    index = 1
    while index < len(arguments):
        word = arguments[index]
        if word in OPTIONS_WITH_VALUE:
            index += 2
            continue
        if word == "-" or not word.startswith("-"):
            return Invocation("stdin", "") if word == "-" else Invocation("script", word)
        if not word.startswith("--"):
            for place, letter in enumerate(word[1:], start=2):
                if letter in "cm":
                    value = word[place:] or "".join(arguments[index + 1 : index + 2])
                    return Invocation("code" if letter == "c" else "module", value)
                if letter in "XW":
                    break
        index += 1
    return Invocation("stdin", "")


def kind_of(arguments: Sequence[str], python: bool) -> Command:
    """The kind of a process by its command line; `python`: its executable is an interpreter."""
    if not arguments:
        return "python" if python else "foreign"
    if arguments[0].strip() in HELPER_TITLES:
        return "helper"
    # Some write what they do after their name: "slurmstepd: [12.0]".
    program = os.path.basename(arguments[0]).partition(":")[0]
    if not python and not named_python(program):
        return _by_program(program, "foreign")
    run = invocation(arguments)
    if run.how == "script":
        helps = any(part in run.what for part in HELPER_SCRIPTS)
        return "helper" if helps else _by_program(os.path.basename(run.what), "python")
    if run.how == "module":
        return _by_module(run.what)
    if run.how == "code" and run.what.startswith("from ") and (words := run.what.split()[1:]):
        return _by_module(words[0])
    return "python"


def launcher_name(arguments: Sequence[str]) -> str | None:
    """The known launcher that a command line starts, by its own name; None for any other program."""
    if not arguments or kind_of(arguments, python=False) != "launcher":
        return None
    program = os.path.basename(arguments[0]).partition(":")[0]
    if not named_python(program):
        return program
    run = invocation(arguments)
    if run.how == "script":
        return os.path.basename(run.what)
    return next((name for name in LAUNCHER_MODULES if name in run.what), None)


def _by_program(program: str, otherwise: Command) -> Command:
    if program in LAUNCHERS:
        return "launcher"
    return "helper" if program in HELPERS else otherwise


def _by_module(module: str) -> Command:
    def within(packages: Sequence[str]) -> bool:
        return any(module == package or module.startswith(package + ".") for package in packages)

    if within(LAUNCHER_MODULES):
        return "launcher"
    return "helper" if within(HELPER_MODULES) else "python"


def spawned(arguments: Sequence[str]) -> bool:
    """Whether this is a child of multiprocessing's spawn method."""
    return "--multiprocessing-fork" in arguments


def rank_numbers(environment: Mapping[str, str]) -> RankNumbers:
    """The rank numbers in an environment: torch's own names, then those of Open MPI, MPICH and Slurm.

    A number of a million or more is none: any process may have anything in its environment.
    """

    def number(*names: str) -> int | None:
        values = (environment.get(name, "") for name in names)
        return next((int(value) for value in values if value.isascii() and value.isdigit() and len(value) <= 6), None)

    rank, local, world = number("RANK"), number("LOCAL_RANK"), number("WORLD_SIZE")
    if rank is None and local is not None and not number("NODE_RANK", "GROUP_RANK"):
        rank = local
    if rank is None:
        rank = number("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
        local = local if local is not None else number("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
        world = world if world is not None else number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    # A batch script also carries SLURM_PROCID; only inside a step of several tasks does it number a rank.
    if rank is None and "SLURM_STEP_ID" in environment and (number("SLURM_NTASKS") or 1) > 1:
        rank, local, world = number("SLURM_PROCID"), number("SLURM_LOCALID"), number("SLURM_NTASKS")
    here = number("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    # Ranks that meet at the loopback address are all on one machine.
    if here is None and environment.get("MASTER_ADDR") in LOOPBACK:
        here = world
    return RankNumbers(rank, local, world, here)
