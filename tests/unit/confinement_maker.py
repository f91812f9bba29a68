"""How aitop itself is confined, made by hand."""

from aitop.sources.access import Confinement


def confinement(uid: int = 1000, capabilities: int = 0, **changes) -> Confinement:
    """That of a user on a plain machine; `changes` are other fields."""
    plain = {"seccomp": False, "tracer": 0, "yama": None, "container": None, "own_pids": False, "own_users": False}
    plain |= {"profile": None, "permitted": capabilities}
    return Confinement(uid=uid, capabilities=capabilities, **{**plain, **changes})
