"""Two replicas behind nginx that share prefixes through Redis, with the files of deploy/redis: redis_check.py KVASIR MODEL

nginx is Debian's with its njs module, and Redis is Debian's; without them the check is skipped (77). Only addresses, paths and
the model are changed.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))

from nginx_check import ENDS, MODULE, NGINX, Proxy, Replica, story
from ports import free_port, wait_for_port
from redis_double import REDIS

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "redis")


def changed(name, folder, *changes):
    with open(os.path.join(SOURCE, name)) as file:
        text = file.read()
    for old, new in changes:
        assert old in text, (name, old)
        text = text.replace(old, new)
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


class Server:
    def __init__(self, folder):
        self.port = free_port()
        config = changed("redis.conf", folder, ("port 6379", f"port {self.port}"), ("change-this-password", "s3cret"))
        with open(folder + "/redis.password", "w") as file:
            file.write("s3cret\n")
        self.process = subprocess.Popen([*ENDS, REDIS, config, "--dir", folder],
                                        stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for_port(self.process, self.port, "Redis")

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Sharing(Replica):
    def __init__(self, kvasir, config):
        self.command = [*ENDS, kvasir, "serve", "--config", config, "--drain", "5", "--port"]
        self.port = free_port()
        self.start()


def stored(replica):
    """Parts that it has written to Redis."""
    with socket.create_connection(("127.0.0.1", replica.port), 10) as one:
        one.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        text = b""
        while piece := one.recv(65536):
            text += piece
    found = re.search(rb'prefix_tier_stores_total\{[^}]*tier="redis"[^}]*\} (\d+)', text)
    return int(found[1]) if found else 0


def main(kvasir, model):
    if NGINX is None or not os.path.exists(MODULE) or REDIS is None:
        print("skipped: needs Debian's nginx, libnginx-mod-http-js and redis-server")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        redis = Server(folder)
        config = changed("replica.toml", folder, ("/usr/share/kvasir/models/kvasir-mini-16m-q8_0.gguf", model),
                         ("127.0.0.1:6379", f"127.0.0.1:{redis.port}"), ("/etc/kvasir/redis.password", folder + "/redis.password"))
        replicas = [Sharing(kvasir, config) for _ in range(2)]
        proxy = Proxy(folder, replicas)
        try:
            text = story(1) * 6
            first, port = proxy.complete(text)
            there = next(replica for replica in replicas if replica.port == port)
            until = time.time() + 20
            while stored(there) < 1:
                assert time.time() < until, "nothing was written to Redis"
                time.sleep(0.05)
            # The replica dies; the other one goes on with what it had read.
            there.kill()
            second, other = proxy.complete(text)
            assert other != port and second["choices"][0]["text"] == first["choices"][0]["text"], (first, second)
            assert second["kv"]["cached_from"] == "redis" and second["kv"]["cached"] >= 256, second["kv"]
            # Then Redis: what is asked for is computed.
            redis.kill()
            for number in range(3):
                answer, _ = proxy.complete(story(number + 5) * 6)
                assert answer["kv"]["cached"] == 0
            again, _ = proxy.complete(text)
            assert again["choices"][0]["text"] == first["choices"][0]["text"] and again["kv"]["cached_from"] == "pages"
        finally:
            proxy.end()
            redis.kill()
            for replica in replicas:
                replica.kill()


if __name__ == "__main__":
    main(*sys.argv[1:3])
