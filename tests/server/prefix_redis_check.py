"""Servers share prefixes through Redis: prefix_redis_check.py KVASIR MODEL

Needs Debian's redis-server; without it the check is skipped (77). The second server's greedy answer is that of a server
without Redis, to the bit, and comes from what the first one left. A Redis that dies, is slow, holds garbage or asks for a
password costs hits, and neither answers nor the time of others.
"""

import os
import sys
import tempfile
import threading

from live_server import LiveServer, refused, wait_for
from prefix_disk_check import TEXT, ask, tier
from ports import free_port
from redis_double import REDIS, Proxy, Redis

POLICIES = ("full", "streaming:sinks=4,window=700")


def start(kvasir, model, port, *options):
    return LiveServer(kvasir, model, "--redis", f"127.0.0.1:{port}", *options)


def fill(kvasir, model, redis, *options, text=TEXT, policy="full"):
    with start(kvasir, model, redis.port, *options) as server:
        answer, kv = ask(server, policy, text)
        wait_for(lambda: tier(server, "stores_total", "redis") >= 3, "nothing was written")
        assert server.end() == 0
        return answer, kv


def check_shared(kvasir, model, redis, cold):
    with start(kvasir, model, redis.port) as first, start(kvasir, model, redis.port) as second:
        assert ask(first, "full")[0] == cold["full"]
        wait_for(lambda: tier(first, "stores_total", "redis") >= 3, "nothing was written")
        for policy in POLICIES:
            got, kv = ask(second, policy)
            assert got == cold[policy], policy
            assert policy != POLICIES[0] or (kv["cached_from"] == "redis" and kv["cached"] >= 512), kv
        assert tier(second, "loads_total", "redis") >= 2 and tier(second, "failures_total", "redis") == 0
        assert tier(second, "up", "redis") == 1
        # Another owner of the same text, and a server with pages of another kind.
        status, answer = second.complete(prompt=TEXT, max_tokens=4, cache_salt="x")
        assert status == 200 and answer["kv"]["cached"] == 0
        keys = redis.keys()
        assert all(key.startswith(b"kvasir:") and key.count(b":") == 3 for key in keys), keys
        assert all(redis.ask("STRLEN", key) <= (8 << 20) + (64 << 10) and 0 < redis.ask("TTL", key) <= 86400 for key in keys)
        assert first.end() == 0 and second.end() == 0
    for policy in POLICIES:
        with start(kvasir, model, redis.port) as third:
            got, kv = ask(third, policy)
            assert got == cold[policy] and kv["cached_from"] == "redis", (policy, kv)
            assert third.end() == 0
    with start(kvasir, model, redis.port, "--kv-type", "q8") as other:
        assert ask(other, "full")[1]["cached"] == 0, "another format"
        assert other.end() == 0


def check_wrong_values(kvasir, model, redis, cold):
    for how in ("garbage", "cut off", "flipped", "exchanged", "another kind", "empty"):
        redis.ask("FLUSHALL")
        fill(kvasir, model, redis)
        keys = redis.keys()
        values = [redis.ask("GET", key) for key in keys]
        for i, key in enumerate(keys):
            value = values[i]
            if how == "garbage":
                redis.ask("SET", key, os.urandom(len(value)))
            elif how == "cut off":
                redis.ask("SET", key, value[:-100])
            elif how == "flipped":
                redis.ask("SET", key, value[:500] + bytes([value[500] ^ 1]) + value[501:])
            elif how == "exchanged":
                redis.ask("SET", key, values[(i + 1) % len(values)])
            elif how == "empty":
                redis.ask("SET", key, b"")
            else:
                redis.ask("DEL", key)
                redis.ask("LPUSH", key, "x")
        with start(kvasir, model, redis.port) as server:
            got, kv = ask(server, "full")
            assert got == cold["full"] and kv["cached"] == 0, (how, kv)
            if how in ("garbage", "flipped"):
                assert tier(server, "failures_total", "redis") >= 1, how
                wait_for(lambda: any("is not used, and is removed" in line for line in server.lines), how)
            wait_for(lambda: tier(server, "stores_total", "redis") >= 3, "written anew")
            assert server.end() == 0
        with start(kvasir, model, redis.port) as server:
            got, kv = ask(server, "full")
            assert got == cold["full"] and kv["cached_from"] == "redis", (how, kv)
            assert server.end() == 0


