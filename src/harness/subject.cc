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

Status check_asking(TaskRequest request, const AskOptions& options, bool by_endpoint) {
  if (options.chat && options.reading == Reading::kConversation)
    return unsupported("a conversation is read as plain text: the chat template would close each answer");
  if (request == TaskRequest::kRolling && (options.chat || options.reading != Reading::kTogether))
    return invalid_argument("a rolling task scores a text, which is neither a chat nor read in parts");
  if (!by_endpoint) return {};
  if (options.reading == Reading::kContextFirst)
    return unsupported("a server reads a context and its question together; reading the context first needs a model");
  if (options.chat && request != TaskRequest::kGenerate)
    return unsupported("a server gives no log-likelihoods of chats");
  if (options.room > 0)
    return invalid_argument("a server has a context of its own, and shortens prompts itself or not at all");
  if (!options.policy.empty() || !options.codec.empty())
    return invalid_argument("a server has a cache of its own, which its own options set");
  return {};
}

Result<Reading> reading_from_name(std::string_view name) {
  for (const auto& [kind, known] : kReadings)
    if (known == name) return kind;
  return invalid_argument("there is no way of reading '{}'; there are together, context-first and conversation",
                          name.substr(0, 64));
}

}  // namespace kvasir
