"""Boxes on one machine: network, host name, processes and /tmp/ray of their own, on a network between them.

What runs in one is as far from the rest as on another machine, but for the files: it sees the same disk. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BRIDGE, NETWORK = "zellige-br", "10.77.0"
#: Where the machine itself is reached from its boxes.
HERE = f"{NETWORK}.1"
#: Seconds that a command of ``ip`` may take.
_QUICK_S = 10
_CLONE_NEWNET = 0x40000000


def why_not() -> str | None:
    """Why there can be no boxes here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    child = os.fork()
    if child == 0:  # in a process of its own: what is unshared stays so
        os._exit(0 if ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0 else 1)
    return None if os.waitpid(child, 0)[1] == 0 else "network namespaces are not allowed here"


def _ip(command: str, check: bool = True) -> None:
    subprocess.run(["ip", *command.split()], check=check, capture_output=not check, timeout=_QUICK_S)


class Box:
    """One box. ``start`` runs a command in it; ``kill`` ends all that runs there at once, as a power cut does."""

    def __init__(self, number: int) -> None:
        self.name, self.address = f"zellige-box{number}", f"{NETWORK}.{10 + number}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: str, log: Path, environment: dict[str, str]) -> None:
        """Run a shell's ``command`` as the box's first process; all that it starts ends with it."""
        script = f"hostname {self.name}; mkdir -p /tmp/ray; mount -t tmpfs ray /tmp/ray; exec {command}"
        inside = f"ip netns exec {self.name} unshare --uts --pid --fork --kill-child --mount-proc sh -c".split()
        with log.open("ab") as out:
            self._processes.append(subprocess.Popen([*inside, script], stdout=out, stderr=out, env=environment))

    def kill(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def _made(self) -> None:
        inside, outside = f"{self.name}i", f"{self.name}o"
        _ip(f"netns add {self.name}")
        _ip(f"link add {outside} type veth peer name {inside} netns {self.name}")
        _ip(f"link set {outside} master {BRIDGE} up")
        for command in (f"addr add {self.address}/24 dev {inside}", f"link set {inside} up", "link set lo up"):
            _ip(f"-n {self.name} {command}")

    def _gone(self) -> None:
        self.kill()
        _ip(f"link del {self.name}o", check=False)
        _ip(f"netns del {self.name}", check=False)


@contextmanager
def boxes(count: int) -> Iterator[list[Box]]:
    """So many boxes, which reach each other and this machine at ``HERE``."""
    made = [Box(number) for number in range(1, count + 1)]
    try:
        _ip(f"link add {BRIDGE} type bridge")
        _ip(f"addr add {HERE}/24 dev {BRIDGE}")
        _ip(f"link set {BRIDGE} up")
        for box in made:
            box._made()
        yield made
    finally:
        for box in made:
            box._gone()
        _ip(f"link del {BRIDGE}", check=False)
