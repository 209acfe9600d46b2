// The text files of profiles (head_profile.h, query_profile.h): one statement a line, and a checksum in the last.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "retention/policy_spec.h"

namespace kvasir {

template <class Number>
void append_profile_line(std::string& out, std::string_view key, std::span<const Number> values) {
  out += key;
  for (const Number value : values) {
    char digits[32];
    out += ' ';
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  out += '\n';
}

inline std::string profile_checksum(std::string_view text) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.digest().hex();
}

// Reads a file line by line, and keeps the first error.
class ProfileLines {
 public:
  // `kind`: of profile, and `name`: of the file, for messages; both outlive this object.
  ProfileLines(std::string_view text, const std::string& name, std::string_view kind)
      : rest_(text), name_(name), kind_(kind) {}

  // Returns the rest of the next line, which must begin with `key`; empty after an error.
  std::string_view after(std::string_view key) {
    const std::size_t end = rest_.find('\n');
    ++line_;
    if (end == std::string_view::npos) return fail("is cut off");
    std::string_view line = rest_.substr(0, end);
    if (!line.starts_with(key) || (line.size() > key.size() && line[key.size()] != ' '))
      return fail(fmt::format("is not '{} ...'", key));
    rest_.remove_prefix(end + 1);
    line.remove_prefix(std::min(line.size(), key.size() + 1));
    return line;
  }

  // Reads a line of `key` and one number in [low, high].
  std::uint64_t number(std::string_view key, std::uint64_t low, std::uint64_t high) {
    std::uint64_t value = 0;
    std::string_view text = after(key);
    if (!take(text, value) || !text.empty() || value < low || value > high) {
      fail(fmt::format("is not '{}' and a number from {} to {}", key, low, high));
      return low;
    }
    return value;
  }

  Hash128 hash(std::string_view key) {
    const std::string_view text = after(key);
    Hash128 hash;
    const auto half = [&](std::size_t at, std::uint64_t& value) {
      const char* begin = text.data() + at;
      return std::from_chars(begin, begin + 16, value, 16).ptr == begin + 16;
    };
    if (text.size() != 32 || !half(0, hash.high) || !half(16, hash.low) || hash.hex() != text)
      fail(fmt::format("is not '{}' and 32 hexadecimal digits", key));
    return hash;
  }

  // Reads a line of `key` and `count` numbers in [low, high].
  template <class Number>
  void numbers(std::string_view key, int count, Number low, Number high, std::vector<Number>& out) {
    std::string_view text = after(key);
    for (int i = 0; i < count && ok(); ++i) {
      Number value{};
      if (!take(text, value) || !(value >= low && value <= high)) fail(complaint(key, count, low, high));
      out.push_back(value);
    }
    if (ok() && !text.empty()) fail(complaint(key, count, low, high));
  }

  // Reads the last line, the checksum of all before it in `text`.
  void end(std::string_view text) {
    const std::string sum = profile_checksum(text.substr(0, text.size() - rest_.size()));
    if (const std::string_view own = after("checksum"); ok() && own != sum)
      fail("has another checksum than the lines before it: the file is damaged");
    if (ok() && !rest_.empty()) fail("is not the last");
  }

  std::string_view fail(std::string_view problem) {
    if (ok()) status_ = invalid_argument("'{}' is not a sound {}: line {} {}", name_, kind_, line_, problem);
    rest_ = {};
    return {};
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  template <class Number>
  static std::string complaint(std::string_view key, int count, Number low, Number high) {
    return fmt::format("is not '{}' and {} numbers from {} to {}, one blank apart", key, count, low, high);
  }

  // Takes a number, and the blank behind it, off the front of a line.
  template <class Number>
  static bool take(std::string_view& text, Number& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) return true;
    if (text.front() != ' ' || text.size() == 1) return false;
    text.remove_prefix(1);
    return true;
  }

  std::string_view rest_;
  const std::string& name_;
  std::string_view kind_;
  int line_ = 0;
  Status status_;
};

// The value of an option `profile=`: a file, and in the canonical form "FILE#0123456789abcdef" a checksum of its
// content.
struct ProfileName {
  std::string file;
  std::string checksum;  // may be empty

  static ProfileName split(std::string_view text) {
    constexpr std::size_t kDigits = 16;
    const std::size_t hash = text.rfind('#');
    const std::string_view digits = hash == std::string_view::npos ? "" : text.substr(hash + 1);
    if (digits.size() != kDigits || digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
      return {std::string(text), ""};
    return {std::string(text.substr(0, hash)), std::string(digits)};
  }
};

// Returns the profile that the option `profile` names, and adds its checksum to the option. `kind`: "head profile".
// Errors: those of `read`; kInvalidArgument if the option has another checksum.
template <class Profile>
Result<Profile> read_profile_option(PolicyOptions& options, std::string_view kind,
                                    Result<Profile> (*read)(const std::string& path),
                                    std::string (*format)(const Profile& profile)) {
  const ProfileName name = ProfileName::split(options.value("profile"));
  Result<Profile> found = read(name.file);
  if (!found.ok() && !name.checksum.empty())  // of a saved session
    return found.status().with_message(
        fmt::format("{}; it is the {} that this was begun with: put it there again", found.status().message(), kind));
  if (!found.ok()) return found;
  const std::string checksum = profile_checksum(format(*found)).substr(0, 16);
  if (!name.checksum.empty() && name.checksum != checksum)
    return invalid_argument(
        "policy '{}': the {} '{}' is not the one of checksum {}, with which this was begun; put that there",
        options.name(), kind, name.file, name.checksum);
  options.set("profile", fmt::format("{}#{}", name.file, checksum));
  return found;
}

}  // namespace kvasir
