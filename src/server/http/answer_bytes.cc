#include "server/http/answer_bytes.h"

#include <fmt/core.h>

#include <utility>

#include "server/http/http_message.h"

namespace kvasir::server {

void AnswerBytes::begin(bool in_chunks, bool head_only) {
  own_fields_.clear();
  in_chunks_ = in_chunks;
  head_only_ = head_only;
  streams_ = events_ = ended_ = false;
}

void AnswerBytes::add_fields(const HttpFields& fields) {
  for (const auto& field : fields) {
    std::erase_if(own_fields_, [&](const auto& other) { return other.first == field.first; });
    own_fields_.push_back(field);
  }
}

void AnswerBytes::send(int status, std::string_view type, std::string_view body, const HttpFields& fields,
                       bool keep_alive) {
  HttpFields all = std::exchange(own_fields_, {});
  all.insert(all.end(), fields.begin(), fields.end());
  next_ += answer_head(status, type, BodyEnd::kLength, body.size(), all, keep_alive);
  if (!head_only_) next_ += body;
  ended_ = true;
}

void AnswerBytes::begin_stream(const HttpFields& fields, std::string_view type, bool keep_alive) {
  streams_ = true;
  events_ = type == kServerSentEvents;
  HttpFields all = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  all.insert(all.end(), own_fields_.begin(), own_fields_.end());
  all.insert(all.end(), fields.begin(), fields.end());
  next_ += answer_head(200, type, in_chunks_ ? BodyEnd::kChunks : BodyEnd::kConnection, 0, all, keep_alive);
  ended_ = head_only_;
}

std::string_view AnswerBytes::filler() const {
  return events_ ? ": waiting\n\n" : " ";
}

void AnswerBytes::write(std::string_view bytes) {
  if (in_chunks_) next_ += fmt::format("{:x}\r\n", bytes.size());
  next_ += bytes;
  if (in_chunks_) next_ += "\r\n";
}

void AnswerBytes::end() {
  if (in_chunks_) next_ += "0\r\n\r\n";
  ended_ = true;
}

void AnswerBytes::add_continue() {
  if (next_.empty()) next_ += kContinue;
}

std::string_view AnswerBytes::unwritten() {
  if (written_ == out_.size()) {
    out_ = std::exchange(next_, {});
    written_ = 0;
  }
  return std::string_view(out_).substr(written_);
}

}  // namespace kvasir::server
