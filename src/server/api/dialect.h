// What an API makes of a completion: how its bodies are read, and how its answers are written. A Flight is the same for
// all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/answer.h"
#include "kvasir/engine.h"
#include "kvasir/model_text.h"
#include "server/api/api_request.h"
#include "server/api/api_response.h"
#include "server/http/exchange.h"

namespace kvasir::server {

// What the end of an answer reports about all of its choices.
struct AnswerTotals {
  Usage usage;
  double seconds = 0;  // since the request arrived
  // Members that Kvasir adds to an answer, "kv_hints" and "session"; null: none.
  const nlohmann::json* extras = nullptr;
};

// Writes the answer of one completion: whole, or as the parts of a stream. Calls come in this order: start(), then
// ended() for each choice, and whole(); or start(), begin(), for each choice pieces() any number of times and
// end_choice(), and end(). failure() may take the place of any call after begin(). Thread-safety: made on any thread,
// then the I/O thread's alone.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // `prompt_tokens`: of all prompts; 0 for a session, where they are not known yet.
  virtual void start(const AnswerHead& head, std::int64_t prompt_tokens) = 0;

  // A choice has ended, others perhaps not: time for work that is long for the I/O thread if it is done for all at
  // once.
  virtual void ended(const Choice&) {}
  // Returns the whole body. REQUIRES: choices not empty, in order of index.
  virtual std::string whole(std::span<const Choice> choices, const AnswerTotals& totals) = 0;

  virtual std::string_view stream_type() const { return kServerSentEvents; }
  // Each returns the bytes that the stream goes on with; may be empty. `tokens`: with log-probabilities, those of this
  // part.
  virtual std::string begin(std::span<const Choice> choices) = 0;
  virtual std::string pieces(const Choice& choice, std::span<const AnswerPiece> pieces,
                             std::span<const GeneratedToken> tokens) = 0;
  virtual std::string end_choice(const Choice& choice, std::span<const GeneratedToken> tokens) = 0;
  virtual std::string end(const AnswerTotals& totals) = 0;
  virtual std::string failure(const ErrorText& error) = 0;
};

// What is known beside a body that is read.
struct ReadContext {
  const HttpRequest& http;  // its body may be elsewhere
  const Caller& caller;
  const ModelText& text;
  const ModelSummary& model;
  SamplingOptions sampling;  // of requests that give no temperature
};

struct ReadBody {
  ApiRequest request;
  std::unique_ptr<AnswerWriter> writer;
  // The whole answer, of a body that asks for no text; "" for others, which become requests of the engine.
  std::string at_once = {};
};

// Thread-safety: immutable.
class Dialect {
 public:
  virtual ~Dialect() = default;

  virtual std::string_view id_prefix() const = 0;  // of answers' ids: "chatcmpl-"
  virtual ErrorForm error_form() const = 0;
  // Returns the name of the model that a body means by "model". Called on the I/O thread.
  virtual std::string model_of(std::string named) const { return named; }
  // Reads a body, on the text thread. Errors: kInvalidArgument and kUnsupported, about() the field; kNotFound.
  virtual Result<ReadBody> read(const nlohmann::json& body, const ReadContext& context) const = 0;
};

// Returns an answer as a message of the assistant: its parts put together, or its text where it was not parsed.
Message message_of(const Choice& choice);

}  // namespace kvasir::server
