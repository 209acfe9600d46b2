"""Prefixes on disk outlive the server: prefix_disk_check.py KVASIR MODEL

Greedy answers that begin with what a killed server left are those of a server without the folder, to the bit, and say that they
come from the disk. What is damaged, cut off or foreign is a miss, told in a line of the log, and removed. The folder is bounded,
belongs to one process, and holds no key.
"""

import contextlib
import glob
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile

from live_server import LiveServer, refused, wait_for

TEXT = "".join(f"Chapter {i}: a fox, {i} hens and an old man lived beside the river, and nobody knew why. " for i in range(60))
POLICIES = ("full", "streaming:sinks=4,window=700", "snapkv:budget=128")
# What these have made of a text is in no exact page, but in so many snapshots.
SNAPSHOTS = {"h2o:budget=256": 3, "streaming:sinks=4,window=300": 2}
LIMIT = "64MiB"


def body(policy, text=TEXT, tokens=24, **kv):
    return {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 2,
            "kv": {"policy": policy, **kv}}


def ask(server, *arguments, **options):
    status, answer = server.complete(**body(*arguments, **options))
    assert status == 200, answer
    choice = answer["choices"][0]
    return (choice["text"], choice["logprobs"]["token_logprobs"]), answer["kv"]


def tier(server, name, tier="disk"):
    found = server.metrics().get(f'kvasir:prefix_tier_{name}{{tier="{tier}",model_name="m"}}')
    assert found is not None, (name, [key for key in server.metrics() if "tier" in key])
    return float(found)


def parts(folder):
    return sorted(glob.glob(folder + "/parts/*.part"))


def stored_bytes(folder):
    total = 0
    for name in parts(folder):
        try:
            total += os.path.getsize(name)
        except FileNotFoundError:  # the server has just removed it
            pass
    return total


def start(kvasir, model, folder, *options):
    return LiveServer(kvasir, model, "--prefix-dir", folder, "--prefix-disk", LIMIT, *options)


def fill(kvasir, model, folder, *options):
    """Leaves the text's parts in the folder of a server that is then killed; returns how many there are."""
    with start(kvasir, model, folder, *options) as server:
        ask(server, "full")
        wait_for(lambda: len(parts(folder)) >= 3 and tier(server, "stores_total") >= len(parts(folder)), "nothing was written")
        server.signal(signal.SIGKILL)
        server.process.wait()
    return len(parts(folder))


def check_kill(kvasir, model, folder, cold):
    with start(kvasir, model, folder) as server:
        assert tier(server, "bytes") > 0, "what the killed server left is found"
        for policy in POLICIES:
            # Of each server only the first one finds nothing in memory.
            got, kv = ask(server, policy)
            assert got == cold[policy], policy
            assert kv["cached"] >= 256, (policy, kv)
        assert server.metric("kvasir:prefix_tier_failures_total") == 0
        assert server.end() == 0
    for policy in POLICIES:
        with start(kvasir, model, folder) as server:
            got, kv = ask(server, policy)
            assert got == cold[policy] and kv["cached_from"] == "disk" and kv["cached"] >= 256, (policy, kv)
            assert tier(server, "loads_total") >= 1 and tier(server, "hits_total") >= 256
            assert tier(server, "load_bytes_total") > 0 and tier(server, "up") == 1
            again, kv = ask(server, policy)
            assert again == cold[policy] and kv["cached_from"] in ("pages", "snapshot"), kv
            server.signal(signal.SIGKILL)
            server.process.wait()


def check_snapshots(kvasir, model, cold):
    for policy, count in SNAPSHOTS.items():
        with tempfile.TemporaryDirectory() as folder:
            with start(kvasir, model, folder) as server:
                tokens = server.complete(**body(policy))[1]["usage"]["prompt_tokens"]
                wait_for(lambda: tier(server, "stores_total") >= count, "a snapshot was not written")
                server.signal(signal.SIGKILL)
                server.process.wait()
            with start(kvasir, model, folder) as server:
                got, kv = ask(server, policy)
                assert got == cold[policy] and kv["cached_from"] == "disk", (policy, kv)
                assert kv["cached"] >= (tokens - 1) // 512 * 512, (policy, kv, tokens)
                assert ask(server, "h2o:budget=257")[1]["cached"] == 0, "it is of another policy"
                assert server.metric("kvasir:prefix_tier_failures_total") == 0
                assert server.end() == 0


