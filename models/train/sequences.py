"""Training sequences: stretches of books, a part of them with facts planted in them and asked for later.

Book text alone teaches a small model little about its far context. So some sequences carry facts ("The secret number of
the amber lantern is 48213.") that come again later, where the number can only be had by looking back; or passages that
come twice; or are blocks of random tokens that come again and again, from which heads that look back form soonest. And
some are conversations: paragraphs as messages, so that a chat gives prose, and ends.

A number asked for counts several times in the loss. One told for the first time, which nobody can predict, counts little:
enough to expect digits there. The words around them do not count: they would come up in prose.
"""

import dataclasses
import math

import numpy as np
import sentencepiece

BOS, USER, ASSISTANT, END = 1, 3, 4, 5
FIRST_WORD = 262  # what comes before are control tokens, markers and bytes

# The words of `kvasir eval needle`, and others, so that the model learns to look back and not a list of words.
ADJECTIVES = (
    "amber silver crooked hidden golden ancient silent scarlet broken frozen hollow wooden velvet iron marble copper "
    "ivory dusty crystal painted narrow distant forgotten northern southern eastern western little great blue green "
    "white black"
).split()
NOUNS = (
    "lantern key tower garden river castle mirror bridge harbour compass letter clock violin temple window cellar "
    "orchard island chapel forge carriage library fountain anchor lighthouse bell crown map door statue well mill"
).split()
MORE_ADJECTIVES = (
    "red grey old new tall broad bright dark heavy light round square quiet noisy royal rusty gilded lonely sunken "
    "stolen secret sacred humble noble gentle bitter sweet cold warm wild"
).split()
MORE_NOUNS = (
    "horse ship house book sword ring table chair street church school farm forest valley mountain lake field gate "
    "wall stone tree flower boat coach road inn barn cottage palace prison market shop box lamp candle knife glass "
    "coat hat shoe glove purse watch drum flute pen desk"
).split()
SENTENCE = "The secret number of the {key} is {value}."
MORE_SENTENCES = [
    SENTENCE,
    SENTENCE,
    SENTENCE,
    "The number of the {key} is {value}.",
    "The secret code of the {key} is {value}.",
    "The price of the {key} is {value}.",
    "The {key} bears the number {value}.",
    "Remember that the {key} has the number {value}.",
]

PASSAGE_SHARE = 0.2  # of the sequences that are not plain text: passages that come twice; the others have facts
TOLD_WEIGHT = 0.1  # in the loss, of a number told for the first time
FARTHEST_SHARE = 0.3  # of the distances that are not drawn by their logarithm
MESSAGE = range(2, 129)  # tokens of a paragraph that becomes a message


@dataclasses.dataclass
class Mixture:
    plain: float = 0.5  # share of sequences of 1,024 tokens that are text alone; of twice as many tokens, its square
    echo: float = 0.0  # share of sequences of random tokens in blocks that come again and again
    chat: float = 0.0  # share of sequences that are conversations
    blank: float = 0.0  # share of plain text that begins with spaces and line ends, as a careless prompt does
    listed: float = 0.4  # share of those with facts that tell them in a list and ask for them in another order
    far: float = 1.0  # largest distance between telling and asking, of the sequence's length
    weight: float = 3.0  # of an asked number in the loss


@dataclasses.dataclass
class Fact:
    name: tuple  # sentence and key
    ids: np.ndarray  # "\n" sentence "\n"
    begin: int  # the number's tokens are ids[begin:end], the space before it included
    end: int


def stretches(ids, count, length, batches):
    """Inputs and targets [count, length] of stretches that are spread evenly over `ids`."""
    starts = np.linspace(0, len(ids) - length, count * batches).astype(int)
    for part in starts.reshape(batches, count):
        rows = np.stack([np.concatenate([[BOS], ids[i : i + length]]) for i in part]).astype(np.int64)
        yield rows[:, :-1].copy(), rows[:, 1:].copy()


def check_folder(folder):
    missing = [name for name in ("train.u16", "val.u16", "kv4k.model") if not (folder / name).exists()]
    if missing:
        raise SystemExit(f"{folder} lacks {', '.join(missing)}: corpus.py writes them")


