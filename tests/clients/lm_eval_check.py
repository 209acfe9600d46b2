"""lm-eval against `kvasir serve`: the log-likelihoods that it gets, by token ids and by text, are those of `kvasir eval ppl` and of
`kvasir eval tasks`, of the model and of the server, and near those that it gets from llama.cpp's server.

    lm_eval_check.py KVASIR [MODEL]
    lm_eval_check.py KVASIR [MODEL] --llama-server URL     asks llama-server, renews lm_eval/llama_server.json, and ends
    ... --figures FILE                                     for another model: its file instead of lm_eval/llama_server.json

MODEL is SmolLM2-135M-Instruct.Q4_1.gguf, where the program keeps it. lm-eval is installed beside the build once, from
lm_eval/requirements.txt; where that fails, the check is skipped (77).
"""
import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE / "lm_eval"
TALE = HERE.parent.parent / "examples/the-lamplighter.txt"
sys.path[:0] = [str(DATA), str(HERE.parent / "server"), str(HERE.parent / "support")]

from echo_for_llama_server import EchoServer, version  # noqa: E402
from live_server import LiveServer  # noqa: E402
from pip_packages import import_or_skip  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402


def evaluate(port, tokenizer, tasks=("kvasir_choices", "kvasir_tale"), batch_size=1, chat=False, **options):
    """What lm-eval gets from the server on this port."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            got = simple_evaluate(
                model=f"local-{'chat-' if chat else ''}completions", apply_chat_template=chat, tasks=list(tasks), task_manager=TaskManager(include_path=".", include_defaults=False),
                model_args={"model": "m", "base_url": f"http://127.0.0.1:{port}/v1/{'chat/' if chat else ''}completions", "tokenizer": tokenizer,
                            "tokenizer_backend": "huggingface", "max_retries": 1, **options},
                batch_size=batch_size, bootstrap_iters=0, log_samples=True)
    except BaseException:
        print(said.getvalue(), file=sys.stderr)
        raise
    result = {}
    if "kvasir_choices" in tasks:
        result["acc"], result["acc_norm"] = (got["results"]["kvasir_choices"][f"{metric},none"] for metric in ("acc", "acc_norm"))
        result["choices"] = [[each[0] for each in sample["filtered_resps"]] for sample in got["samples"]["kvasir_choices"]]
    if "kvasir_answers" in tasks:
        result["answers"] = [sample["filtered_resps"][0] for sample in got["samples"]["kvasir_answers"]]
    if "kvasir_tale" in tasks:
        result["word_perplexity"] = got["results"]["kvasir_tale"]["word_perplexity,none"]
        result["tale"] = got["samples"]["kvasir_tale"][0]["filtered_resps"][0]
    return result


class Texts:
    """The questions and the tale, and what the program itself computes of them."""

    def __init__(self, kvasir, model, tokenizer):
        self.kvasir, self.model, self.tokenizer = kvasir, model, tokenizer
        rows = [json.loads(line) for line in (DATA / "questions.jsonl").read_text().splitlines()]
        self.questions = [(f"Question: {row['question']}\nAnswer:", [" " + choice for choice in row["choices"]]) for row in rows]
        self.tale = TALE.read_text()

    def ids(self, text):
        return self.tokenizer(text).input_ids

    def counts(self):
        """Tokens of each choice."""
        return [[len(self.ids(context + choice)) - len(self.ids(context)) for choice in choices] for context, choices in self.questions]

    def eval_ppl(self, texts, prefill=0):
        """The negative log-likelihood and the number of tokens of each text, whose first `prefill` + 1 are not scored."""
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for index, text in enumerate(texts):
                path = pathlib.Path(folder) / f"{index}.txt"
                path.write_text(text)
                files += ["-f", str(path)]
            ran = subprocess.run([self.kvasir, "eval", "ppl", "-m", self.model, "--kv", "full", "--json", "--quiet", "--chunk", "64",
                                  "--prefill", str(prefill), *files], check=True, stdout=subprocess.PIPE)
        runs = json.loads(ran.stdout)["runs"][:len(texts)]
        return [(run["nll"] * run["tokens"], run["tokens"]) for run in runs]

    def choices(self):
        """The log-likelihoods of the choices."""
        result = []
        for (context, choices), counts in zip(self.questions, self.counts()):
            got = self.eval_ppl([context + choice for choice in choices], len(self.ids(context)) - 1)
            assert [tokens for _, tokens in got] == counts, (context, got, counts)
            result.append([-nll for nll, _ in got])
        return result


def distances(some, other):
    return [abs(a - b) for row, row_of_other in zip(some, other, strict=True) for a, b in zip(row, row_of_other, strict=True)]


def check_ids(server, texts):
    """The tokenizer made of the file and the server agree, so that ids and text are the same requests."""
    for text in [context + choice for context, choices in texts.questions for choice in choices] + [texts.tale]:
        status, _, got = server.ask("POST", "/tokenize", {"prompt": text})
        assert status == 200 and json.loads(got)["tokens"] == texts.ids(text), text[:200]
    counts = [count for row in texts.counts() for count in row]
    assert counts.count(1) >= 20 and max(counts) > 8, counts
    print(f"{len(counts)} choices of 1 to {max(counts)} tokens, {counts.count(1)} of them of one; the tale: {len(texts.ids(texts.tale))} tokens")


def check_program(by_ids, by_text, server, texts, folder):
    own = texts.choices()
    for how, got in (("ids", by_ids), ("text", by_text)):
        worst = max(distances(got["choices"], own))
        print(f"choices by {how}: {worst:.1e} nats from kvasir eval at most; acc {got['acc']:.4f}, acc_norm {got['acc_norm']:.4f}")
        assert worst < 1e-3, how
    assert abs(by_text["word_perplexity"] / by_ids["word_perplexity"] - 1) < 1e-5, (by_text["tale"], by_ids["tale"])

    # eval ppl does not score the first token of a text. Where a newline begins it, and lm-eval is told to put it there, both score
    # the tale alone.
    newline, = texts.ids("\n")
    (nll, tokens), = texts.eval_ppl(["\n" + texts.tale])
    assert tokens == len(texts.ids(texts.tale)), tokens
    want = math.exp(nll / len(texts.tale.split()))
    got = evaluate(server.port, folder, ["kvasir_tale"], custom_prefix_token_id=newline)["word_perplexity"]
    print(f"word perplexity of the tale: {got:.4f}, kvasir eval {want:.4f}")
    assert abs(got / want - 1) < 1e-3


def eval_tasks(texts, tale, *more):
    """What `kvasir eval tasks` gives of the same questions and tale."""
    result = {}
    for task, data in (("choices", DATA / "questions.jsonl"), ("tale", tale)):
        ran = subprocess.run([texts.kvasir, "eval", "tasks", str(DATA / f"{task}.json"), "--data", str(data), "--json", "--quiet",
                              "-m", texts.model, *more], check=True, stdout=subprocess.PIPE)
        cell, = json.loads(ran.stdout)["cells"]
        metrics = {name: metric["mean"] for name, metric in cell["summary"]["metrics"].items()}
        scores = [[text["log_likelihood"] for text in question["texts"]] for question in cell["questions"]]
        result |= metrics | {task: scores if task == "choices" else scores[0][0]}
    return result


def check_tasks(by_ids, server, texts, folder):
    tale = pathlib.Path(folder) / "tale.jsonl"
    tale.write_text(json.dumps({"text": texts.tale}) + "\n")
    for how, more in (("the model", ["--kv", "full"]), ("the server", ["--endpoint", f"http://127.0.0.1:{server.port}"])):
        got = eval_tasks(texts, tale, *more)
        worst = max(distances(got["choices"], by_ids["choices"]))
        # Of the server a text's first token is not scored, since this model is given none before it.
        perplexity = by_ids["word_perplexity"] if how == "the model" else math.exp(texts.eval_ppl([texts.tale])[0][0] / len(texts.tale.split()))
        print(f"kvasir eval tasks, {how}: {worst:.1e} nats from lm-eval at most; acc {got['acc']:.4f}, acc_norm {got['acc_norm']:.4f}, "
              f"word perplexity {got['word_perplexity']:.6f} and {perplexity:.6f}")
        assert worst < 1e-4, how
        assert (got["acc"], got["acc_norm"]) == (by_ids["acc"], by_ids["acc_norm"]), how
        assert abs(got["word_perplexity"] / perplexity - 1) < 1e-3, how


def check_answers(server, texts, folder):
    """Answers in words, of completions and chats, are the same by lm-eval, of the server and of the model."""
    endpoint = ["--endpoint", f"http://127.0.0.1:{server.port}"]
    for chat in (False, True):
        want = evaluate(server.port, folder, ["kvasir_answers"], chat=chat)["answers"]
        for how, more in (("the model", ["--kv", "full"]), ("the server", endpoint)):
            ran = subprocess.run([texts.kvasir, "eval", "tasks", str(DATA / "answers.json"), "--data", str(DATA / "questions.jsonl"),
                                  "--json", "--quiet", "-m", texts.model, *more, *(["--chat"] if chat else [])], check=True,
                                 stdout=subprocess.PIPE)
            got = [question["answer"] for question in json.loads(ran.stdout)["cells"][0]["questions"]]
            same = sum(a == b for a, b in zip(got, want, strict=True))
            print(f"answers{' of chats' if chat else ''}, {how}: {same} of {len(want)} as lm-eval gets them; the first: {got[0]!r}")
            assert got == want, [(a, b) for a, b in zip(got, want) if a != b]


def check_llama_server(ours, texts, figures):
    """Both round activations to 8 bits, each in its own way, and are as far from what the weights give in F32 as from each other
    (README.md). So the bounds are those of this noise; an error in a position or a token would be many times as large."""
    theirs = json.loads(figures.read_text())
    counts = [count for row in texts.counts() for count in row]
    each = [distance / count for distance, count in zip(distances(ours["choices"], theirs["choices"]), counts, strict=True)]
    mean = sum(each) / len(each)
    questions = [round((ours[name] - theirs[name]) * len(texts.questions)) for name in ("acc", "acc_norm")]
    ratio = ours["word_perplexity"] / theirs["word_perplexity"] - 1
    print(f"from llama-server {theirs['server']}: choices {mean:.4f} nats per token in the mean, {max(each):.4f} at most; right answers "
          f"{questions[0]:+d}, by length {questions[1]:+d}; word perplexity {ours['word_perplexity']:.3f} and "
          f"{theirs['word_perplexity']:.3f} ({ratio:+.2%})")
    assert mean < 0.12 and max(each) < 0.8, each
    assert max(map(abs, questions)) <= 1, questions
    assert abs(ratio) < 0.01


def renew(url, model, folder, path):
    with EchoServer(url) as server:
        got = evaluate(server.port, folder, batch_size=8)
    figures = {"server": version(url), "model": pathlib.Path(model).name,
               "sha256": hashlib.sha256(pathlib.Path(model).read_bytes()).hexdigest(), **got}
    path.write_text(json.dumps(figures, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvasir", type=pathlib.Path)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--llama-server", metavar="URL")
    parser.add_argument("--figures", metavar="FILE", type=pathlib.Path, default=DATA / "llama_server.json")
    arguments = parser.parse_args()
    kvasir, model = arguments.kvasir.resolve(), str(pathlib.Path(arguments.model or real_model_or_skip()).resolve())
    build, figures = kvasir.parent.parent, arguments.figures.resolve()
    began = time.monotonic()
    import_or_skip(build, "lm_eval", DATA / "requirements.txt", minutes=15)
    print(f"installed ({time.monotonic() - began:.0f} s)", flush=True)

    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.chdir(DATA)  # the tasks name their files from there
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        from gguf_tokenizer import save_tokenizer
        texts = Texts(kvasir, model, save_tokenizer(model, folder))
        if arguments.llama_server:
            renew(arguments.llama_server, model, folder, figures)
            return
        with LiveServer(kvasir, model) as server:
            check_ids(server, texts)
            by_ids = evaluate(server.port, folder, batch_size=8)
            by_text = evaluate(server.port, folder, tokenized_requests=False, num_concurrent=4)
            check_program(by_ids, by_text, server, texts, folder)
            check_tasks(by_ids, server, texts, folder)
            check_answers(server, texts, folder)
        check_llama_server(by_ids, texts, figures)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
