#include "chat/chat_transcript.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

using Kind = ChatEnding::Kind;

bool is_role(std::string_view role) {
  return role == "system" || role == "user" || role == "assistant";
}

}  // namespace

Result<ChatTranscript> ChatTranscript::from_state(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                                  ChatState state) {
  const auto damaged = [](const char* what) { return data_loss("the state of a conversation is damaged: {}", what); };
  for (const ChatMessage& message : state.messages)
    if (!is_role(message.role)) return damaged("a message has no known role");
  if (state.started && state.messages.empty()) return damaged("it has started, but has no message");
  const ChatEnding& ending = state.ending;
  if (ending.kind < Kind::kClosed || ending.kind > Kind::kStop) return damaged("its ending is unknown");
  if (!state.started && ending.kind != Kind::kClosed && ending.kind != Kind::kEndToken)
    return damaged("a message is open, but none has entered the context");
  const bool is_token =
      ending.token >= 0 && static_cast<std::size_t>(ending.token) < tokenizer.vocabulary().pieces.size();
  if (ending.kind == Kind::kEndToken ? !is_token || !tokenizer.is_end(ending.token) : ending.token != kNoToken)
    return damaged("its end token does not fit its ending");
  const std::vector<std::string>& stops = chat.stop();
  if (ending.kind == Kind::kStop ? std::find(stops.begin(), stops.end(), ending.stop) == stops.end()
                                 : !ending.stop.empty())
    return damaged("its stop string does not fit its ending");
  ChatTranscript transcript(tokenizer, chat);
  transcript.messages_ = std::move(state.messages);
  transcript.started_ = state.started;
  transcript.ending_ = std::move(state.ending);
  return transcript;
}

Result<ChatTranscript::Rendered> ChatTranscript::render(std::string_view role, std::string_view content,
                                                        const ContextEnd& context) const {
  const ChatMessage message = {std::string(role), std::string(content)};
  return render(std::span(&message, 1), context);
}

Result<ChatTranscript::Rendered> ChatTranscript::render(std::span<const ChatMessage> messages,
                                                        const ContextEnd& context) const {
  KVASIR_CHECK(!messages.empty());
  Rendered rendered;
  rendered.position = messages_.size();
  rendered.opens_answer = messages.back().role == "user";
  bool fills = messages.front().role == "assistant" && ending_.kind == Kind::kAwaited;
  std::vector<ChatMessage> all = messages_;
  std::size_t first = all.size();
  for (const ChatMessage& message : messages) {
    KVASIR_RETURN_IF_ERROR(check_utf8(message.content));  // encoding would count the template's bytes, too
    const bool asked = !all.empty() && all.back().role == "user";
    if (all.size() == messages_.size()) {
      // The context holds the opening of this empty answer: only its closing is missing.
      if (asked && !fills) all.push_back({"assistant", ""});
      first = all.size();
    } else if (asked && message.role != "assistant") {
      all.push_back({"assistant", ""});
    }
    all.push_back(message);
  }
  rendered.messages.assign(all.begin() + static_cast<std::ptrdiff_t>(messages_.size()), all.end());
  KVASIR_ASSIGN_OR_RETURN(ChatPrompt prompt, render_newest(all, first, &fills));
  rendered.waits = prompt.segments.empty();
  if (!rendered.waits) {
    KVASIR_ASSIGN_OR_RETURN(rendered.tokens, encode(std::move(prompt), fills, context));
  }
  return rendered;
}

void ChatTranscript::add(Rendered message, std::int64_t read) {
  KVASIR_CHECK(message.position == messages_.size());
  const auto size = static_cast<std::int64_t>(message.tokens.size());
  KVASIR_CHECK(read >= 0 && read <= size);
  if (read == 0 && !message.waits) return;
  std::move(message.messages.begin(), message.messages.end(), std::back_inserter(messages_));
  if (message.waits) return;
  started_ = true;
  ending_ = {};
  if (message.opens_answer) ending_.kind = Kind::kAwaited;
  if (read < size) ending_.kind = Kind::kOpen;
}

void ChatTranscript::add_text() {
  if (ending_.kind != Kind::kClosed) begin_answer();
}

void ChatTranscript::begin_answer() {
  ending_ = {};
  if (started_) ending_.kind = Kind::kOpen;
}

void ChatTranscript::end_answer(const Answer& answer, std::span<const TokenId> newest) {
  ending_ = ending_of(answer, newest);
  if (!started_) return;
  if (messages_.empty() || messages_.back().role != "assistant") messages_.push_back({"assistant", ""});
  messages_.back().content += answer.text;
}

std::span<const std::string> ChatTranscript::stops() const {
  if (!started_) return {};
  return chat_->stop();
}

