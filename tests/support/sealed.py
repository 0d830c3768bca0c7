"""`python sealed.py COMMAND…`: the program with sockets forbidden by the kernel.

A seccomp filter, inherited by every child and out of reach of any library: a process that asks for
an internet socket is killed by SIGSYS on the spot. With SEALED=all local ones are forbidden too.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

AF_UNIX = 1
SOCKET = {"x86_64": 41, "aarch64": 198}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000


def seal(local_too: bool) -> None:
    """Install the filter; there is no way back."""
    rules = [
        (LOAD, 0, 0, 0),  # the number of the system call
        (EQUAL, 0, 2, SOCKET[platform.machine()]),  # another call: allow
        (LOAD, 0, 0, 16),  # its first argument, the family
        (EQUAL, 0, 1, -1 & 0xFFFFFFFF if local_too else AF_UNIX),  # another family: kill
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, KILL),
    ]
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, program, 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    seal(os.environ.get("SEALED") == "all")
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
