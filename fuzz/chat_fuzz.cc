// Any bytes as a chat template's source and as messages: what is written by it, and by all templates of
// tests/chat/templates, keeps contents apart from the template's own text. Only the latter gives control tokens, and an
// answer ends as closing() of our own says.
//
// The input: options, the template's source, then messages, each behind a zero byte: s, u, a or another role, content.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "byte_vocabulary.h"
#include "chat/chat_template.h"
#include "text/tokenizer.h"

namespace {

using namespace kvasir;

constexpr char kSentinel = '\x7F';  // in every content, and in no template of tests/chat/templates

Vocabulary make_vocabulary(TokenKind marks) {
  Vocabulary vocabulary = fuzz::byte_vocabulary();
  for (const char* mark : {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                           "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>",
                           "<|system|>", "<|end|>", "<think>", "</think>"})
    fuzz::add_piece(vocabulary, mark, marks);
  return vocabulary;
}

struct Writer {
  std::unique_ptr<ChatTemplate> chat;
  const Tokenizer* tokenizer;
};

// Made once; one of control tokens, one of user-defined ones.
const std::vector<std::unique_ptr<Tokenizer>>& tokenizers() {
  static const auto made = [] {
    std::vector<std::unique_ptr<Tokenizer>> all;
    for (const TokenKind kind : {TokenKind::kControl, TokenKind::kUserDefined}) {
      auto tokenizer = make_spm_tokenizer(make_vocabulary(kind));
      KVASIR_CHECK(tokenizer.ok());
      all.push_back(std::move(*tokenizer));
    }
    return all;
  }();
  return made;
}

Writer writer_of(const Tokenizer& tokenizer, std::string_view source) {
  auto chat = make_chat_template(
      tokenizer.vocabulary(),
      {.source = std::string(source), .defer_errors = true, .now = 0, .limits = {100'000, 1u << 20, 16u << 20, 100}});
  KVASIR_CHECK(chat.ok());
  return {std::move(*chat), &tokenizer};
}

const std::vector<Writer>& writers() {
  static const std::vector<Writer> made = [] {
    std::vector<Writer> all;
    for (const auto& tokenizer : tokenizers())
      for (const auto& entry : std::filesystem::directory_iterator(KVASIR_TEMPLATES)) {
        std::ifstream file(entry.path(), std::ios::binary);
        all.push_back(writer_of(*tokenizer, std::string(std::istreambuf_iterator<char>(file), {})));
      }
    KVASIR_CHECK(all.size() > 20);
    return all;
  }();
  return made;
}

int count_special(const Tokenizer& tokenizer, const ChatPrompt& prompt, std::span<const TextSegment> segments) {
  const auto tokens = tokenizer.encode_segments(segments, false, prompt.reserved);
  if (!tokens.ok()) return -1;
  int count = 0;
  for (const TokenId token : *tokens) {
    const TokenKind kind = tokenizer.vocabulary().kinds[static_cast<std::size_t>(token)];
    count += kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    for (const TokenId other : prompt.reserved) count += kind == TokenKind::kUserDefined && token == other;
  }
  return count;
}

void check_prompt(const Writer& writer, const Result<ChatPrompt>& prompt, bool sentinel) {
  if (!prompt.ok()) {
    const StatusCode code = prompt.status().code();
    KVASIR_CHECK(code == StatusCode::kInvalidArgument || code == StatusCode::kUnsupported ||
                 code == StatusCode::kResourceExhausted);
    return;
  }
  int from_marks = 0;
  for (const TextSegment& segment : prompt->segments) {
    if (!segment.parse_special) continue;
    if (sentinel) KVASIR_CHECK(segment.text.find(kSentinel) == std::string::npos);
    from_marks += count_special(*writer.tokenizer, *prompt, {&segment, 1});
  }
  const int count = count_special(*writer.tokenizer, *prompt, prompt->segments);
  KVASIR_CHECK(count == -1 || count == from_marks);
}

void check_writer(const Writer& writer, const std::vector<ChatMessage>& messages, bool open_answer, bool sentinel) {
  check_prompt(writer, writer.chat->render(messages, open_answer), sentinel);
  const ChatClosing& closing = writer.chat->closing();
  for (std::size_t first = 0; first < messages.size(); ++first) {
    const auto said = std::span(messages).first(first + 1);
    const auto prompt = writer.chat->render_next(said, first, false);
    check_prompt(writer, prompt, sentinel);
    if (sentinel && prompt.ok() && messages[first].role == "assistant")
      KVASIR_CHECK(prompt->text().ends_with(closing.before + closing.end + closing.after));
  }
}

std::vector<ChatMessage> parse_messages(std::string_view rest) {
  std::vector<ChatMessage> messages;
  while (!rest.empty() && messages.size() < 16) {
    std::string_view message = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(message.size() + 1, rest.size()));
    if (message.empty()) continue;
    const char role = message[0];
    std::string content(message.substr(1));
    content.insert(content.size() / 2, 1, kSentinel);
    messages.push_back({role == 's'   ? "system"
                        : role == 'u' ? "user"
                        : role == 'a' ? "assistant"
                                      : "other",
                        std::move(content)});
  }
  return messages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string_view source = input.substr(0, input.find('\0'));
  const std::vector<ChatMessage> messages = parse_messages(input.substr(std::min(source.size() + 1, input.size())));
  const bool open_answer = (data[0] & 1) != 0;
  check_writer(writer_of(*tokenizers()[data[0] >> 1 & 1], source), messages, open_answer, false);
  check_writer(writers()[(data[0] >> 2) % writers().size()], messages, open_answer, true);
  return 0;
}
