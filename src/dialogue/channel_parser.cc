#include "dialogue/channel_parser.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dialogue/call_events.h"

namespace kvasir {
namespace {

constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kStart = "<|start|>";
constexpr std::string_view kFunctions = "functions.";
constexpr std::size_t kLongestHeader = 1024;

// Reads messages: [<|start|>assistant] HEADER <|message|> BODY and one of kMessageEnds. The header names the channel
// behind
// <|channel|>, and the recipient behind "to=".
class ChannelParser final : public AnswerParser {
 public:
  ChannelParser(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed)
      : rules_(std::move(rules)), events_(rules_, seed) {}

  void push(std::string_view text, std::vector<AnswerPiece>& pieces) override {
    events_.write_to(pieces);
    buffer_ += text;
    while (step()) {
    }
  }

  void finish(std::vector<AnswerPiece>& pieces) override {
    ending_ = true;
    push("", pieces);
    if (in_body_) {
      say(buffer_);
      if (is_call_) events_.break_off(raw_);
    } else {
      events_.text(AnswerPiece::Kind::kContent, buffer_);
    }
    buffer_.clear();
  }

 private:
  bool step() {
    if (events_.calls() >= rules_->most_calls) {
      buffer_.clear();
      return false;
    }
    return in_body_ ? read_body() : read_header();
  }

  // Whether the text may go on as a header, which begins with one of these.
  static bool may_be_header(std::string_view text) {
    text = trimmed_left(text);
    for (const std::string_view begin : {kStart, kChannel, std::string_view("to="), kMessage})
      if (text.starts_with(begin) || begin.starts_with(text)) return true;
    return false;
  }

  bool read_header() {
    const std::size_t at = buffer_.find(kMessage);
    if (!may_be_header(buffer_) || (at == std::string::npos && buffer_.size() > kLongestHeader)) {
      // Text without a header.
      kind_ = AnswerPiece::Kind::kContent;
      is_call_ = false;
      in_body_ = true;
      if (const std::string_view text = trimmed_left(buffer_); text.starts_with(kStart) || text.starts_with(kChannel))
        say(take(buffer_.find("|>") + 2));
      return true;
    }
    if (at == std::string::npos) return false;
    const std::string header = buffer_.substr(0, at);
    raw_ = take(at + kMessage.size());
    const std::string channel = word_behind(header, kChannel);
    std::string recipient = word_behind(header, "to=");
    if (recipient.starts_with(kFunctions)) recipient.erase(0, kFunctions.size());
    is_call_ = !recipient.empty() && rules_->find_tool(recipient) != nullptr;
    kind_ = channel == "analysis" ? AnswerPiece::Kind::kReasoning : AnswerPiece::Kind::kContent;
    if (is_call_) events_.begin(recipient);
    // A call of no tool is content, whole.
    if (!is_call_ && !recipient.empty()) events_.text(AnswerPiece::Kind::kContent, raw_);
    in_body_ = true;
    return true;
  }

  static std::string word_behind(std::string_view header, std::string_view mark) {
    const std::size_t at = header.find(mark);
    if (at == std::string_view::npos) return {};
    const std::string_view rest = trimmed_left(header.substr(at + mark.size()));
    return std::string(rest.substr(0, rest.find_first_of(" \t\r\n<")));
  }

  bool read_body() {
    for (std::size_t i = 0; i < buffer_.size(); ++i) {
      const std::string_view rest = std::string_view(buffer_).substr(i);
      if (rest[0] == '<' && !quoted_)
        for (const std::string_view end : kMessageEnds) {
          if (rest.starts_with(end)) {
            say(take(i));
            if (end != kStart && end != kChannel) take(end.size());
            end_body();
            return true;
          }
          if (!ending_ && end.starts_with(rest)) {
            say(take(i));
            return false;
          }
        }
      if (is_call_ || (rules_->json_content && kind_ == AnswerPiece::Kind::kContent)) follow(rest[0]);
    }
    say(take(buffer_.size()));
    return false;
  }

  // Follows the quotation marks of JSON: a mark inside a string of them ends nothing.
  void follow(char c) {
    const bool plain = !std::exchange(escaped_, false);
    if (plain && c == '\\') escaped_ = quoted_;
    if (plain && c == '"') quoted_ = !quoted_;
  }

  void say(std::string_view text) {
    if (!is_call_) return events_.text(kind_, text);
    raw_ += text;
    events_.arguments(text);
  }

  void end_body() {
    in_body_ = quoted_ = escaped_ = false;
    if (is_call_) events_.end(raw_);
    is_call_ = false;
  }

  std::string take(std::size_t size) {
    std::string text = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return text;
  }

  std::shared_ptr<const AnswerRules> rules_;
  CallEvents events_;
  std::string buffer_;
  std::string raw_;  // of the message under way, if that is a call
  AnswerPiece::Kind kind_ = AnswerPiece::Kind::kContent;
  bool in_body_ = false, is_call_ = false, ending_ = false;
  bool quoted_ = false, escaped_ = false;  // JSON goes on within a string, behind a backslash
};

}  // namespace

std::unique_ptr<AnswerParser> make_channel_parser(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed) {
  return std::make_unique<ChannelParser>(std::move(rules), seed);
}

}  // namespace kvasir
