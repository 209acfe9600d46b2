"""KV events of `kvasir serve`, as a subscriber of vLLM's events reads them: kv_events_check.py KVASIR MODEL

An index is rebuilt from the events alone, and says before each request how many tokens of its prompt the server need
not read. The server's `kv.cached` must say the same.
"""

import base64
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

from kv_index import Replica, Subscriber, msgpack, settle, zmq


def tokens_of(count, seed):
    return random.Random(seed).choices(range(300, 4000), k=count)


def cached(answer):
    details = answer["usage"].get("prompt_tokens_details", {})
    # Older servers say 0 in `usage` whatever was found.
    assert details.get("cached_tokens", 0) in (0, answer["kv"]["cached"]), answer
    return answer["kv"]["cached"]


def check_first(replica):
    """The first message says that nothing is there; its frames are as the contract has them."""
    subscriber = Subscriber(replica)
    assert subscriber.next == 1 and subscriber.index.events["AllBlocksCleared"] == 1
    assert replica.topic.startswith("kv@") and replica.topic.endswith("@m"), replica.topic
    subscriber.close()


def check_prefixes(replica):
    subscriber = Subscriber(replica)
    text = tokens_of(200, 1)
    settle(replica, subscriber)
    assert subscriber.index.found(text) == 0 and cached(replica.complete(text)) == 0
    settle(replica, subscriber)
    hits = 0
    for other in (text[:150] + tokens_of(50, 2), text + tokens_of(30, 3), text[:100], tokens_of(10, 4) + text, text):
        expected = subscriber.index.found(other)
        assert cached(replica.complete(other)) == expected, (len(other), expected)
        hits += expected > 0
        settle(replica, subscriber)
    assert hits == 4, hits
    subscriber.close()


def check_salt(replica):
    """A salted prompt is another one, and its client's salt is in the first block's extra keys."""
    subscriber = Subscriber(replica)
    text = tokens_of(100, 11)
    replica.complete(text)
    salted = replica.complete(text, cache_salt="pepper")
    assert cached(salted) == 0
    settle(replica, subscriber)
    assert subscriber.index.found(text, ["pepper"]) > 0 and subscriber.index.found(text, ["other"]) == 0
    assert cached(replica.complete(text, cache_salt="pepper")) == subscriber.index.found(text, ["pepper"])
    subscriber.close()


def check_lost(replica):
    """Who loses messages asks for them, and then knows what one knows who lost none."""
    complete, lossy = Subscriber(replica), Subscriber(replica, lambda number: number % 3 != 0)
    before = lossy.replays
    for seed in range(20, 32):
        replica.complete(tokens_of(40, seed))
    settle(replica, complete, lossy)
    lossy.replay(lossy.next)
    assert lossy.replays > before and lossy.index.blocks == complete.index.blocks and lossy.next == complete.next
    assert complete.replays == 1
    # From the middle on; what has not been published yet; what is no request.
    assert complete.replay(complete.next - 3) == [complete.next - 3, complete.next - 2, complete.next - 1]
    assert complete.replay(complete.next) == [] and complete.replay(2**64 - 1) == []
    with zmq.Context.instance().socket(zmq.DEALER) as odd:
        odd.setsockopt(zmq.LINGER, 0)
        odd.connect(replica.replay)
        for frames in ([b""], [b"", b"1"], [b"x", bytes(8)], [b"", bytes(8), b""], [b""] * 50):
            odd.send_multipart(frames)
        assert not odd.poll(300)
    assert complete.replay(0)[0] == 0
    with zmq.Context.instance().socket(zmq.REQ) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(replica.replay)
        plain.send((0).to_bytes(8, "big"))
        assert plain.poll(5000) and plain.recv_multipart()[1] == bytes(8)
    complete.close()
    lossy.close()


def check_end(replica):
    subscriber = Subscriber(replica)
    settle(replica, subscriber)
    assert subscriber.index.blocks
    assert replica.end()
    subscriber.follow(1)
    assert not subscriber.index.blocks and subscriber.index.events["AllBlocksCleared"] == 2
    subscriber.close()


