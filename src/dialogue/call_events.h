// Makes the pieces of calls: numbers and ids, and arguments that are checked at their end.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dialogue/answer_form.h"

namespace kvasir {

class CallEvents {
 public:
  CallEvents(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed) : rules_(std::move(rules)), seed_(seed) {}

  // Where pieces go until the next call of this.
  void write_to(std::vector<AnswerPiece>& pieces) { pieces_ = &pieces; }

  // Appends to the newest piece if that is of the same kind.
  void text(AnswerPiece::Kind kind, std::string_view text);
  // `id`: as the model wrote it; "", or one that an earlier call has: the call gets one.
  void begin(std::string_view name, std::string_view id = {});
  void arguments(std::string_view text);
  // Ends the call: as one that fails if its arguments are not a JSON object. `raw`: the call as the model wrote it.
  void end(std::string_view raw);
  void fail(std::string_view raw);
  // The answer has ended within the call, whose arguments may be complete all the same.
  void break_off(std::string_view raw);

  bool open() const { return open_; }
  int calls() const { return calls_; }  // that ended well or broke off

 private:
  AnswerPiece& add(AnswerPiece::Kind kind);
  bool has_all_arguments() const;  // they are a JSON object

  std::shared_ptr<const AnswerRules> rules_;
  std::uint64_t seed_;
  std::vector<AnswerPiece>* pieces_ = nullptr;
  int calls_ = 0;
  bool open_ = false;
  std::string arguments_;                   // of the open call
  std::set<std::string, std::less<>> ids_;  // that the model wrote
};

}  // namespace kvasir