def check_owners(kvasir, model, folder):
    with start(kvasir, model, folder) as server:
        status, answer = server.complete(**body("full"), cache_salt="another")
        assert status == 200 and answer["kv"]["cached"] == 0, "another salt finds nothing"
        assert ask(server, "full", bypass=True)[1]["cached"] == 0
        wait_for(lambda: tier(server, "stores_total") >= 3, "the other salt's parts are its own")
        assert server.end() == 0
    for options in (("--kv-type", "q8"), ("--page", "16"), ("--isa", "generic")):
        with start(kvasir, model, folder, *options) as server:
            assert ask(server, "full")[1]["cached"] == 0, f"{options}: pages of another kind"
            assert server.end() == 0
    with tempfile.TemporaryDirectory() as place:
        for arguments in (("tenant", "ann"), ("add", "--tenant", "ann")):
            said = subprocess.run([kvasir, "keys", *arguments, "--api-keys", place + "/keys.toml"], capture_output=True, text=True)
            assert said.returncode == 0, said
        key = said.stdout.strip()
        assert key.startswith("kvasir_"), said
        with start(kvasir, model, folder, "--api-keys", place + "/keys.toml") as server:
            header = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            before = set(parts(folder))
            assert server.ask("POST", "/v1/completions", body("full"), header)[0] == 200
            wait_for(lambda: len(set(parts(folder)) - before) >= 3, "a tenant's parts are its own")
            server.signal(signal.SIGKILL)
            server.process.wait()
        for path in glob.glob(folder + "/**", recursive=True):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    held = file.read()
                assert key.encode() not in held and key[7:].encode() not in held, path


