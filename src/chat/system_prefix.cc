#include "chat/system_prefix.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {
namespace {

// Two texts of a user that share no prefix: the common prefix of both conversations ends before the user's text.
constexpr std::string_view kOneText = "a";
constexpr std::string_view kOtherText = "7";

std::optional<ChatPrompt> asked(const ChatTemplate& chat, std::vector<ChatMessage> messages, std::string_view text) {
  messages.push_back({"user", std::string(text)});
  Result<ChatPrompt> prompt = chat.render(messages, false);
  return prompt.ok() ? std::optional(std::move(*prompt)) : std::nullopt;
}

std::string common_prefix(const std::string& a, const std::string& b) {
  return a.substr(0, static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin()));
}

// Returns whether `opening`, the start of a conversation, is merely what opens any turn of the user.
bool opens_any_turn(const ChatTemplate& chat, const std::string& opening) {
  const std::vector<ChatMessage> said = {{"user", "a"}, {"assistant", "b"}};
  const auto one = asked(chat, said, kOneText), other = asked(chat, said, kOtherText);
  return one && other && common_prefix(one->text(), other->text()).ends_with(opening);
}

}  // namespace

std::int64_t system_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat,
                           std::span<const ChatMessage> messages) {
  const auto first_other = std::ranges::find_if(messages, [](const ChatMessage& m) { return m.role != "system"; });
  const std::vector<ChatMessage> system(messages.begin(), first_other);
  const auto one = asked(chat, system, kOneText), other = asked(chat, system, kOtherText);
  if (!one || !other || one->text() == other->text() || opens_any_turn(chat, common_prefix(one->text(), other->text())))
    return 0;
  const auto tokens = encode_chat(tokenizer, *one), others = encode_chat(tokenizer, *other);
  if (!tokens.ok() || !others.ok()) return 0;
  return std::ranges::mismatch(*tokens, *others).in1 - tokens->begin();
}

}  // namespace kvasir