def check_evictions(kvasir, model):
    """In a memory that holds few texts, under several policies: the index is right before every request."""
    replica = Replica(kvasir, model, "--kv-memory", "12MiB", "--max-batch", "2")
    try:
        subscriber = Subscriber(replica)
        rng = random.Random(5)
        texts = [tokens_of(rng.randrange(100, 400), 100 + i) for i in range(24)]
        hits = misses = 0
        began = time.time()
        for turn in range(60):
            text = rng.choice(texts)
            text = text[:rng.randrange(50, len(text))] + tokens_of(rng.randrange(1, 60), 1000 + turn)
            policy = rng.choice(["full", "full", "streaming:window=124", "h2o:budget=64,recent=16"])
            settle(replica, subscriber)
            expected = subscriber.index.found(text)
            answer = replica.complete(text, kv={"policy": policy}, max_tokens=rng.randrange(1, 20))
            if answer["kv"]["policy"].startswith("full"):
                assert cached(answer) == expected, (turn, cached(answer), expected)
                hits += expected > 0
                misses += expected == 0
            if time.time() - began > 40 and hits and subscriber.index.events["BlockRemoved"]:
                break
        events = subscriber.index.events
        print(f"  {hits} hits and {misses} misses as the index said; {events}")
        assert hits > 0 and misses > 0 and events["BlockRemoved"] > 0 and events["AllBlocksCleared"] == 1
        subscriber.close()
        replica.end()
    finally:
        replica.kill()


def check_refusals(kvasir, model):
    for options, said in ((["--kv-events-replay", "tcp://127.0.0.1:*"], "--kv-events"),
                          (["--kv-events", "tcp://nowhere"], "tcp://127.0.0.1:5557"),
                          (["--kv-events", "udp://127.0.0.1:1"], "tcp://127.0.0.1:5557"),
                          (["--kv-events", "tcp://127.0.0.1:99999"], "from 0 to 65535")):
        done = subprocess.run(["timeout", "60", kvasir, "serve", "-m", model, "--port", "0", *options],
                              capture_output=True, text=True)
        assert done.returncode not in (0, 124) and said in done.stderr, (options, done.returncode, done.stderr)
    # libzmq itself would abort.
    done = subprocess.run(["timeout", "60", kvasir, "serve", "-m", model, "--port", "0", "--kv-events", "tcp://127.0.0.1:*"],
                          capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)))
    assert done.returncode == 1 and "raise ulimit -n" in done.stderr, (done.returncode, done.stderr)


def check_tenants(kvasir, model):
    """Blocks of tenants are apart, and nothing that the file of keys has is published."""
    with tempfile.TemporaryDirectory() as folder:
        file, keys = folder + "/keys.toml", {}
        for tenant in ("ants", "bees"):
            for command in (["tenant", tenant], ["add", "--tenant", tenant]):
                done = subprocess.run([kvasir, "keys", *command, "--api-keys", file], check=True, capture_output=True,
                                      text=True)
            keys[tenant] = done.stdout.strip()
        replica = Replica(kvasir, model, "--api-keys", file)
        try:
            subscriber = Subscriber(replica)
            text = tokens_of(100, 50)
            for key in keys.values():
                assert cached(replica.complete(text, key)) == 0
            assert cached(replica.complete(text, keys["ants"], cache_salt="pepper")) == 0
            settle(replica, subscriber, key=keys["bees"])
            salts = [salt for parent, _, salt in subscriber.index.blocks if parent is None]
            names = {salt[0] for salt in salts}
            assert len(salts) == 3 and len(names) == 2 and [salt[1:] for salt in salts].count(("pepper",)) == 1, salts
            for salt in salts:
                assert subscriber.index.found(text, salt) > 0
            assert cached(replica.complete(text, keys["ants"])) == subscriber.index.found(text, salts[0]) > 0
            with open(file) as content:
                secrets = re.findall(r'"([^"]{8,})"', content.read())
            assert len(secrets) >= 4
            for secret in (*secrets, *keys.values(), *keys):
                assert secret.encode() not in subscriber.index.bytes, secret
                if len(secret) == 43:
                    assert base64.urlsafe_b64decode(secret + "=") not in subscriber.index.bytes, secret
            subscriber.close()
            replica.end()
        finally:
            replica.kill()


def check_warning(kvasir, model):
    """Addresses that other machines reach are named as what they are."""
    for endpoint, warned in (("tcp://127.0.0.1:*", False), ("tcp://*:*", True)):
        process = subprocess.Popen(["timeout", "--foreground", "60", kvasir, "serve", "-m", model, "--port", "0",
                                    "--kv-events", endpoint], stderr=subprocess.PIPE, text=True)
        said = ""
        while "serving" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.terminate()
        assert process.wait(30) == 0 and ("can read them" in said) == warned, said


def main(kvasir, model):
    # The encodings that readers rely on: numbers above 2^63 are unsigned.
    assert msgpack.unpackb(b"\xcf" + b"\xff" * 8) == 2**64 - 1
    replica = Replica(kvasir, model)
    try:
        for check in (check_first, check_prefixes, check_salt, check_lost, check_end):
            began = time.time()
            check(replica)
            print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)
    finally:
        replica.kill()
    for check in (check_evictions, check_tenants, check_refusals, check_warning):
        began = time.time()
        check(kvasir, model)
        print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
