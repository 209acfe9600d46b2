"""Ports for programs that cannot take any free one, and the wait until such a program listens."""

import fcntl
import os
import random
import socket
import tempfile
import time

_held = []


def free_port():
    """A port that nobody uses, and that no other check takes as long as this process lives.

    It is below those that clients get for their side of a connection, any of which could be taken between this and the
    program's start."""
    for port in random.sample(range(20000, 32000), 1000):
        lock = open(os.path.join(tempfile.gettempdir(), f"kvasir-port-{port}"), "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return port
    raise AssertionError("no port is free")


def _family(pid):
    """A process, and all that it has started."""
    pids = [pid]
    for one in pids:
        try:
            with open(f"/proc/{one}/task/{one}/children") as children:
                pids += [int(child) for child in children.read().split()]
        except OSError:
            pass
    return pids


def _listens(pid, port):
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    for one in _family(pid):
        try:
            for name in os.listdir(f"/proc/{one}/fd"):
                if os.readlink(f"/proc/{one}/fd/{name}") in sockets:
                    return True
        except OSError:
            pass
    return False


def wait_for_port(process, port, what, seconds=60):
    """Waits until a process, or one that it has started, listens on the port: not anybody else."""
    end = time.monotonic() + seconds
    while not _listens(process.pid, port):
        assert process.poll() is None, f"{what} ended with {process.poll()} before it listened"
        assert time.monotonic() < end, f"{what} did not start"
        time.sleep(0.02)