// Writes messages[first, ...). `fills`, on input: the context already ends with the opening of this answer, which is
// then not written again. On output: false if the template would open it differently. An opening that lets the model
// think (DeepSeek R1) is filled behind an empty thought, as such models write it.
Result<ChatPrompt> ChatTranscript::render_newest(std::span<const ChatMessage> messages, std::size_t first,
                                                 bool* fills) const {
  KVASIR_ASSIGN_OR_RETURN(ChatPrompt prompt, chat_->render_next(messages, first, messages.back().role == "user"));
  if (!*fills || prompt.segments.empty()) return prompt;
  KVASIR_ASSIGN_OR_RETURN(const ChatPrompt opened, chat_->render_next(messages.first(first), first, true));
  const std::string start = opened.text();
  std::string& text = prompt.segments.front().text;
  const auto common = static_cast<std::size_t>(
      std::mismatch(start.begin(), start.end(), text.begin(), text.end()).first - start.begin());
  const std::string_view more = std::string_view(start).substr(common);
  *fills = more.empty() || more.starts_with("<think>");
  if (!*fills) return prompt;
  const bool thinks = !more.empty() && more.find("</think>") == std::string_view::npos;
  text.replace(0, common, thinks ? "\n</think>\n\n" : "");
  return prompt;
}

// Returns the tokens that close the previous message, followed by the message's own.
Result<std::vector<TokenId>> ChatTranscript::encode(ChatPrompt message, bool fills, const ContextEnd& context) const {
  const bool in_text = ends_in_text(context.newest);
  if (fills) return encode_chat(*tokenizer_, message, false, in_text);
  const ChatClosing& closing = chat_->closing();
  std::vector<TextSegment>& segments = message.segments;
  if (ending_.kind == Kind::kEndToken) {
    segments.insert(segments.begin(), {closing.after, closing.control});
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, encode_chat(*tokenizer_, message, false));
    tokens.insert(tokens.begin(), ending_.token);
    return tokens;
  }
  if (ending_.kind != Kind::kClosed) {
    const std::string opened = closing.before + closing.end + closing.after + segments.front().text;
    if (ending_.kind == Kind::kStop && opened.starts_with(ending_.stop)) {
      // The model already wrote the start of this message: only the rest is missing.
      segments.front().text = opened.substr(ending_.stop.size());
    } else {
      KVASIR_ASSIGN_OR_RETURN(std::string missing, missing_closing(context.newest));
      segments.insert(segments.begin(), {std::move(missing), closing.control});
    }
  }
  return encode_chat(*tokenizer_, message, context.tokens == 0, in_text);
}

// Returns the part of the template's closing text that the end of the context lacks.
Result<std::string> ChatTranscript::missing_closing(std::span<const TokenId> newest) const {
  const ChatClosing& closing = chat_->closing();
  KVASIR_ASSIGN_OR_RETURN(const bool closed, ends_with_closing(closing.end + closing.after, newest));
  if (closed) return std::string();
  if (!newest.empty() && tokenizer_->is_end(newest.back())) return closing.after;
  KVASIR_ASSIGN_OR_RETURN(const bool ended, ends_with_closing(closing.end, newest));
  return ended ? closing.after : closing.before + closing.end + closing.after;
}

// Returns whether the context ends with `text`, a part of the closing text. Compares tokens if the template closes with
// a control token, else bytes.
Result<bool> ChatTranscript::ends_with_closing(std::string_view text, std::span<const TokenId> newest) const {
  if (!chat_->closing().control || !chat_->end_token()) return ends_with(text, newest);
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                          tokenizer_->encode(text, {.add_special = false, .parse_special = true, .continues = true}));
  return newest.size() >= tokens.size() && std::equal(tokens.rbegin(), tokens.rend(), newest.rbegin());
}

ChatEnding ChatTranscript::ending_of(const Answer& answer, std::span<const TokenId> newest) const {
  if (answer.finish_reason == FinishReason::kEnd) {
    KVASIR_CHECK(answer.end_token.has_value());
    return {Kind::kEndToken, *answer.end_token, {}};
  }
  if (!started_) return {};
  // The stop string may be one of the caller's, not of the template.
  if (answer.finish_reason == FinishReason::kStop && !answer.mid_character)
    for (const std::string& stop : chat_->stop())
      if (ends_with(stop, newest)) return {Kind::kStop, kNoToken, stop};
  return {Kind::kOpen, kNoToken, {}};
}

bool ChatTranscript::ends_with(std::string_view text, std::span<const TokenId> newest) const {
  std::string end;
  for (auto token = newest.rbegin(); token != newest.rend() && end.size() < text.size(); ++token)
    end.insert(0, tokenizer_->bytes_of(*token));
  return end.ends_with(text);
}

// Returns whether the context ends in plain text, that is not with a control or user-defined token.
bool ChatTranscript::ends_in_text(std::span<const TokenId> newest) const {
  if (newest.empty()) return false;
  const TokenKind kind = tokenizer_->vocabulary().kinds[static_cast<std::size_t>(newest.back())];
  return kind != TokenKind::kControl && kind != TokenKind::kUserDefined;
}

}  // namespace kvasir
