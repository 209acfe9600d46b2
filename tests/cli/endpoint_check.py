"""kvasir eval tasks --endpoint against servers of a few lines: the scores that they report are found, and those that they do not report
are said to be missing.

    endpoint_check.py KVASIR

The servers take a word, or a space with its word, as a token, and give the token of n characters the log-probability -n / 10.
"""
import concurrent.futures
import contextlib
import email.utils
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TASK = {"request": "choices", "prompt": "{{ q }} ", "choices": "c", "answer": "{{ a }}"}
ITEM = {"q": "one two", "c": ["three", "fo ur", "é"], "a": 1}
ROLLING = {"request": "rolling", "prompt": "{{ q }}"}
WORDS = {"prompt": "{{ q }}", "references": "r", "metrics": ["exact_match"], "max_tokens": 3}
ANSWERED = {"q": "what", "r": "forty two"}


def tokens_of(text):
    return re.findall(r" ?[^ ]+| ", text)


class Server(ThreadingHTTPServer):
    """`change(body, answer, number)` returns the status and the answer of request `number`, or bytes to send as they are; a third value:
    what Retry-After says."""

    def __init__(self, change=None):
        self.change, self.bodies, self.lock = change, [], threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append({**body, "at": time.monotonic()})
            number = len(self.server.bodies)
        tokens = tokens_of(body["prompt"])
        choice = {"text": "forty two"}
        if body.get("echo"):
            written = [*tokens, " more"]
            choice["logprobs"] = {"tokens": written, "token_logprobs": [None, *(-len(token) / 10 for token in written[1:])],
                                  "top_logprobs": [None, *({token: -len(token) / 10} for token in written[1:])],
                                  "text_offset": [0] * len(written)}
        answer = {"choices": [choice], "usage": {"prompt_tokens": len(tokens), "completion_tokens": 1}}
        status, later = 200, []
        if self.server.change:
            status, answer, *later = self.server.change(body, answer, number)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for when in later:
            self.send_header("Retry-After", when)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # who asked may have waited long enough
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def ask(kvasir, folder, task, item, change=None, more=()):
    server = Server(change)
    (folder / "task.json").write_text(json.dumps(task) + "\n")
    (folder / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (item if isinstance(item, list) else [item])))
    ran = subprocess.run([kvasir, "eval", "tasks", str(folder / "task.json"), "--data", str(folder / "data.jsonl"), "--json", "--quiet",
                          "--endpoint", f"http://127.0.0.1:{server.server_port}", *more], capture_output=True, text=True, timeout=120)
    server.shutdown()
    question = json.loads(ran.stdout)["cells"][0]["questions"][0] if ran.stdout else None
    return ran, question, server.bodies


def check_servers_that_do_not_answer(kvasir, folder):
    """One that is too busy is asked again when it says, one that hangs ends the run; what is answered stays."""
    def busy_until(when):
        return lambda body, answer, number: (429, b"", when()) if number == 1 else (200, answer)

    # As seconds, and as a date, which has no parts of a second.
    for when, least in ((lambda: "3", 2.9), (lambda: email.utils.formatdate(time.time() + 4, usegmt=True), 2)):
        ran, question, bodies = ask(kvasir, folder, WORDS, ANSWERED, busy_until(when))
        assert (ran.returncode, question["answer"], len(bodies)) == (0, "forty two", 2), ran.stderr
        assert bodies[1]["at"] - bodies[0]["at"] > least, bodies

    def hangs(body, answer, number):
        if number > 1:
            time.sleep(4)
        return 200, answer

    begun = time.monotonic()
    more = ["--timeout", "1", "--parallel", "1", "--out", str(folder / "out")]
    ran, question, bodies = ask(kvasir, folder, WORDS, [ANSWERED] * 3, hangs, more)
    assert ran.returncode == 1 and len(bodies) == 2 and time.monotonic() - begun < 10, (ran, bodies)
    assert re.fullmatch(r"kvasir: http://127\.0\.0\.1:\d+/v1/completions did not answer within 1 s; allow more with --timeout SECONDS; "
                        r"ended in cell 1 of 1 \(task under the server\) after 1 of 3 questions; the same command runs the rest\n",
                        ran.stderr), ran.stderr
    cell = json.loads(ran.stdout)["cells"][0]
    assert (cell["unasked"], cell["summary"]["questions"], question["answer"]) == (2, 1, "forty two"), cell
    (log,) = (folder / "out").glob("*.jsonl")
    assert len(log.read_text().splitlines()) == 2, "the header and an answer"
    assert not list((folder / "out").glob("*.json")), "no cell is whole"


def check_a_server_that_stays_busy(kvasir, folder):
    for code, words in ((503, "is too busy"), (504, "is not reached")):
        (folder / words).mkdir()
        ran, _, bodies = ask(kvasir, folder / words, WORDS, ANSWERED, lambda *_: (code, b""))
        assert ran.returncode == 1 and len(bodies) == 6 and not ran.stdout, (ran, bodies)
        assert f"{words} (HTTP {code}), at the last of 6 tries too; ask fewer" in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr


