"""The policy of examples/python_policy.py keeps what Kvasir's `keydiff` keeps: python_policy_check.py KVASIR MODEL TEXT EXAMPLE"""
import json
import pathlib
import subprocess
import sys
import tempfile

kvasir, model, text, example = sys.argv[1:]


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    recording = str(pathlib.Path(folder) / "recording.npy")
    common = ["-m", model, "-f", text, "--tokens", "160", "--prefill", "100", "--kv-type", "f32", "-o", recording]
    output(kvasir, "record", *common, "--with-keys", "--kv", "full")
    ours = json.loads(output(kvasir, "replay", "--trace", recording, "--prefill", "100", "--policy",
                             "keydiff:budget=48,every=16", "--json"))
    theirs = json.loads(output(sys.executable, example, recording, "--prefill", "100", "--budget", "48", "--every", "16",
                               "--json"))
    assert len(ours["layers"]) == len(theirs["layers"]) > 1
    for one, other in zip(ours["layers"], theirs["layers"]):
        assert [head["final"] for head in one["heads"]] == [head["final"] for head in other["heads"]], one["layer"]
        assert all(len(head["final"]) < 160 for head in one["heads"])
        assert abs(one["recall"] - other["recall"]) < 1e-6, (one["recall"], other["recall"])
    # A recording of attention alone is refused.
    output(kvasir, "record", *common, "--kv", "full")
    done = subprocess.run([sys.executable, example, recording], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--with-keys" in done.stderr, done.stderr
