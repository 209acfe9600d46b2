#include "dialogue/json_reader.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace kvasir {
namespace {

constexpr int kDeepestJson = 64;
constexpr std::size_t kLongestKey = 256;

bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

JsonProgress JsonEnd::push(char c) {
  if (!started_) {
    started_ = true;
    if (c != '{' && c != '[' && c != '"') return JsonProgress::kBad;
  }
  if (quoted_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      quoted_ = false;
      if (depth_ == 0) return JsonProgress::kDone;
    }
  } else if (c == '"') {
    quoted_ = true;
  } else if (c == '{' || c == '[') {
    if (++depth_ > kDeepestJson) return JsonProgress::kBad;
  } else if (c == '}' || c == ']') {
    if (--depth_ == 0) return JsonProgress::kDone;
  }
  return JsonProgress::kMore;
}

JsonProgress CallObjectReader::push(char c) {
  if (state_ == State::kValue) return in_value(c);
  if (state_ == State::kKey) {
    if (!escaped_ && c == '"') {
      state_ = State::kColon;
    } else {
      escaped_ = !escaped_ && c == '\\';
      key_ += c;
      if (key_.size() > kLongestKey) return JsonProgress::kBad;
    }
    return JsonProgress::kMore;
  }
  if (is_json_space(c)) return JsonProgress::kMore;
  switch (state_) {
    case State::kOpen:
      if (c != '{') return JsonProgress::kBad;
      level_ = 1;
      state_ = State::kKeyOrEnd;
      return JsonProgress::kMore;
    case State::kKeyOrEnd:
      if (c == '}') return --level_ == 0 ? JsonProgress::kDone : JsonProgress::kMore;
      if (c == ',') return JsonProgress::kMore;
      if (c != '"') return JsonProgress::kBad;
      key_.clear();
      escaped_ = false;
      state_ = State::kKey;
      return JsonProgress::kMore;
    case State::kColon: state_ = State::kValueStart; return c == ':' ? JsonProgress::kMore : JsonProgress::kBad;
    default: return start_value(c);
  }
}

JsonProgress CallObjectReader::start_value(char c) {
  if (!format_->wrapper.empty() && level_ == 1 && key_ == format_->wrapper && c == '{') {
    level_ = 2;
    state_ = State::kKeyOrEnd;
    return JsonProgress::kMore;
  }
  state_ = State::kValue;
  value_.clear();
  end_ = {};
  scalar_ = c != '{' && c != '[' && c != '"';
  return in_value(c);
}

JsonProgress CallObjectReader::in_value(char c) {
  if (scalar_) {
    if (c == ',' || c == '}' || is_json_space(c)) {
      end_value();
      return push(c);
    }
    if (c == '"' || c == '{' || c == '[' || c == ']' || value_.size() > kLongestKey) return JsonProgress::kBad;
  }
  const bool arguments = key_ == format_->arguments_key && (level_ == 2 || format_->wrapper.empty());
  (arguments ? arguments_ : value_) += c;
  if (scalar_) return JsonProgress::kMore;
  const JsonProgress progress = end_.push(c);
  if (progress == JsonProgress::kDone) end_value();
  return progress == JsonProgress::kBad ? progress : JsonProgress::kMore;
}

void CallObjectReader::end_value() {
  state_ = State::kKeyOrEnd;
  if (key_ != format_->name_key || !name_.empty() || (level_ != 2 && !format_->wrapper.empty())) return;
  const auto json = nlohmann::json::parse(value_, nullptr, false);
  if (json.is_string()) name_ = json.get<std::string>();
}

}  // namespace kvasir