def check_password(kvasir, model, folder, cold):
    place = folder + "/password"
    with open(place, "w") as file:
        file.write("open sesame\n")
    with Redis(folder, "--requirepass", "open sesame") as redis:
        fill(kvasir, model, redis, "--redis-password-file", place)
        with start(kvasir, model, redis.port, "--redis-password-file", place) as server:
            got, kv = ask(server, "full")
            assert got == cold["full"] and kv["cached_from"] == "redis", kv
            with open(f"/proc/{server.process.pid}/cmdline", "rb") as file:
                assert b"open sesame" not in file.read()
            assert server.end() == 0
        wrong = folder + "/wrong"
        with open(wrong, "w") as file:
            file.write("shut sesame\n")
        for options in ((), ("--redis-password-file", wrong)):
            with start(kvasir, model, redis.port, *options) as server:
                got, kv = ask(server, "full")
                assert got == cold["full"] and kv["cached"] == 0, kv
                wait_for(lambda: any("prefixes of redis fail" in line for line in server.lines), "it is said")
                assert not any("sesame" in line for line in server.lines)
                assert server.end() == 0


def check_death(kvasir, model, folder, cold):
    """Redis ends in the middle of everything, and comes back."""
    with Redis(folder) as redis, start(kvasir, model, redis.port) as server:
        done = []

        def go_on():
            for i in range(24):
                done.append(ask(server, "full", f"{i % 8} " + TEXT, tokens=8)[0])

        worker = threading.Thread(target=go_on)
        worker.start()
        wait_for(lambda: tier(server, "stores_total", "redis") >= 2, "nothing was written")
        redis.end()
        wait_for(lambda: tier(server, "up", "redis") == 0, "that it is gone shows")
        worker.join()
        assert len(done) == 24 and done[:8] == done[8:16] == done[16:], "the same answers"
        assert tier(server, "failures_total", "redis") >= 1
        assert ask(server, "full")[0] == cold["full"]
        redis.start()
        number = iter(range(100, 10000))

        def back():
            ask(server, "full", f"{next(number)} " + TEXT, tokens=1)
            return tier(server, "up", "redis") == 1 and redis.ask("DBSIZE") > 0

        wait_for(back, "it is used again once it is back")
        assert server.end() == 0
    with start(kvasir, model, free_port()) as server:
        assert ask(server, "full")[0] == cold["full"], "there never was one"
        assert server.end() == 0


def check_slow(kvasir, model, folder, cold):
    """No answer waits for what Redis has: it is there while all that Redis says is held back, or takes minutes."""
    with Redis(folder) as redis:
        fill(kvasir, model, redis)
        for slow in ({"holds": True}, {"rate": 20_000}, {"delay": 0.05}):
            proxy = Proxy(redis.port, **slow)
            with start(kvasir, model, proxy.port) as server:
                got, kv = ask(server, "full")
                assert got == cold["full"], slow
                # On no machine does it take as long to compute this text as to get its megabytes at 20 kB/s.
                assert kv["cached"] == 0 or "delay" in slow, (slow, kv)
                for i in range(4):
                    _, kv = ask(server, "full", f"{slow} {i} " + TEXT, tokens=1)
                    assert kv["cached"] == 0, (slow, kv)
                assert proxy.taken > 0 and (proxy.held > 0) == ("holds" in slow), "Redis was not asked"
                assert server.end() == 0
            proxy.end()
        # A little slow is still worth it. Whether it is on this machine is measured: so this is tried again.
        for _ in range(10):
            proxy = Proxy(redis.port, 0.0005)
            with start(kvasir, model, proxy.port) as server:
                got, kv = ask(server, "full")
                assert got == cold["full"], kv
                assert server.end() == 0
            proxy.end()
            if kv["cached_from"] == "redis":
                break
        assert kv["cached_from"] == "redis", kv


def check_refusals(kvasir, model):
    for address in ("nowhere", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", ":6379", "redis://x:1"):
        said = refused(kvasir, model, "--redis", address)
        assert "--redis" in said and address in said and "HOST:PORT" in said, said
    said = refused(kvasir, model, "--redis", "127.0.0.1:1", "--redis-password-file", "/no/such/file")
    assert "--redis-password-file" in said and "/no/such/file" in said, said
    assert "--redis" in refused(kvasir, model, "--redis-ttl", "5")
    assert "--prefix-memory" in refused(kvasir, model, "--redis", "127.0.0.1:1", "--prefix-memory", "0")


def main(kvasir, model):
    if REDIS is None:
        print("there is no redis-server: skipped")
        return 77
    cold = {}
    for policy in POLICIES:
        with LiveServer(kvasir, model) as server:
            cold[policy] = ask(server, policy)[0]
            assert server.end() == 0
    check_refusals(kvasir, model)
    with tempfile.TemporaryDirectory() as folder:
        with Redis(folder) as redis:
            check_shared(kvasir, model, redis, cold)
            check_wrong_values(kvasir, model, redis, cold)
        check_password(kvasir, model, folder, cold)
        check_death(kvasir, model, folder, cold)
        check_slow(kvasir, model, folder, cold)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
