"""A server of a model in parts answers as that of the whole file, under its name: split_check.py KVASIR SPLITTER MODEL"""

import json
import os
import subprocess
import sys
import tempfile

from serve_check import Server

REQUEST = {"prompt": "Once upon a time there was a cat who lived in a big house.", "max_tokens": 48, "temperature": 0, "logprobs": 3}


def answer(kvasir, model):
    """The answer, and the names of the models."""
    server = Server(kvasir, model, name=None)
    try:
        status, body = server.post("/v1/completions", REQUEST)
        assert status == 200, body
        models = json.loads(server.ask("GET", "/v1/models")[2])["data"]
    finally:
        code = server.end()
    assert code == 0, code
    choice = body["choices"][0]
    return (choice["text"], choice["logprobs"]), [each["id"] for each in models]


def main(kvasir, splitter, model):
    with tempfile.TemporaryDirectory() as folder:
        listed = subprocess.run([splitter, model, os.path.join(folder, "mini"), "3", "--empty-first"], check=True, capture_output=True,
                                text=True).stdout.split()
        assert len(listed) == 3, listed
        whole, _ = answer(kvasir, model)
        assert whole[0], "there is something to compare"
        for part in listed:
            split, names = answer(kvasir, part)
            assert split == whole, part
            assert names == ["mini"], names
    print("parts and whole file give the same answers")


if __name__ == "__main__":
    main(*sys.argv[1:])