def main():
    kvasir = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor() as pool:
        folder = pathlib.Path(name)
        # Beside the others, for it takes half a minute.
        (folder / "busy").mkdir()
        stays_busy = pool.submit(check_a_server_that_stays_busy, kvasir, folder / "busy")

        def scores(change=None):
            ran, question, bodies = ask(kvasir, folder, TASK, ITEM, change)
            assert ran.returncode == 0, ran.stderr
            assert bodies[0]["prompt"] == "one two" and "echo" not in bodies[0], bodies[0]
            assert {body["prompt"] for body in bodies[1:]} == {"one two three", "one two fo ur", "one two é"}, bodies
            return [round(text["log_likelihood"], 6) for text in question["texts"]], [text["tokens"] for text in question["texts"]]

        right = ([-0.6, -0.6, -0.2], [1, 2, 1])
        assert scores() == right, scores()

        def counts_bos(body, answer, number):
            answer["usage"]["prompt_tokens"] += 1
            return 200, answer

        def reports_bos(body, answer, number):
            answer["usage"]["prompt_tokens"] += 1
            if "logprobs" in answer["choices"][0]:
                for field, value in (("tokens", "<s>"), ("token_logprobs", None), ("top_logprobs", None), ("text_offset", 0)):
                    answer["choices"][0]["logprobs"][field].insert(0, value)
                answer["choices"][0]["logprobs"]["token_logprobs"][1] = -1.0
            return 200, answer

        def busy_at_first(body, answer, number):
            return (503, {}) if number == 2 else (200, answer)

        for change in (counts_bos, reports_bos):
            assert scores(change) == right, (change.__name__, scores(change))
        ran, question, _ = ask(kvasir, folder, WORDS, ANSWERED, lambda body, answer, number: (429, b"") if number == 1 else (200, answer))
        assert (ran.returncode, question["answer"]) == (0, "forty two"), ran.stderr
        # Of its cache a server says nothing.
        assert not {"kept", "kv_bytes", "left_out", "prompt_seconds"} & question.keys(), question
        summary = json.loads(ran.stdout)["cells"][0]["summary"]
        assert not {"kept_mean", "kv_bytes_mean", "kv_bytes_max", "shortened"} & summary.keys(), summary
        ran, question, bodies = ask(kvasir, folder, TASK, ITEM, busy_at_first)
        assert ran.returncode == 0 and len(bodies) == 5, (ran.stderr, len(bodies))

        def without(field):
            def change(body, answer, number):
                answer.pop(field, None) or answer["choices"][0].pop(field, None)
                return 200, answer
            return change

        # Of a whole text, each token behind the first of those that the text has; never the one that is generated.
        for change in (None, counts_bos):
            ran, question, _ = ask(kvasir, folder, ROLLING, {"q": "one two three"}, change)
            assert ran.returncode == 0, ran.stderr
            assert [(round(text["log_likelihood"], 6), text["tokens"]) for text in question["texts"]] == [(-1.0, 2)], question
        ran, question, _ = ask(kvasir, folder, ROLLING, {"q": "one two three"}, reports_bos)
        assert [(round(text["log_likelihood"], 6), text["tokens"]) for text in question["texts"]] == [(-2.0, 3)], question

        def nulls(body, answer, number):
            if "logprobs" in answer["choices"][0]:
                answer["choices"][0]["logprobs"]["token_logprobs"][-2] = None
            return 200, answer

        def other_tokens(body, answer, number):
            if "logprobs" in answer["choices"][0]:
                answer["choices"][0]["logprobs"]["tokens"][-2] = " other"
            return 200, answer

        for change, words in ((without("usage"), "how many tokens a prompt has"), (without("logprobs"), "no log-probabilities of prompts"),
                              (nulls, "no log-probability"), (other_tokens, "do not spell the choice"),
                              (lambda *_: (200, b"<html>"), "not one of the API"), (lambda *_: (200, b"[1"), "not one of the API"),
                              (lambda *_: (500, b'{"error": {"message": null}}'), "the server answers 500"),
                              (lambda *_: (400, b'{"error": "no\\nsuch"}'), "the server answers 400")):
            ran, question, _ = ask(kvasir, folder, TASK, ITEM, change)
            assert ran.returncode == 1 and words in ran.stderr and words in question["error"], (words, ran.stderr)
            assert ran.stderr.count("\n") == 1, ran.stderr
        ran, question, bodies = ask(kvasir, folder, TASK, ITEM, more=["--chat"])
        assert ran.returncode == 2 and not bodies, ran.stderr
        plain = {**WORDS, "chat": False, "min_tokens": 2}
        ran, question, bodies = ask(kvasir, folder, plain, ANSWERED, more=["--chat"])
        assert question["answer"] == "forty two" and "messages" not in bodies[0], (ran.stderr, bodies)
        assert bodies[0]["prompt"] == "what" and bodies[0]["min_tokens"] == 2, bodies
        assert json.loads(ran.stdout)["cells"][0]["chat"] is False, ran.stdout
        check_servers_that_do_not_answer(kvasir, folder)
        stays_busy.result()
        print("scores with and without BOS, servers that are busy or hang, and ten kinds of answers that are none: as they should be")


if __name__ == "__main__":
    main()
