"""Answers of a real model under JSON schemas, validated: schema_outputs.py KVASIR [MODEL] [--schemas 500] [--outputs 50]

Starts `kvasir serve` and asks over HTTP for so many answers under each schema of tests/grammar/schemas, --batch at once. Every answer
that ends by itself must be valid by python3-jsonschema, with its checks of formats and numbers compared exactly; one that
--max-tokens cut must have all of these tokens and be the beginning of a JSON text. Prints a table by kind of schema, and exits with
1 if an answer is wrong. The seed of an answer is --seed + 1000 * the schema's place in the file + the answer's number; --record
writes every answer with its schema, seed and verdict; answers that the file has already are counted and not asked for again.
Interrupted (Ctrl-C), it reports what was done. MODEL: SmolLM2-135M-Instruct
where it has been downloaded; without it the program ends with 77.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import signal
import sys
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("grammar", "server", "support")]

from live_server import LiveServer  # noqa: E402
from masks import all_schemas, is_prefix, loads, validator  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402

BLOCK = 10  # answers that are asked for under one schema before the next one, whose grammar the server then has at hand


class Job:
    """One answer to ask for."""

    def __init__(self, place, entry, number, seed):
        self.name, self.schema = entry["name"], {} if entry["schema"] is True else entry["schema"]  # a field's schema is an object
        self.kind = self.name.rsplit("-", 1)[0]
        self.seed = seed + 1000 * place + number

    def body(self, options):
        return {"messages": [{"role": "user", "content": f"Write an example of JSON for this schema: {json.dumps(self.schema)}"}],
                "structured_outputs": {"json": self.schema}, "max_tokens": options.max_tokens,
                "temperature": options.temperature, "seed": self.seed}


def jobs(options):
    schemas = all_schemas()
    step = max(1, len(schemas) // options.schemas)  # a part has schemas of every kind
    chosen = list(enumerate(schemas))[::step][:options.schemas]
    for begin in range(0, options.outputs, BLOCK):
        for place, entry in chosen:
            for number in range(begin, min(begin + BLOCK, options.outputs)):
                yield Job(place, entry, number, options.seed)


class Validators:
    """The newest validators, by the name of their schema."""

    def __init__(self):
        self.kept = collections.OrderedDict()

    def of(self, job):
        if job.name not in self.kept:
            self.kept[job.name] = validator(job.schema)
            if len(self.kept) > 32:
                self.kept.popitem(last=False)
        return self.kept[job.name]


def verdict(job, status, text, most, validators):
    """("valid", "cut" or "wrong", why it is wrong, the answer's text, its tokens)."""
    if status != 200:
        return "wrong", f"status {status}: {text[:300]}", "", 0
    answer = json.loads(text)
    choice = answer["choices"][0]
    written, reason, tokens = choice["message"]["content"] or "", choice["finish_reason"], answer["usage"]["completion_tokens"]
    if reason == "length":
        if tokens != most:
            return "wrong", f"ended by length behind {tokens} tokens", written, tokens
        return ("cut", "", written, tokens) if is_prefix(written) else ("wrong", "no beginning of JSON", written, tokens)
    if reason != "stop":
        return "wrong", f"ended by {reason}", written, tokens
    try:
        error = next(iter(validators.of(job).iter_errors(loads(written))), None)
    except ValueError as failure:
        return "wrong", f"no JSON: {failure}", written, tokens
    return ("wrong", error.message[:300], written, tokens) if error else ("valid", "", written, tokens)


class Run:
    """The counts of all answers so far."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.left, self.lock = iter(jobs(options)), threading.Lock()
        self.counts, self.tokens, self.wrong = collections.defaultdict(collections.Counter), 0, []
        self.validators, self.stopped, self.began = Validators(), False, time.monotonic()
        self.asked, self.record = self.recorded(), None
        if options.record:
            self.record = open(options.record, "a", encoding="utf-8")

    def work(self):
        while True:
            with self.lock:
                job = None if self.stopped else next(self.left, None)
            if job is None:
                return
            if (job.name, job.seed) in self.asked:
                continue
            try:
                status, _, text = self.server.ask("POST", "/v1/chat/completions", job.body(self.options))
                with self.lock:
                    self.add(job, *verdict(job, status, text, self.options.max_tokens, self.validators))
            except OSError as error:
                self.stopped = True
                ended = self.server.process.poll()
                raise SystemExit(f"the server ended with {ended}: {''.join(self.server.lines[-5:])}" if ended is not None
                                 else f"the server does not answer: {error}") from error
            except Exception:
                self.stopped = True
                raise

    def recorded(self):
        """Counts the answers of an earlier run, and returns their schemas and seeds. A line that broke off is left out."""
        asked = set()
        path = pathlib.Path(self.options.record or "")
        if not self.options.record or not path.exists():
            return asked
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            asked.add((answer["schema"], answer["seed"]))
            self.count(answer["schema"].rsplit("-", 1)[0], answer["verdict"], answer["tokens"],
                       f"{answer['schema']}, seed {answer['seed']}: {answer['why']}: {answer['text'][:300]!r}")
        return asked

    def count(self, kind, verdict, tokens, wrong):
        self.counts[kind][verdict] += 1
        self.tokens += tokens
        if verdict == "wrong":
            self.wrong.append(wrong)

    def add(self, job, kind, why, written, tokens):
        self.count(job.kind, kind, tokens, f"{job.name}, seed {job.seed}: {why}: {written[:300]!r}: {json.dumps(job.schema)[:500]}")
        if self.record:
            self.record.write(json.dumps({"schema": job.name, "seed": job.seed, "verdict": kind, "tokens": tokens, "why": why,
                                          "text": written}) + "\n")
        done = self.done()
        if done % 500 == 0:
            print(f"{done} answers, {len(self.wrong)} wrong, {time.monotonic() - self.began:.0f} s", file=sys.stderr, flush=True)

    def done(self):
        return sum(sum(each.values()) for each in self.counts.values())

    def table(self):
        seconds = time.monotonic() - self.began
        total = sum(self.counts.values(), collections.Counter())
        print("| schemas | answers | valid | ended by length | wrong |\n|---|---|---|---|---|")
        for name, counts in [*sorted(self.counts.items()), ("total", total)]:
            print(f"| {name} | {sum(counts.values())} | {counts['valid']} | {counts['cut']} | {counts['wrong']} |")
        print(f"\nseed {self.options.seed}, temperature {self.options.temperature}, at most {self.options.max_tokens} tokens, "
              f"{self.options.batch} at once: {self.tokens} tokens in {seconds:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--outputs", type=int, default=50, help="answers under each schema, at most 1000")
    parser.add_argument("--batch", type=int, default=16, help="requests at once")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", help="file for all answers, one JSON object a line")
    options = parser.parse_args()
    model = options.model or str(real_model_or_skip())
    with LiveServer(options.kvasir, model, "--max-batch", str(options.batch)) as server:
        run = Run(server, options)

        def stop(*_):
            run.stopped = True
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        with concurrent.futures.ThreadPoolExecutor(options.batch) as workers:
            for worker in [workers.submit(run.work) for _ in range(options.batch)]:
                worker.result()
    run.table()
    if run.record:
        run.record.close()
    if run.wrong:
        print("\n".join(run.wrong[:40] + [f"{len(run.wrong)} are wrong"]))
    sys.exit(1 if run.wrong else 0)


if __name__ == "__main__":
    main()
