#include "chat/chat_template.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "chat/chat_writer.h"
#include "chat/recognise_template.h"

namespace kvasir {
namespace {

bool is_marker(const Vocabulary& vocabulary, std::size_t token) {
  return vocabulary.kinds[token] == TokenKind::kControl || vocabulary.kinds[token] == TokenKind::kUserDefined;
}

std::optional<TokenId> find_marker(const Vocabulary& vocabulary, std::string_view piece) {
  if (piece.empty()) return std::nullopt;
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i)
    if (vocabulary.pieces[i] == piece && is_marker(vocabulary, i)) return static_cast<TokenId>(i);
  return std::nullopt;
}

std::string piece_of(const Vocabulary& vocabulary, std::optional<TokenId> token) {
  if (!token || *token < 0 || static_cast<std::size_t>(*token) >= vocabulary.pieces.size()) return {};
  return vocabulary.pieces[static_cast<std::size_t>(*token)];
}

// Formats a date like strftime's "%d %b %Y", in English.
std::string date_text(std::time_t now) {
  static constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm date{};
  KVASIR_CHECK(localtime_r(&now, &date) != nullptr);
  return fmt::format("{:02} {} {}", date.tm_mday, kMonths[static_cast<std::size_t>(date.tm_mon)], date.tm_year + 1900);
}

// Makes the `markers` format. Without a <|system|> marker, a system message is written as a user's.
std::optional<ChatFormat> marker_format(const Vocabulary& vocabulary) {
  ChatFormat format;
  for (const char* marker : {"<|user|>", "<|assistant|>", "<|end|>"}) {
    const auto token = find_marker(vocabulary, marker);
    if (!token) return std::nullopt;
    format.reserved.push_back(*token);
  }
  const auto system = find_marker(vocabulary, "<|system|>");
  if (system) format.reserved.push_back(*system);
  format.name = "markers";
  format.user = {"<|user|>", "<|end|>"};
  format.assistant = {"<|assistant|>", "<|end|>"};
  format.system = {system ? "<|system|>" : "<|user|>", "<|end|>"};
  format.late_system = format.system;
  format.open = "<|assistant|>";
  format.end = "<|end|>";
  return format;
}

std::optional<ChatFormat> chatml_format(const Vocabulary& vocabulary) {
  if (!find_marker(vocabulary, "<|im_start|>") || !find_marker(vocabulary, "<|im_end|>")) return std::nullopt;
  ChatFormat format;
  format.name = "chatml";
  format.user = {"<|im_start|>user\n", "<|im_end|>\n"};
  format.assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"};
  format.system = {"<|im_start|>system\n", "<|im_end|>\n"};
  format.late_system = format.system;
  format.open = format.assistant.before;
  format.end = "<|im_end|>";
  return format;
}

ChatFormat plain_format() {
  ChatFormat format;
  format.name = "plain";
  format.control = false;
  format.user = {"User: ", "\n"};
  format.assistant = {"Assistant: ", "\n"};
  format.system = {"System: ", "\n"};
  format.late_system = format.system;
  format.open = "Assistant:";  // the model's first word starts with a space
  format.stops = {"\nUser:", "\nSystem:"};
  return format;
}

// Returns all text that a format writes itself, except its own system messages.
std::string marks_of(const ChatFormat& format) {
  std::string marks = format.open + format.final + format.fold_before + format.fold_after;
  for (const ChatForm* form : {&format.system, &format.late_system, &format.user, &format.assistant})
    marks += form->before + form->after;
  if (format.think_switch) marks += format.think_switch->empty_thought;
  if (format.thoughts != Thoughts::kKept) marks += "<think></think>";
  return marks;
}

}  // namespace

std::string ChatPrompt::text() const {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

ChatTemplate::ChatTemplate(ChatFormat format, const Vocabulary& vocabulary, bool stands_in)
    : format_(std::move(format)), stands_in_(stands_in) {
  const std::string& after = format_.assistant.after;
  const std::size_t end = format_.end.empty() ? 0 : after.find(format_.end);
  KVASIR_CHECK(end != std::string::npos);
  closing_ = {after.substr(0, end), format_.end, after.substr(end + format_.end.size()), format_.control};
  end_token_ = find_marker(vocabulary, format_.end);
  if (!format_.end.empty() && !end_token_) format_.stops.push_back(format_.end);
  if (format_.control && format_.reserved.empty()) reserve(vocabulary);
}

// Contents never produce control tokens. User-defined tokens are reserved only if they look like markers; others, such
// as runs of spaces, may occur in any text.
void ChatTemplate::reserve(const Vocabulary& vocabulary) {
  const std::string marks = marks_of(format_);
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const std::string& piece = vocabulary.pieces[i];
    if (vocabulary.kinds[i] != TokenKind::kUserDefined || piece.size() < 3 || (piece[0] != '<' && piece[0] != '['))
      continue;
    if (marks.find(piece) != std::string::npos) format_.reserved.push_back(static_cast<TokenId>(i));
  }
}

Result<ChatPrompt> ChatTemplate::render(std::span<const ChatMessage> messages, bool open_answer) const {
  return write_chat(format_, messages, {.first = 0, .whole = true, .open_answer = open_answer});
}

Result<ChatPrompt> ChatTemplate::render_next(std::span<const ChatMessage> messages, std::size_t first,
                                             bool open_answer) const {
  return write_chat(format_, messages, {.first = first, .whole = false, .open_answer = open_answer});
}

Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary, std::string_view source,
                                                         std::time_t now) {
  std::optional<ChatFormat> format;
  if (!source.empty())
    format = recognise_template(
        source, {piece_of(vocabulary, vocabulary.bos), piece_of(vocabulary, vocabulary.eos), date_text(now)});
  const bool stands_in = !source.empty() && !format;
  if (!format) format = marker_format(vocabulary);
  if (!format) format = chatml_format(vocabulary);
  if (!format) format = plain_format();
  return std::make_unique<ChatTemplate>(std::move(*format), vocabulary, stands_in);
}

Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, bool start,
                                         bool continues) {
  auto tokens = tokenizer.encode_segments(prompt.segments, false, prompt.reserved, continues);
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (tokens.ok() && start && vocabulary.bos && (prompt.bos || vocabulary.add_bos))
    tokens->insert(tokens->begin(), *vocabulary.bos);
  return tokens;
}

}  // namespace kvasir
