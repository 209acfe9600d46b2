#include "tasks/golden_text.h"

#include <fmt/core.h>

#include "tasks/plain_text.h"

namespace kvasir {

std::string golden_text(const Question& question) {
  const std::string before = question.prompt + question.answer_prefix;
  const bool apart = before.empty() || question.golden.empty() ||
                     kAsciiWhiteSpace.find(before.back()) != std::string_view::npos ||
                     kAsciiWhiteSpace.find(question.golden.front()) != std::string_view::npos;
  return fmt::format("{}{}\n", apart ? "" : " ", question.golden);
}

}  // namespace kvasir
