// Parts of an answer as they are generated: text, thoughts, and calls of tools.
// Thread-safety: plain values.
#pragma once

#include <string>

namespace kvasir::server {

struct AnswerPiece {
  enum class Kind {
    kContent,        // `text` follows in the answer
    kReasoning,      // `text` follows in the thoughts before the answer
    kCallBegin,      // call number `call` begins: `id` and `name`
    kCallArguments,  // `text` follows in the arguments of call number `call`, a JSON object
    kCallEnd,        // the arguments of call number `call` are complete
  };
  Kind kind = Kind::kContent;
  int call = 0;  // counts the calls of one answer, from 0
  std::string id;
  std::string name;
  std::string text;
};

}  // namespace kvasir::server
