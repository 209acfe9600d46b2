"""Answers the requests of lm-eval's local-completions from a llama-server, which has no `echo`.

Each token of the prompt is asked for alone: the tokens before it are the prompt, a bias forces it, and llama-server reports
the log-probability that it has without the bias.
"""
import http.server
import json
import threading
import urllib.request


def _ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, {"Content-Type": "application/json"}), timeout=600) as got:
        return json.load(got)


def version(url):
    return _ask(url, "/props")["build_info"]


def _token(url, before, token):
    """The log-probability of `token` behind `before`, and the largest of all."""
    got = _ask(url, "/completion", {"prompt": before, "n_predict": 1, "n_probs": 1, "temperature": 0, "cache_prompt": True,
                                    "logit_bias": [[token, 1e6]]})["completion_probabilities"][0]
    assert got["id"] == token, (got, token)
    return got["logprob"], got["top_logprobs"][0]["logprob"]


def _choice(url, index, tokens):
    pairs = [_token(url, tokens[:at], tokens[at]) for at in range(1, len(tokens))]
    # lm-eval takes off the last entry, the generated token's.
    return {"index": index, "text": "", "finish_reason": "length",
            "logprobs": {"token_logprobs": [None, *(own for own, _ in pairs), 0.0],
                         "top_logprobs": [None, *({"own": own, "top": top} for own, top in pairs), {"top": 0.0}]}}


class EchoServer:
    """Listens on a free port of this machine for as long as its `with` statement runs."""

    def __init__(self, url):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps({"choices": [_choice(url, *each) for each in enumerate(body["prompt"])]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
