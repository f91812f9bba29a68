"""How the kernel lays out the vector state in a signal frame on this machine."""

from __future__ import annotations

import ctypes
import functools
import signal
import struct
from dataclasses import dataclass

from aitop.attach.refusal import AttachRefused

MAGIC_1, MAGIC_2 = 0x46505853, 0x46505845
SOFTWARE_BYTES_AT = 464
HEADER_AT = 512
FPSTATE_IN_UCONTEXT = 40 + 184
AMX_FEATURES = 3 << 17
SA_SIGINFO = 4


@dataclass(frozen=True)
class XsaveLayout:
    """Mask of the state components and size in bytes of the area, without the trailing magic number."""

    features: int
    size: int

    def seal(self, xstate: bytes) -> bytes:
        """A register set's vector state, made into the area that `rt_sigreturn` restores bit for bit."""
        layout = self._for(xstate)
        area = bytearray(xstate[: layout.size])
        software = struct.pack("<IIQI", MAGIC_1, layout.size + 4, layout.features, layout.size)
        area[SOFTWARE_BYTES_AT:HEADER_AT] = software.ljust(HEADER_AT - SOFTWARE_BYTES_AT, b"\0")
        return bytes(area) + struct.pack("<I", MAGIC_2)

    def _for(self, xstate: bytes) -> XsaveLayout:
        """This layout, or the full one where the thread has matrix tiles in use (only by its own permission)."""
        (in_use,) = struct.unpack_from("<Q", xstate, HEADER_AT)
        if in_use & AMX_FEATURES:
            (supported,) = struct.unpack_from("<Q", xstate, SOFTWARE_BYTES_AT)
            return XsaveLayout(supported, len(xstate))
        if len(xstate) < self.size:
            raise AttachRefused("failed", f"the kernel gave {len(xstate)} bytes of vector state, not {self.size}")
        return self


@functools.cache
def xsave_layout() -> XsaveLayout:
    """Asks the kernel by sending this very thread one signal; handler and mask are put back.

    Neither Python nor ptrace tells the size of the area that a process without matrix tiles may restore.
    """
    number = int(signal.SIGRTMAX) - 5
    libc = ctypes.CDLL(None)
    seen: list[tuple[int, int, int, int]] = []

    def handler(_signal: int, _info: int, context: int) -> None:
        (area,) = struct.unpack("<Q", ctypes.string_at(context + FPSTATE_IN_UCONTEXT, 8))
        seen.append(struct.unpack("<IIQI", ctypes.string_at(area + SOFTWARE_BYTES_AT, 20)))

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(handler)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    # glibc and musl alike: handler, mask of 128 bytes, flags, restorer.
    action = struct.pack("<Q128siiQ", address, b"", SA_SIGINFO, 0, 0)
    before = ctypes.create_string_buffer(len(action))
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    try:
        libc.sigaction(number, action, before)
        getattr(libc, "raise")(number)
        libc.sigaction(number, before, None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not seen or seen[0][0] != MAGIC_1:
        raise AttachRefused("absent", "this processor has no XSAVE state that aitop knows how to bring back")
    return XsaveLayout(features=seen[0][2], size=seen[0][3])
