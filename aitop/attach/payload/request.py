"""One request to a target: the injected line, the carrier with the rest of it, and the answer.

The target claims the carrier as its first act; if it does not, we take it away when the request ends. Both sides keep
their own descriptor of it: the target appends its answer, and we read it there.
"""

from __future__ import annotations

import errno
import os

from aitop.attach.inspection.python_image import LONGEST_LINE, MARK
from aitop.attach.payload.carriers import FREE, Carrier, carriers, no_carrier
from aitop.sources.process_status import ProcStatus

# In bytes; the target cuts it off at 500 characters.
LONGEST_ANSWER = 4096

# Runs in a namespace of its own. `d` is the carrier's descriptor: only the inode that we made is read, and only by the
# process that it is meant for (a child forked in between has the request too). `k` is what the outer line iterates at
# the end: nothing, or the signal that came meanwhile, SIGINT (2) or SIGTERM (15). The text is compiled before `exec`,
# because a KeyboardInterrupt that leaves the `exec` of a string makes CPython exit as if nobody had caught it.
_INNER = """\
import posix as o
k=()
try:
 if o.getpid()=={pid}:
  p={path!r};d=o.open(p,{flags})
  try:
   if o.fstat(d).st_ino=={inode}:exec(compile(o.pread(d,{size},{at}),'','exec'))
  finally:o.close(d)
except (KeyboardInterrupt,SystemExit)as e:
 import _thread
 k=filter(_thread.interrupt_main,(15 if type(e)is SystemExit else 2,))
"""
# No exception may leave the line, because it would end the target. But an interrupt (Ctrl-C), or a SIGTERM for which
# the program exits, is meant for the program, also while the line runs. Iterating `k` makes the signal arrive again as
# the very last thing, after which CPython does not check for signals before it is back in the user's own code.
_OUTER = """\
try:
 for _ in (lambda n:(exec({inner!r},n),n['k']))({{}})[1]:pass
except BaseException:pass
"""
# The injected line must be short, so it continues with this text, which it reads from the carrier.
_SECOND = """\
import marshal as m,sys
{claim};b=m.loads(o.pread(d,{size},{at}));g=b[3];a='error: interrupted'
try:
 exec(m.loads(b[1])if b[0]==sys.modules['_frozen_importlib_external'].MAGIC_NUMBER else compile(b[2],'','exec'),g)
 a=g['run'](g,m.loads)
finally:o.pwrite(d,a.replace('\\n',' ')[:500].encode('utf-8','replace')+b'\\n',{end})
"""
SECOND_ROOM = 640
STATE_AT = LONGEST_LINE + SECOND_ROOM
PAYLOAD_AT = STATE_AT + len(FREE)


class Request:
    """One request, with a carrier until `close`. Raises AttachRefused if no carrier can be made.

    `line` is the text to inject, with a zero byte at its end. `path` is the carrier's name in the target: if that is
    run as a script (up to its first zero byte), it runs the same line. With `file` the carrier is a file, for a way in
    that makes the target complain if it finds nothing at the path.
    """

    def __init__(self, target: ProcStatus, payload: bytes, *, file: bool = False) -> None:
        self._target, self._payload = target, payload
        self._end = PAYLOAD_AT + len(payload)
        self._carrier: Carrier | None = None
        problems: list[str] = []
        for carrier in carriers(target, STATE_AT, problems, file=file):
            try:
                self.path, self.line = carrier.path, self._fill(carrier)
            except OSError as error:
                carrier.take_away()
                carrier.close()
                problems.append(f"{os.path.dirname(carrier.path)}: {error.strerror}")
                continue
            self._carrier = carrier
            return
        raise no_carrier(target.pid, problems)

    def answer(self) -> str | None:
        """Return the target's answer, None while there is none."""
        data = os.pread(self._carrier.fd, LONGEST_ANSWER, self._end) if self._carrier is not None else b""
        return data[:-1].decode("utf-8", "replace") if data.endswith(b"\n") else None

    def is_there(self) -> bool:
        """Return whether the target has not begun with the request yet."""
        return self._carrier is not None and self._carrier.is_there()

    def cancel(self) -> bool:
        """Take the request back. True: the target will never run it. False: it has already begun."""
        return self._carrier is None or self._carrier.take_away()

    def close(self) -> None:
        """Take the carrier away and close it. Idempotent."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.take_away()
            carrier.close()

    def _fill(self, carrier: Carrier) -> bytes:
        """Write the request into a carrier, and return the line to inject."""
        second = _SECOND.format(claim=carrier.claim, size=len(self._payload), at=PAYLOAD_AT, end=self._end).encode()
        inner = _INNER.format(
            pid=self._target.inner_pid,
            path=carrier.path,
            flags=int(carrier.flags),
            inode=os.fstat(carrier.fd).st_ino,
            at=LONGEST_LINE,
            size=len(second),
        )
        line = MARK + _OUTER.format(inner=inner).encode() + b"\0"
        if len(line) > LONGEST_LINE:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        content = line.ljust(LONGEST_LINE, b"\0") + second.ljust(SECOND_ROOM, b"\0") + FREE + self._payload
        # `pwrite`, because the file is locked from its current position, which must stay at the beginning.
        if os.pwrite(carrier.fd, content, 0) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return line