class Sequences:
    def __init__(self, folder, seed):
        """`folder` holds train.u16, val.u16 (token ids, little-endian) and kv4k.model (corpus.py)."""
        self.train = np.fromfile(folder / "train.u16", "<u2")
        self.held_out = np.fromfile(folder / "val.u16", "<u2")
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "kv4k.model"))
        self.random = np.random.default_rng(seed)
        self.newline, self.space, *digits = self.encode("\n 0123456789")
        self.digits = np.array(digits)

    def pick(self, choices):
        return choices[self.random.integers(len(choices))]

    def below(self, low, high):
        return int(self.random.integers(low, max(low + 1, high)))

    def chance(self, share):
        return self.random.random() < share

    def log_uniform(self, low, high):
        return int(math.exp(self.random.uniform(math.log(low), math.log(max(low, high)))))

    def encode(self, text):
        return self.tokenizer.encode(text)[1:]  # without the space that SentencePiece puts before a text

    def fact(self, known):
        adjectives = ADJECTIVES if known else ADJECTIVES + MORE_ADJECTIVES
        nouns = NOUNS if known else NOUNS + MORE_NOUNS
        sentence = SENTENCE if known else self.pick(MORE_SENTENCES)
        key = f"{self.pick(adjectives)} {self.pick(nouns)}"
        digits = 5 if known or self.chance(0.8) else self.below(3, 8)
        value = "".join(map(str, self.random.integers(0, 10, digits)))
        head, tail = sentence.replace("{key}", key).split("{value}")
        ids = self.encode(f"\n{head}{value}{tail}\n")
        begin = len(self.encode("\n" + head.rstrip()))
        return Fact((sentence, key), np.array(ids), begin, begin + 1 + digits)

    def facts(self, count):
        found = {}
        while len(found) < count:
            fact = self.fact(known=self.chance(0.6))
            found.setdefault(fact.name, fact)
        return list(found.values())

    def with_passages(self, text):
        """Passages of the text come again, in place of what stood there."""
        length = len(text)
        for _ in range(self.below(1, 4) if length < 4096 else self.below(2, 12)):
            n = self.below(16, min(129, length // 2))
            source = self.below(0, length - 2 * n)
            target = min(length - n, source + n + self.log_uniform(8, length))
            text[target : target + n] = text[source : source + n]

    def with_facts(self, text, mixture):
        """The text with facts in it, cut to its length, and the weights of its tokens in the loss."""
        length = len(text)
        listed = self.chance(mixture.listed)
        if listed:
            count = self.below(3, 12)
        else:
            count = 1 if self.chance(0.5 if length < 4096 else 0.25) else self.below(2, 7 if length < 4096 else 25)
        facts = self.facts(count)
        room = length - 4 * sum(len(fact.ids) for fact in facts) - 8
        placed = []  # position in the text, ids, weights

        def tell(fact, position):
            weights = np.ones(len(fact.ids), np.float32)
            weights[: fact.begin] = 0
            weights[fact.begin : fact.end] = TOLD_WEIGHT
            placed.append((position, fact.ids, weights))

        def ask(fact, position):
            weights = np.ones(len(fact.ids), np.float32)
            weights[: fact.begin] = 0
            weights[fact.begin : fact.end] = mixture.weight
            placed.append((min(position, length), fact.ids, weights))

        if listed:
            position = self.below(0, room)
            gap = self.log_uniform(1, (room - position) * mixture.far)
            for fact in facts:
                tell(fact, position)
            for i in self.random.permutation(count):
                ask(facts[i], position + gap)
        else:
            for fact in facts:
                farthest = max(8, int(room * mixture.far))
                distance = farthest - 1 if self.chance(FARTHEST_SHARE) else self.below(4, farthest)
                if self.chance(0.5):
                    distance = self.log_uniform(4, farthest)
                position = self.below(0, room - distance)
                tell(fact, position)
                ask(fact, position + distance)
                for _ in range(self.below(0, 3)):
                    ask(fact, position + distance + self.below(1, 200))
        placed.sort(key=lambda part: part[0])
        ids, weights, at = [], [], 0
        for position, part, part_weights in placed:
            ids += [text[at:position], part]
            weights += [np.ones(position - at, np.float32), part_weights]
            at = position
        ids.append(text[at:])
        weights.append(np.ones(length - at, np.float32))
        return np.concatenate(ids)[:length], np.concatenate(weights)[:length]

    def random_words(self, *count):
        return self.random.integers(FIRST_WORD, self.tokenizer.get_piece_size(), count)

    def echoes(self, length):
        """Blocks of random tokens that come again and again; and weights that count what can be known from before."""
        if self.chance(0.3):
            count, size, most_between = self.below(2, 6), self.below(8, 49), 0
            blocks = self.random_words(count, size)
        else:  # like facts: words, a space, five digits; and a few words between them
            count, size, most_between = self.log_uniform(1, 13), self.below(8, 11), 6
            blocks = self.random_words(count, size)
            blocks[:, -6] = self.space
            blocks[:, -5:] = self.digits[self.random.integers(0, 10, (count, 5))]
        ids, weights, known, used = [], [], set(), 0
        while used < length:
            block = self.below(0, count)
            weight = np.full(size, float(block in known), np.float32)
            weight[0] = 0  # which block comes next is open
            between = self.random_words(self.below(0, most_between + 1))
            ids += [blocks[block], between]
            weights += [weight, np.zeros(len(between), np.float32)]
            known.add(block)
            used += size + len(between)
        return np.concatenate(ids)[:length].astype(np.int64), np.concatenate(weights)[:length]

    def conversation(self, length):
        """Neighbouring paragraphs as question and answer; that a question begins does not count in the loss."""
        ids, weights, used = [], [], 0
        while used < length:
            begin = self.below(0, len(self.train) - 2 * length)
            text = self.train[begin : begin + 2 * length].astype(np.int64)
            # Paragraphs: what stands between two line ends of their own, on one line.
            lines = [line[1:] for line in np.split(text, np.flatnonzero(text == self.newline))[1:-1]]
            alone = zip(lines[0:-2], lines[1:-1], lines[2:])
            messages = [line for above, line, below in alone if len(line) in MESSAGE and not len(above) + len(below)]
            for question, answer in zip(messages[0::2], messages[1::2]):
                asked = self.tokenizer.encode(self.tokenizer.decode(question.tolist()))
                ids.append(np.concatenate([[USER], asked, [END, ASSISTANT], answer, [END]]))
                weights.append(np.ones(len(ids[-1]), np.float32))
                weights[-1][0] = 0
                used += len(ids[-1])
        return np.concatenate(ids)[:length], np.concatenate(weights)[:length]

    def sequence(self, length, mixture):
        """length + 1 ids, the first of them BOS, and the weights of all but the first."""
        if self.chance(mixture.echo):
            text, weights = self.echoes(length)
            return np.concatenate([[BOS], text]), weights
        if self.chance(mixture.chat):
            text, weights = self.conversation(length)
            return np.concatenate([[BOS], text]), weights
        begin = self.below(0, len(self.train) - length)
        text = self.train[begin : begin + length].astype(np.int64)
        weights = np.ones(length, np.float32)
        if not self.chance(mixture.plain ** (length / 1024)):
            if self.chance(PASSAGE_SHARE):
                self.with_passages(text)
            else:
                text, weights = self.with_facts(text, mixture)
        elif self.chance(mixture.blank):
            blanks = [self.space] * self.below(1, 4) + [self.newline] * self.below(0, 3)
            text = np.concatenate([blanks, text])[:length]
            weights[: len(blanks)] = 0
        return np.concatenate([[BOS], text]), weights

    def batch(self, count, length, mixture):
        """Inputs, targets and weights, each [count, length]."""
        ids, weights = zip(*(self.sequence(length, mixture) for _ in range(count)))
        ids = np.stack(ids)
        return ids[:, :-1].copy(), ids[:, 1:].copy(), np.stack(weights)

    def recall_batch(self, count, length, depth):
        """Inputs and targets of held-out text with a fact at `depth`, asked for at the end; the digits' targets."""
        rows = []
        for _ in range(count):
            fact = self.fact(known=True)
            filler = length - len(fact.ids) - fact.end
            begin = self.below(0, len(self.held_out) - filler)
            text = self.held_out[begin : begin + filler].astype(np.int64)
            at = int(depth * filler)
            rows.append(np.concatenate([[BOS], text[:at], fact.ids, text[at:], fact.ids[: fact.end]]))
        ids = np.stack(rows)
        return ids[:, :-1].copy(), ids[:, 1:].copy(), slice(length - 5, length)
