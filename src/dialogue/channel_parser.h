// Reads answers in the channels of gpt-oss ("harmony"): analysis, commentary with calls of tools, final.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <memory>

#include "dialogue/answer_form.h"

namespace kvasir {

std::unique_ptr<AnswerParser> make_channel_parser(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed);

}  // namespace kvasir