def change(path, how):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        if how == "damaged":
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 16]))
        elif how == "cut off":
            file.truncate(size // 3)
        else:
            file.write(os.urandom(size))


def check_damage(kvasir, model, cold):
    for how in ("damaged", "cut off", "foreign", "exchanged"):
        with tempfile.TemporaryDirectory() as folder:
            count = fill(kvasir, model, folder)
            with start(kvasir, model, folder) as server:  # the catalogue is read; then the files change
                names = parts(folder)
                if how == "exchanged":
                    os.rename(names[0], names[0] + "x")
                    for i in range(1, count):
                        os.rename(names[i], names[i - 1])
                    os.rename(names[0] + "x", names[-1])
                else:
                    for name in names:
                        change(name, how)
                got, kv = ask(server, "full")
                assert got == cold["full"] and kv["cached"] == 0, (how, kv)
                assert tier(server, "failures_total") >= 1, how
                wait_for(lambda: any("is not used, and is removed" in line for line in server.lines), how)
                wait_for(lambda: tier(server, "stores_total") >= 3, "written anew")
                assert server.end() == 0
            with start(kvasir, model, folder) as server:
                got, kv = ask(server, "full")
                assert got == cold["full"] and kv["cached_from"] == "disk", (how, kv)
                assert server.end() == 0
            # Before a start: files that nobody knows go, and rows without a file.
            for name in parts(folder)[:1]:
                change(name, "cut off")
            orphan = folder + "/parts/" + "0" * 32 + ".part"
            for path in (orphan, folder + "/parts/notes.txt"):
                with open(path, "wb") as file:
                    file.write(b"x" * 1000)
            with start(kvasir, model, folder) as server:
                assert not os.path.exists(orphan) and os.path.exists(folder + "/parts/notes.txt")
                got, _ = ask(server, "full")
                assert got == cold["full"], how
                assert server.end() == 0
            with open(folder + "/catalogue.db", "r+b") as file:
                file.write(os.urandom(4096))
            with start(kvasir, model, folder) as server:
                wait_for(lambda: any("begun anew" in line for line in server.lines), "a damaged catalogue is said")
                assert ask(server, "full")[0] == cold["full"]
                assert server.end() == 0
            assert os.path.getsize(folder + "/catalogue.db.damaged") >= 4096


def check_kills_while_writing(kvasir, model, cold):
    with tempfile.TemporaryDirectory() as folder:
        for round in range(6):
            with start(kvasir, model, folder) as server:
                stream = server.stream(prompt=f"Round {round}. " + TEXT, max_tokens=400)
                wait_for(lambda: len(parts(folder)) > round, "nothing is being written")
                server.signal(signal.SIGKILL)
                server.process.wait()
                stream.close()
        with start(kvasir, model, folder) as server:
            assert ask(server, "full")[0] == cold["full"]
            for round in range(6):
                text = f"Round {round}. " + TEXT
                assert ask(server, "full", text)[0] == ask(server, "full", text, bypass=True)[0]
            assert tier(server, "failures_total") == 0
            assert server.end() == 0


def check_bound(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        fill(kvasir, model, folder)
        size = os.path.getsize(parts(folder)[0])
        with LiveServer(kvasir, model, "--prefix-dir", folder, "--prefix-disk", str(size * 4)) as server:
            for i in range(4):
                ask(server, "full", f"Number {i}. " + TEXT)
                assert stored_bytes(folder) <= size * 4 + size, "one that is written may not have its row yet"
            wait_for(lambda: 0 < tier(server, "bytes") <= size * 4 == tier(server, "capacity_bytes"), "the bound")
            assert server.end() == 0
        assert stored_bytes(folder) <= size * 4


def check_refusals(kvasir, model, folder):
    with start(kvasir, model, folder):
        said = refused(kvasir, model, "--prefix-dir", folder)
        assert "another process" in said and folder in said and "--prefix-dir" in said, said
    with tempfile.TemporaryDirectory() as other:  # a database of somebody else's stays as it is
        with contextlib.closing(sqlite3.connect(other + "/catalogue.db")) as books:
            books.execute("CREATE TABLE books(title)")
            books.execute("INSERT INTO books VALUES('my only copy')")
            books.commit()
        with open(other + "/catalogue.db", "rb") as file:
            before = file.read()
        said = refused(kvasir, model, "--prefix-dir", other)
        assert "another program" in said and other in said and "--prefix-dir" in said, said
        with open(other + "/catalogue.db", "rb") as file:
            assert file.read() == before
    said = refused(kvasir, model, "--prefix-dir", __file__)
    assert "--prefix-dir" in said and __file__ in said, said
    said = refused(kvasir, model, "--prefix-dir", folder + "/no/such")
    assert "--prefix-dir" in said, said
    said = refused(kvasir, model, "--prefix-dir", folder, "--prefix-memory", "0")
    assert "--prefix-memory" in said, said
    said = refused(kvasir, model, "--prefix-disk", "1GiB")
    assert "--prefix-dir" in said, said


def main(kvasir, model):
    cold = {}
    for policy in (*POLICIES, *SNAPSHOTS):
        with LiveServer(kvasir, model) as server:
            cold[policy], kv = ask(server, policy)
            assert kv["cached"] == 0 and "kvasir:prefix_tier_up" not in " ".join(server.metrics())
            assert server.end() == 0
    with tempfile.TemporaryDirectory() as folder:
        print(f"{fill(kvasir, model, folder)} parts", flush=True)
        check_kill(kvasir, model, folder, cold)
        check_owners(kvasir, model, folder)
        check_refusals(kvasir, model, folder)
    check_snapshots(kvasir, model, cold)
    check_damage(kvasir, model, cold)
    check_kills_while_writing(kvasir, model, cold)
    check_bound(kvasir, model)


if __name__ == "__main__":
    main(*sys.argv[1:3])
