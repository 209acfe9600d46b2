// Reads answers with thoughts between two marks, and calls in the forms of CallFormat.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <memory>

#include "dialogue/answer_form.h"

namespace kvasir {

std::unique_ptr<AnswerParser> make_answer_parser(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed);

}  // namespace kvasir
