"""Clients of Anthropic, Ollama, OpenAI (responses) and LiteLLM against `kvasir serve`: dialects_clients_check.py KVASIR MODEL

Each client's text is that of OpenAI's chat route. The packages are installed beside the build once, from dialects/requirements.txt;
where that fails, the check is skipped (77).
"""
import contextlib
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "server"), str(HERE.parent / "support")]

from live_server import LiveServer  # noqa: E402
from pip_packages import import_or_skip  # noqa: E402

HI = [{"role": "user", "content": "Who are you?"}]


def check_anthropic(url, want):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key="none")
    plain = {"model": "m", "max_tokens": 12, "extra_body": {"temperature": 0}}
    whole = client.messages.create(messages=HI, **plain)
    assert whole.content[0].text == want and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12, whole
    with client.messages.stream(messages=HI, **plain) as stream:
        assert "".join(stream.text_stream) == want
        final = stream.get_final_message()
    assert final.content[0].text == want and final.usage.input_tokens == whole.usage.input_tokens, final
    assert client.messages.count_tokens(model="m", messages=HI).input_tokens == whole.usage.input_tokens
    stopped = client.messages.create(messages=HI, stop_sequences=[want[4:7]], **plain)
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == want[4:7], stopped
    with expect(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=1, messages=HI)
    with expect(anthropic.BadRequestError):
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": [{"type": "image", "source": {
            "type": "url", "url": "https://example.com/x.png"}}]}])


def check_ollama(url, want):
    import ollama
    client = ollama.Client(host=url)
    options = {"num_predict": 12, "temperature": 0}
    assert client.list().models[0].model == "m" and client.ps().models[0].model == "m"
    assert "completion" in client.show("m").capabilities
    whole = client.chat("m", HI, options=options)
    assert whole.message.content == want and whole.done_reason == "length" and whole.eval_count == 12, whole
    parts = list(client.chat("m:latest", HI, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == want and [part.done for part in parts][-1] is True
    assert client.generate("m", "Who are you?", options=options).response == want
    with expect(ollama.ResponseError, 404):
        client.chat("other", HI)
    with expect(ollama.ResponseError, 400):
        client.generate("m", "x", images=["aGk="])


def check_openai_responses(url, want):
    import openai
    client = openai.OpenAI(base_url=url + "/v1", api_key="none")
    plain = {"model": "m", "max_output_tokens": 12, "temperature": 0}
    first = client.responses.create(input="Who are you?", metadata={"a": "b"}, **plain)
    assert first.output_text == want and first.status == "incomplete" and first.metadata == {"a": "b"}, first
    assert client.responses.retrieve(first.id).output_text == want
    text, kinds = "", []
    with client.responses.stream(input=HI, **plain) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == want and kinds[0] == "response.created" and kinds[-1] == "response.incomplete", kinds
    second = client.responses.create(input="Why?", previous_response_id=first.id, **plain)
    chat = client.chat.completions.create(model="m", max_tokens=12, temperature=0, messages=[
        *HI, {"role": "assistant", "content": want}, {"role": "user", "content": "Why?"}])
    assert second.output_text == chat.choices[0].message.content
    client.responses.delete(first.id)
    with expect(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with expect(openai.BadRequestError):
        client.responses.create(input="x", background=True, **plain)


def check_litellm(url, want):
    import litellm
    litellm.suppress_debug_info = True
    for model, base in (("openai/m", url + "/v1"), ("anthropic/m", url), ("ollama_chat/m", url)):
        plain = {"model": model, "api_base": base, "api_key": "none", "messages": HI, "max_tokens": 12, "temperature": 0}
        whole = litellm.completion(**plain)
        assert whole.choices[0].message.content == want and whole.usage.completion_tokens == 12, (model, whole)
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(stream=True, **plain)]
        assert "".join(parts) == want, (model, parts)


def check_embeddings(url, want):
    import litellm
    import ollama
    import openai
    texts = ["Who are you?", "A ship on the sea."]
    client = openai.OpenAI(base_url=url + "/v1", api_key="none")
    plain = client.embeddings.create(model="m", input=texts, encoding_format="float")
    floats = [each.embedding for each in plain.data]
    assert plain.usage.prompt_tokens > 4 and len(floats) == 2 and abs(sum(x * x for x in floats[0]) - 1) < 1e-4, plain
    encoded = [each.embedding for each in client.embeddings.create(model="m", input=texts).data]  # asks for base64
    assert all(abs(x - y) < 1e-6 for one, two in zip(floats, encoded) for x, y in zip(one, two))
    assert list(map(list, ollama.Client(host=url).embed("m", texts).embeddings)) == floats
    for model, base in (("openai/m", url + "/v1"), ("ollama/m", url)):
        got = litellm.embedding(model=model, api_base=base, api_key="none", input=texts)
        assert all(abs(x - y) < 1e-6 for one, two in zip(floats, got.data) for x, y in zip(one, two["embedding"])), model


@contextlib.contextmanager
def expect(kind, status=None):
    try:
        yield
    except kind as error:
        assert status is None or error.status_code == status, error
    else:
        raise AssertionError(f"no {kind.__name__}")


def main():
    kvasir, model = (pathlib.Path(each).resolve() for each in sys.argv[1:3])
    import_or_skip(kvasir.parent.parent, "dialect_clients", HERE / "dialects" / "requirements.txt", minutes=10)
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_TELEMETRY="False")
    with LiveServer(str(kvasir), str(model), "--pooling", "mean") as server:
        url = f"http://127.0.0.1:{server.port}"
        status, _, text = server.ask("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 12, "temperature": 0})
        want = json.loads(text)["choices"][0]["message"]["content"]
        for name, check in list(globals().items()):
            if name.startswith("check_") and (len(sys.argv) < 4 or name in sys.argv[3:]):
                began = time.monotonic()
                check(url, want)
                print(f"{name}: ok ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
