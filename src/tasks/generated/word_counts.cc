// RULER's cwe and fwe: the most frequent words of a list, and of a text in code.
#include <algorithm>
#include <memory>
#include <set>

#include "tasks/generated/recipe.h"
#include "tasks/generated/words.h"

namespace kvasir::generated {
namespace {

constexpr std::size_t kCommon = 10;
constexpr std::int64_t kLeastWords = 20;

struct Repeats {
  int common = 0;
  int others = 0;
};

// How often words occur in the example and in the list that is asked about.
struct CommonWordsSizes {
  std::int64_t example_words = 0;
  Repeats example;
  Repeats list;
};
constexpr CommonWordsSizes kShortPrompt{20, {3, 1}, {6, 1}};
constexpr CommonWordsSizes kLongPrompt{40, {10, 3}, {30, 3}};  // from 4096 tokens on

std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : " ") + std::to_string(i + 1) + ". " + words[i];
  return text;
}

Prompt word_list(const std::vector<std::string>& words, Repeats repeats, std::uint64_t seed) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < words.size(); ++i)
    list.insert(list.end(), static_cast<std::size_t>(i < kCommon ? repeats.common : repeats.others), words[i]);
  Draws(seed).shuffle(&list);
  Prompt prompt;
  prompt.context =
      "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
      "appear most often.\n" +
      numbered(list);
  prompt.turns.push_back({"\nQuestion: What are the 10 most common words in the above list?",
                          " Answer: The top 10 words that appear most often in the list are:",
                          {words.begin(), words.begin() + kCommon}});
  return prompt;
}

std::vector<std::string> shuffled_words(Draws* draws) {
  std::vector<std::string> words(adjectives().begin(), adjectives().end());
  words.insert(words.end(), nouns().begin(), nouns().end());
  draws->shuffle(&words);
  return words;
}

// Draws of one item of cwe.
struct CommonWords {
  CommonWordsSizes sizes;
  std::string example;
  std::vector<std::string> words;  // if the list needs no more words than these
  bool in_pairs = false;           // it needs more: all its words are pairs
  WordSequence pairs;
  std::uint64_t seed = 0;

  Prompt prompt(std::int64_t amount) const {
    std::vector<std::string> chosen;
    chosen.reserve(static_cast<std::size_t>(amount));
    for (std::int64_t i = 0; i < amount; ++i)
      chosen.push_back(in_pairs ? pairs.at(i) : words[static_cast<std::size_t>(i)]);
    Prompt made = word_list(chosen, sizes.list, seed);
    made.context = example + made.context;
    return made;
  }
};

CommonWords draw_common_words(const CommonWordsSizes& sizes, Draws draws) {
  std::vector<std::string> shown = shuffled_words(&draws);
  shown.resize(static_cast<std::size_t>(sizes.example_words));
  std::string example = word_list(shown, sizes.example, draws.next()).whole();
  shown.resize(kCommon);
  example += " " + numbered(shown) + "\n";
  std::vector<std::string> words = shuffled_words(&draws);
  WordSequence pairs(&draws);
  return {sizes, std::move(example), std::move(words), false, pairs, draws.next()};
}

// Returns false as well if the text cannot be encoded: the search for the amount reports that.
bool is_longer(const ItemInput& input, const Prompt& prompt) {
  const auto tokens = count_tokens(input.tokenizer, prompt.whole());
  return tokens.ok() && *tokens > input.tokens;
}

// How often the words of fwe occur in a text of `amount` words, the k-th of them amount / (zeta(2) k^2) times.
std::int64_t occurrences(std::int64_t amount, std::size_t rank) {
  constexpr double kZeta2 = 1.6449340668482264;
  const auto k = static_cast<double>(rank);
  return static_cast<std::int64_t>(static_cast<double>(amount) / (kZeta2 * k * k));
}

}  // namespace

Recipe common_words(ItemInput input) {
  CommonWords made = draw_common_words(input.tokens < 4096 ? kShortPrompt : kLongPrompt, input.draws);
  if (is_longer(input, made.prompt(kLeastWords))) made = draw_common_words(kShortPrompt, input.draws);
  made.in_pairs = !is_longer(input, made.prompt(static_cast<std::int64_t>(made.words.size())));
  // The search may ask for more words than there are; it stops long before.
  const auto shared = std::make_shared<const CommonWords>(std::move(made));
  const auto most = static_cast<std::int64_t>(shared->words.size());
  return {[shared, most](std::int64_t amount) {
            return shared->prompt(shared->in_pairs ? amount : std::min(amount, most));
          },
          kLeastWords};
}

Recipe frequent_words(ItemInput input) {
  constexpr std::int64_t kTokensPerWord = 50;  // RULER's size of the vocabulary
  // From this amount on the third of the words asked for occurs more often than any that is not.
  constexpr std::int64_t kLeastAmount = 74;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(input.tokens / kTokensPerWord, 5));
  std::vector<std::string> words{"..."};  // the most frequent word is noise
  std::set<std::string> known;
  while (words.size() < size)
    if (const std::string word = input.draws.letters(6, 'a'); known.insert(word).second) words.push_back(word);
  return {[words = std::move(words), seed = input.draws.next()](std::int64_t amount) {
            std::vector<std::string_view> text;
            for (std::size_t i = 0; i < words.size(); ++i)
              text.insert(text.end(), static_cast<std::size_t>(occurrences(amount, i + 1)), words[i]);
            Draws(seed).shuffle(&text);
            Prompt prompt;
            prompt.context =
                "Read the following coded text and track the frequency of each coded word. Find the three most "
                "frequently appeared coded words.";
            for (const std::string_view word : text) (prompt.context += ' ') += word;
            prompt.turns.push_back(
                {"\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
                 "frequently appeared words in the above coded text?",
                 " Answer: According to the coded text above, the three most frequently appeared words are:",
                 {words.begin() + 1, words.begin() + 4}});
            return prompt;
          },
          kLeastAmount};
}

}  // namespace kvasir::generated
