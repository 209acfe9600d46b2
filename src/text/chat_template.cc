#include "text/chat_template.h"

#include <optional>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

Status check_role(const ChatMessage& message) {
  if (message.role == "system" || message.role == "user" || message.role == "assistant") return {};
  return invalid_argument("the role \"{}\" is not known; use system, user or assistant", message.role);
}

class PlainTemplate final : public ChatTemplate {
 public:
  std::string_view name() const override { return "plain"; }
  std::vector<std::string> stop() const override { return {"\nUser:", "\nSystem:"}; }
  TextSegment closing() const override { return {"\n", false}; }

  Result<ChatPrompt> render(std::span<const ChatMessage> messages, bool open_answer) const override {
    ChatPrompt prompt;
    for (const ChatMessage& message : messages) {
      KVASIR_RETURN_IF_ERROR(check_role(message));
      const char* label = message.role == "user" ? "User: " : message.role == "system" ? "System: " : "Assistant: ";
      prompt.segments.push_back({label + message.content + "\n", false});
    }
    // No space after the colon: the model's first word brings its own.
    if (open_answer) prompt.segments.push_back({"Assistant:", false});
    return prompt;
  }
};

struct Markers {
  TokenValue user;
  TokenValue assistant;
  TokenValue end;
  std::optional<TokenValue> system;
};

class MarkerTemplate final : public ChatTemplate {
 public:
  explicit MarkerTemplate(const Markers& markers)
      : reserved_{markers.user, markers.assistant, markers.end}, has_system_(markers.system.has_value()) {
    if (markers.system) reserved_.push_back(*markers.system);
  }

  std::string_view name() const override { return "markers"; }
  TextSegment closing() const override { return {"<|end|>", true}; }

  Result<ChatPrompt> render(std::span<const ChatMessage> messages, bool open_answer) const override {
    ChatPrompt prompt;
    prompt.reserved = reserved_;
    for (const ChatMessage& message : messages) {
      KVASIR_RETURN_IF_ERROR(check_role(message));
      // Without a marker of its own, an instruction is best heard as something the user says.
      const bool as_user = message.role == "user" || (message.role == "system" && !has_system_);
      prompt.segments.push_back({as_user ? "<|user|>" : "<|" + message.role + "|>", true});
      prompt.segments.push_back({message.content, false});
      prompt.segments.push_back({"<|end|>", true});
    }
    if (open_answer) prompt.segments.push_back({"<|assistant|>", true});
    return prompt;
  }

 private:
  std::vector<TokenValue> reserved_;
  bool has_system_;
};

std::optional<TokenValue> find_marker(const Vocabulary& vocabulary, std::string_view piece) {
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const TokenKind kind = vocabulary.kinds[i];
    if ((kind == TokenKind::kControl || kind == TokenKind::kUserDefined) && vocabulary.pieces[i] == piece) {
      return static_cast<TokenValue>(i);
    }
  }
  return std::nullopt;
}

}  // namespace

Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary, std::string_view /*source*/) {
  const auto user = find_marker(vocabulary, "<|user|>");
  const auto assistant = find_marker(vocabulary, "<|assistant|>");
  const auto end = find_marker(vocabulary, "<|end|>");
  if (user && assistant && end) {
    const Markers markers{*user, *assistant, *end, find_marker(vocabulary, "<|system|>")};
    return std::unique_ptr<ChatTemplate>(std::make_unique<MarkerTemplate>(markers));
  }
  return std::unique_ptr<ChatTemplate>(std::make_unique<PlainTemplate>());
}

Result<std::vector<TokenValue>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, bool add_special,
                                            bool continues) {
  return tokenizer.encode_segments(prompt.segments, add_special, prompt.reserved, continues);
}

}  // namespace kvasir
