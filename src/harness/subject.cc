#include "harness/subject.h"

#include <array>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::array kReadings = {std::pair(Reading::kTogether, std::string_view("together")),
                                  std::pair(Reading::kContextFirst, std::string_view("context-first")),
                                  std::pair(Reading::kConversation, std::string_view("conversation"))};

}  // namespace

std::string_view reading_name(Reading reading) {
  for (const auto& [kind, name] : kReadings)
    if (kind == reading) return name;
  return "?";
}

Result<Reading> reading_from_name(std::string_view name) {
  for (const auto& [kind, known] : kReadings)
    if (known == name) return kind;
  return invalid_argument("there is no way of reading '{}'; there are together, context-first and conversation",
                          name.substr(0, 64));
}

}  // namespace kvasir
