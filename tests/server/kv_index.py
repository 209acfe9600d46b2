"""A router's view of servers: KV events over ZeroMQ, rebuilt into an index of the blocks that a server holds.

Needs python3-zmq and python3-msgpack, and exits with 77 (skipped) where they are missing.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
import time

try:
    import msgpack
    import zmq
except ImportError as missing:
    print(f"skipped: {missing}; it is in Debian's python3-zmq and python3-msgpack")
    sys.exit(77)

END = b"\xff" * 8


class Replica:
    """A server that publishes its KV events."""

    def __init__(self, kvasir, model, *options, limit=120):
        self.process = subprocess.Popen(
            ["timeout", "--foreground", str(limit), kvasir, "serve", "-m", model, "--port", "0", "--name", "m",
             "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", *options],
            stderr=subprocess.PIPE, text=True)
        self.said = ""
        self.port = None
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        if self.port is None:
            raise RuntimeError("the server did not start: " + self.said)
        found = re.search(r"KV events at (\S+), replay at (\S+), topic (\S+)", self.said)
        self.events, self.replay, self.topic = found.groups()
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, method, path, body=None, key=""):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def complete(self, prompt, key="", **fields):
        status, text = self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0,
                                                            **fields}, key)
        assert status == 200, text
        return json.loads(text)

    def end(self):
        """Ends the server; what it said at its end is still to be read from its sockets."""
        self.process.terminate()
        code = self.process.wait(30)
        assert code == 0, code
        return True

    def kill(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)


class Index:
    """Blocks of one server, by what routers know of them: what stands before, the tokens, and the extra keys."""

    def __init__(self):
        self.blocks = {}  # (parent hash or None, tokens, extra keys) -> hash
        self.keys = {}  # hash -> the same key
        self.block_size = 0
        self.events = {"BlockStored": 0, "BlockRemoved": 0, "AllBlocksCleared": 0}
        self.bytes = b""  # all that was received

    def apply(self, payload):
        self.bytes += payload
        batch = msgpack.unpackb(payload)
        time_sent, events, rank = batch
        assert isinstance(time_sent, float) and abs(time.time() - time_sent) < 600 and rank == 0, batch
        for name, *fields in events:
            self.events[name] += 1
            getattr(self, name)(*fields)

    def BlockStored(self, hashes, parent, tokens, size, lora, medium, lora_name, extra, group):
        assert medium == "cpu" and lora is None and lora_name is None and group is None
        assert len(tokens) == size * len(hashes) and self.block_size in (0, size)
        assert extra is None or parent is None and len(extra) == len(hashes) and not any(extra[1:])
        assert all(0 < h < 2**64 for h in hashes) and all(isinstance(t, int) and t >= 0 for t in tokens)
        assert parent is None or parent in self.keys, "a block whose parent is not there"
        self.block_size = size
        for number, one in enumerate(hashes):
            salt = tuple(extra[number]) if extra and extra[number] else ()
            key = (parent, tuple(tokens[number * size:(number + 1) * size]), salt)
            assert one not in self.keys, "a block that is there already"
            self.blocks[key] = one
            self.keys[one] = key
            parent = one

    def BlockRemoved(self, hashes, medium, group):
        assert medium == "cpu" and group is None
        for one in hashes:
            del self.blocks[self.keys.pop(one)]

    def AllBlocksCleared(self):
        self.blocks.clear()
        self.keys.clear()

    def found(self, tokens, salt=()):
        """Tokens of a prompt that the server need not read: the last one is always read."""
        parent, count = None, 0
        while self.block_size > 0 and count + self.block_size < len(tokens):
            block = tuple(tokens[count:count + self.block_size])
            parent = self.blocks.get((parent, block, tuple(salt) if count == 0 else ()))
            if parent is None:
                break
            count += self.block_size
        return count


class Subscriber:
    """Follows a server's events; lost messages are asked for again."""

    def __init__(self, replica, lose=lambda number: False):
        self.index = Index()
        self.next = 0
        self.seen = -1  # the newest number that has come, taken or lost
        self.replays = 0
        self.lose = lose
        self.context = zmq.Context.instance()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.socket.connect(replica.events)
        self.topic = replica.topic.encode()
        self.asked = self.context.socket(zmq.DEALER)
        self.asked.connect(replica.replay)
        self.replay(0)

    def close(self):
        self.socket.close(0)
        self.asked.close(0)

    def take(self, number, payload):
        if number == self.next:
            self.index.apply(payload)
            self.next = number + 1

    def replay(self, start):
        """Asks for what was published from a number on. Returns the numbers."""
        numbers = []
        for number, payload in self.published(start):
            numbers.append(number)
            self.take(number, payload)
        self.replays += 1
        return numbers

    def published(self, start):
        """What was published from a number on: numbers and payloads."""
        found = []
        self.asked.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            assert self.asked.poll(300000), "no end of the replay"
            empty, topic, number, payload = self.asked.recv_multipart()
            assert empty == b""
            if payload == b"":
                assert number == END
                break
            assert topic == self.topic
            found.append((int.from_bytes(number, "big"), payload))
        return found

    def follow(self, silence=0.3):
        """Applies what comes until nothing has come for a while."""
        while self.socket.poll(int(silence * 1000)):
            topic, number, payload = self.socket.recv_multipart()
            assert topic == self.topic and len(number) == 8, (topic, number)
            number = int.from_bytes(number, "big")
            self.seen = max(self.seen, number)
            if self.lose(number):
                continue
            if number > self.next:
                self.replay(self.next)
            self.take(number, payload)
        return self.index


    def catch_up(self):
        """Follows until all has come that was published, however long that takes."""
        self.follow()
        newest = max((number for number, _ in self.published(self.next)), default=-1)
        for _ in range(600):
            if self.seen >= newest:
                return
            self.follow(0.1)
        self.replay(self.next)  # it came before the subscription counted


def settle(replica, *subscribers, key=""):
    """Returns when the subscribers know what the passes until now have changed."""
    replica.complete([1], key, max_tokens=1)  # its pass comes after the others' events were handed over
    for subscriber in subscribers:
        subscriber.catch_up()

