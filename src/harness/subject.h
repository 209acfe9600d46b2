// What an evaluation asks: an engine of this process, or a server.
// Thread-safety: one call at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "tasks/task.h"

namespace kvasir {

// In which order a model reads what a question is about and the question.
enum class Reading {
  kTogether,      // both are one prompt: policies that act when a prompt ends have seen the question
  kContextFirst,  // the context is a prompt of its own, from which each of its questions continues apart
  kConversation,  // the context, then question after question, each behind the right answers to those before it
};

std::string_view reading_name(Reading reading);
Result<Reading> reading_from_name(std::string_view name);

// How all questions of a run are asked.
struct AskOptions {
  TaskRequest request = TaskRequest::kGenerate;
  Reading reading = Reading::kTogether;
  Truncation truncation = Truncation::kMiddle;
  bool chat = false;              // asks in a user's message, in the form of the chat template
  std::vector<std::string> stop;  // kGenerate
  std::int64_t max_tokens = 128;  // kGenerate
  std::int64_t min_tokens = 0;    // kGenerate: before so many nothing ends the answer
  std::string policy;             // of an engine; empty: its own
  std::string codec;              // of an engine; empty: its own
  std::int64_t room = 0;          // tokens of a prompt and its answer; 0: the model's trained context
  int parallel = 8;               // items under way at a time
};

// Checks that a task can be asked in this way. Errors: kInvalidArgument, kUnsupported.
Status check_asking(TaskRequest request, const AskOptions& options, bool by_endpoint);

// The log-likelihood of one text behind a prompt.
struct TextScore {
  double log_likelihood = 0;  // natural logarithm, sum over its tokens
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  bool greedy = true;  // greedy decoding would write it
};

struct QuestionAnswer {
  Status status;                  // why there is no answer; otherwise ok
  std::string text;               // kGenerate
  std::vector<TextScore> scores;  // kChoices: one for each; kRolling: one
  double seconds = 0;             // of the answer, waiting for other questions included
  // Of these a server says nothing, or not all: nullopt is what is not known.
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> cached_tokens;  // of these, what an earlier question's prompt left
  std::optional<std::int64_t> answer_tokens;  // generated, or scored
  std::optional<std::int64_t> left_out;       // tokens of the prompt that the context had no room for
  std::optional<double> prompt_seconds;       // waiting for other questions included
  std::optional<std::int64_t> kept;           // most tokens that a pass saw in a layer
  std::optional<std::uint64_t> kv_bytes;      // most that its cache held
};

class Subject {
 public:
  virtual ~Subject() = default;

  // Returns who was asked, for results: a model and its fingerprint, kernels and threads; or an address.
  virtual nlohmann::ordered_json identity() const = 0;

  // Gets the answer to question `question` of item `item`. Returns false to stop.
  using OnAnswer = std::function<bool(std::size_t item, std::size_t question, QuestionAnswer answer)>;

  // Asks all questions of the items. Answers come in the order in which they are complete. A question that cannot be
  // asked, such as one that is too long, has an answer that says so. After `on_answer` returns false it is not called
  // again. `tick` (may be empty) is called between passes and returns false to stop. Errors: those that leave no other
  // question an answer, such as a server that cannot be reached; kCancelled. REQUIRES: check_asking(...).ok().
  virtual Status ask(std::span<const TaskItem* const> items, const AskOptions& options, const OnAnswer& on_answer,
                     const std::function<bool()>& tick) = 0;
};

}  // namespace kvasir
