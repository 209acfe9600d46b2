// Status and Result<T>: how every expected failure is reported.
//
// An expected failure (bad file, bad option, no memory left) is a Status with a one-line message that says what is
// wrong and how to mend it, in words that suit every front end. settings() names the options concerned by their fields,
// such as `kv_memory`; a front end substitutes its own spelling (--kv-memory). A bug is a KVASIR_CHECK
// (src/base/check.h). Nothing in the library throws across its API.
// Thread-safety: values; safe to copy between threads.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // an option or an input is wrong: the caller can mend it
  kNotFound,           // a file or a name that does not exist
  kDataLoss,           // a file is truncated or malformed
  kUnsupported,        // well-formed, but not something Kvasir can run
  kResourceExhausted,  // not enough memory, budget or disk
  kIo,                 // the operating system refused
  kCancelled,          // the caller asked to stop
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Fields of the option structs (options.h and those in src/) whose change would mend the failure, the likeliest
  // first. Often empty.
  const std::vector<std::string_view>& settings() const { return settings_; }

  // Returns this Status with these settings. REQUIRES: string literals, which are not copied.
  Status about(std::initializer_list<std::string_view> settings) && {
    settings_.assign(settings);
    return std::move(*this);
  }

  // Returns this Status with another message.
  Status with_message(std::string message) const {
    Status other = *this;
    other.message_ = std::move(message);
    return other;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::vector<std::string_view> settings_;
};

// A value, or the Status that says why there is none. REQUIRES of value accessors: ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvasir
