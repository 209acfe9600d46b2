"""A real Redis server for checks, and a proxy in front of it that delays, and ends when told to."""

import os
import shutil
import socket
import subprocess
import threading
import time

from ports import free_port, wait_for_port

REDIS = shutil.which("redis-server")


class Redis:
    def __init__(self, folder, *options):
        self.port = free_port()
        self.folder = folder
        self.options = options
        self.start()

    def start(self):
        self.process = subprocess.Popen([REDIS, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder,
                                         "--maxmemory", "512mb", "--maxmemory-policy", "allkeys-lru", *self.options],
                                        stdout=subprocess.DEVNULL)
        wait_for_port(self.process, self.port, "redis-server")

    def ask(self, *words, password=None):
        """Sends a command; returns the answer: bytes, an int, None or a list."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection, connection.makefile("rb") as file:
            for command in ([["AUTH", password]] if password else []) + [words]:
                parts = [word if isinstance(word, bytes) else str(word).encode() for word in command]
                connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
                answer = self.read(file)
            return answer

    def read(self, file):
        line = file.readline()
        kind, text = line[:1], line[1:-2]
        if kind == b"$":
            return None if int(text) < 0 else file.read(int(text) + 2)[:-2]
        if kind == b"*":
            return [self.read(file) for _ in range(int(text))]
        if kind == b"-":
            raise AssertionError(text.decode())
        return int(text) if kind == b":" else text

    def keys(self, **options):
        return sorted(self.ask("KEYS", "*", **options))

    def end(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Proxy:
    """Passes bytes on to a port; each piece on its way back waits for `delay` seconds, and `rate` bounds bytes a second. With
    `holds` nothing comes back until the end; `held` counts the pieces."""

    def __init__(self, port, delay=0.0, rate=None, holds=False):
        self.target, self.delay, self.rate = port, delay, rate
        self.gate = threading.Event() if holds else None
        self.held = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = True
        self.taken = 0
        self.connections = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                self.taken += 1
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.connections += [near, far]
            threading.Thread(target=self.move, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self.move, args=(far, near, True), daemon=True).start()

    def move(self, source, target, back):
        try:
            while data := source.recv(65536):
                if back and self.gate:
                    self.held += 1
                    self.gate.wait()
                if back and self.delay:
                    time.sleep(self.delay)
                if back and self.rate:
                    time.sleep(len(data) / self.rate)
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def end(self):
        self.listener.close()
        if self.gate:
            self.gate.set()
        for one in self.connections:
            one.close()
