// How a task makes an item: all choices are drawn first, and the amount of haystack is found afterwards.
// Thread-safety: Recipe's function may be called from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/generated/draws.h"
#include "tasks/generated/filler.h"
#include "text/tokenizer.h"

namespace kvasir::generated {

struct Turn {
  std::string input;
  std::string answer_prefix;
  std::vector<std::string> outputs;
};

// A model reads context, input and answer prefix of a turn, one after the other with nothing between them, and
// continues with the answer.
struct Prompt {
  std::string context;
  std::vector<Turn> turns;

  // Returns the prompt as one text. With several turns it has their answers too.
  std::string whole() const;
};

// What an item may depend on.
struct ItemInput {
  const Tokenizer& tokenizer;
  const Filler& filler;
  Draws draws;
  std::int64_t tokens = 0;
  std::optional<double> depth;  // of the one needle; drawn if not given
};

struct Recipe {
  // Returns the prompt with this amount of haystack, in units that each task chooses (a word, a line, a sentence). A
  // pure function whose text grows with the amount. It owns what it needs, except the filler.
  std::function<Prompt(std::int64_t amount)> prompt;
  std::int64_t least = 0;       // smallest amount
  std::optional<double> depth;  // of the one needle
};

struct FittedPrompt {
  Prompt prompt;
  std::int64_t tokens = 0;  // of its whole text
};

// Returns the number of tokens of a text without special tokens. Errors: as Tokenizer::encode().
Result<std::int64_t> count_tokens(const Tokenizer& tokenizer, std::string_view text);

// Returns a prompt of at most `tokens` tokens: shorter by tokens / 256 or less, or such that one unit of haystack more
// would make it too long. Encodes some ten prompts, and never more than 100. Errors: kInvalidArgument if the smallest
// prompt is too long, and if the vocabulary leaves so much text out that no amount is enough.
Result<FittedPrompt> fit_prompt(const Tokenizer& tokenizer, const Recipe& recipe, std::string_view task,
                                std::int64_t tokens);

// Returns the input's depth, or draws one of the 40 that RULER has: 0, 0.03, 0.05, ... 1.
double depth_of(ItemInput* input);
double draw_depth(Draws* draws);

enum class NeedleHaystack { kNoise, kEssay, kNeedles };
enum class NeedleText { kNumber, kWords, kUuid };
struct NeedleKind {
  NeedleHaystack haystack = NeedleHaystack::kEssay;
  NeedleText key = NeedleText::kWords;
  NeedleText value = NeedleText::kNumber;
  int keys = 1;
  int values = 1;   // per key
  int queries = 1;  // keys asked for
};

// RULER's tasks. REQUIRES: filler not empty where the haystack is kEssay.
Recipe needles(const NeedleKind& kind, ItemInput input);
Recipe variable_tracking(ItemInput input);
Recipe common_words(ItemInput input);
Recipe frequent_words(ItemInput input);
Recipe documents(bool two_hops, ItemInput input);

// Those of others.
Recipe passkey(ItemInput input);
Recipe arithmetic_chain(ItemInput input);
Recipe copying(ItemInput input);
Recipe secret_number(ItemInput input);
enum class KeyValues { kOne, kSeveral, kTurns };
Recipe key_values(KeyValues asked, ItemInput input);

}  // namespace kvasir::generated
