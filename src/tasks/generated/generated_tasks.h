// Tasks for long contexts that are generated from a seed, at any length: nothing is downloaded.
//
// They are the thirteen tasks of RULER (github.com/NVIDIA/RULER, Apache-2.0) with its prompts and sizes, and some of
// others. README.md of this folder says how they differ from the originals.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct GeneratedTask {
  std::string_view name;
  std::string_view summary;
  bool turns = false;     // several questions on one context
  bool depth = false;     // has one needle, whose depth may be chosen
  bool filler = false;    // hides its facts in GenerateItems::filler
  int answer_tokens = 0;  // enough for an answer of one turn
  std::string_view metric = "string_match_all";
};

std::span<const GeneratedTask> generated_tasks();
// Returns null if there is no task of that name.
const GeneratedTask* find_generated_task(std::string_view name);

struct GenerateItems {
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
  static constexpr std::int64_t kMostItems = 100000;

  std::string task;
  std::int64_t tokens = 4096;  // of a prompt, answer prefix included, without special tokens: at most this many
  int count = 10;              // of items; with depths: of items per depth
  std::uint64_t seed = 1;
  std::vector<double> depths;  // of tasks with one needle: 0 is the start of the text, 1 its end; empty: drawn
  std::string_view filler;     // UTF-8; repeated if a prompt needs more. Need not outlive the call
};

// An item in the format of RULER's files:
//   {"index": 0, "input": "...", "outputs": ["..."], "length": 4090, "answer_prefix": "...", "depth": 0.5}
// The model reads input and answer_prefix, with nothing between them. An answer is right if it has all outputs.
// "length" counts their tokens. "depth" is there for tasks with one needle.
//
// An item of a task with turns:
//   {"index": 0, "context": "...", "turns": [{"input": "...", "outputs": ["..."], "answer_prefix": "..."}], "length":
//   9}
// The model reads context, input and answer_prefix of the first turn; after its answer, those of the next turn.
// "length" counts the tokens of the context and of all turns with their right answers.
//
// A prompt has at most `tokens` tokens. It is shorter by 3% or less, or there would be no room for one more unit of its
// haystack: a word, a sentence of about 10 words, a pair of UUIDs, or in cwe up to three list entries.
//
// Item i has depth depths[i % depths.size()] and the draws of trial i / depths.size(); without depths, of trial i. A
// trial has the same needle at all depths. An item depends on task, tokens, seed, trial, depth, tokenizer and filler,
// so a larger count appends items and changes none. Equal input gives equal bytes on every machine.
using GeneratedItem = nlohmann::ordered_json;

// Generates items one at a time. The tokenizer must outlive it.
class GeneratedItems {
 public:
  // Errors: kInvalidArgument for an unknown task, values out of range, depths for a task that has not one needle, and a
  // filler that is not UTF-8 or has fewer than 64 words where the task needs one.
  static Result<GeneratedItems> create(const Tokenizer& tokenizer, const GenerateItems& options);

  std::int64_t count() const;

  // Errors: kInvalidArgument if `tokens` has no room for the task; as Tokenizer::encode().
  // REQUIRES: 0 <= index < count().
  Result<GeneratedItem> item(std::int64_t index) const;

  GeneratedItems(GeneratedItems&&) noexcept;
  GeneratedItems& operator=(GeneratedItems&&) noexcept;
  ~GeneratedItems();

 private:
  struct State;
  explicit GeneratedItems(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

// Returns all items. Errors: as GeneratedItems.
Result<std::vector<GeneratedItem>> generate_items(const Tokenizer& tokenizer, const GenerateItems& options);

}  // namespace kvasir
