"""The tokenizer of a GGUF file as a folder that transformers loads, made without torch and without a download.

For byte-level BPE whose words are cut as `smollm`, which is all that the checks need. `../../text/smollm2/make_ids.py` says how
transformers' own conversion differs.
"""
import mmap
import struct

LETTERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # of struct, by the type of a value
STRING, ARRAY = 8, 9
CONTROL = 3


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, letters):
        values = struct.unpack_from("<" + letters, self.data, self.at)
        self.at += struct.calcsize("<" + letters)
        return values

    def value(self, kind):
        if kind == ARRAY:
            of, count = self.take("IQ")
            return list(self.take(f"{count}{LETTERS[of]}")) if of in LETTERS else [self.value(of) for _ in range(count)]
        if kind == STRING:
            return self.take(f"{self.take('Q')[0]}s")[0].decode()
        return self.take(LETTERS[kind])[0]


def metadata(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        magic, _, _, count = reader.take("4sIQQ")
        assert magic == b"GGUF", path
        return {reader.value(STRING): reader.value(reader.take("I")[0]) for _ in range(count)}


def save_tokenizer(model, folder):
    """Writes the folder, and returns the tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = metadata(model)
    assert fields["tokenizer.ggml.pre"] == "smollm", fields["tokenizer.ggml.pre"]
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"]) if kind == CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
                                        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]], clean_up_tokenization_spaces=False)
    tokenizer.save_pretrained(folder)
    return tokenizer
