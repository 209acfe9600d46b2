// Answers in parts: thoughts, text and calls of tools, told apart while the answer is generated.
//
//   kvasir::PromptTokens prompt = *model_text.encode_prompt(options);
//   if (prompt.answer != nullptr) {                     // null: the text is the answer
//     options.generate.show_special = true;
//     std::unique_ptr<kvasir::AnswerParser> parser = prompt.answer->parser(seed);
//     parser->push(event.text, pieces);                 // for each kText event of one sample
//     parser->finish(pieces);                           // at its end
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/request.h"

namespace kvasir {

// A part of an answer, in order of the text. Calls do not overlap: after kCallBegins come kArguments of that call, then
// kCallEnds, kCallBreaks or kCallFails.
struct AnswerPiece {
  enum class Kind {
    kContent,     // `text`
    kReasoning,   // `text`
    kCallBegins,  // `id` and `name`, of one of the request's tools
    kArguments,   // `text`: the next part of a JSON object
    kCallEnds,    // the arguments are complete, valid JSON. `text`: the call as the model wrote it
    kCallBreaks,  // the answer has ended within the call: its arguments are only the start of a JSON object
    kCallFails,   // the arguments are no JSON object: there is no such call. `text`: what the model wrote, the call's
                  // opening included, which is content
  };
  Kind kind = Kind::kContent;
  int call = 0;  // of calls: index among the answer's calls that began, from 0
  std::string text;
  std::string id;
  std::string name;
};

// Reads one answer. Thread-safety: none.
class AnswerParser {
 public:
  virtual ~AnswerParser() = default;

  // Reads the next part of the text, control tokens by name, and appends what it completes. Holds back what may be the
  // start of a marker. A call that cannot be read becomes content, whole.
  virtual void push(std::string_view text, std::vector<AnswerPiece>& pieces) = 0;

  // The answer has ended. Appends what was held back.
  virtual void finish(std::vector<AnswerPiece>& pieces) = 0;
};

// How answers to one request are written. Thread-safety: immutable.
class AnswerForm {
 public:
  virtual ~AnswerForm() = default;

  // `seed`: the ids of the answer's calls depend on it; different for every answer of a server.
  virtual std::unique_ptr<AnswerParser> parser(std::uint64_t seed) const = 0;
};

// A whole answer.
struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  bool broken = false;  // the answer has ended within the last call: its arguments are only the start of an object

  // Appends pieces in their order.
  void add(const AnswerPiece& piece);
};

}  // namespace kvasir
