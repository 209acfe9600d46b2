// Regular expressions of Python's `re` module, run by PCRE2.
//
// The syntaxes agree in what the tasks of lm-evaluation-harness use. They differ in names of flags and in rare escapes,
// and PCRE2's \s leaves out U+001C to U+001F.
// A search that backtracks more than 10 million times, or needs more than 256 MiB, ends: the rest of that text counts
// as having no match. Thread-safety: immutable after construction.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::metrics {

class Pattern {
 public:
  // Errors: kInvalidArgument for an expression that PCRE2 does not compile, with its reason.
  static Result<Pattern> compile(std::string_view expression);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Calls `visit` for the matches that re.finditer() gives, with the whole match and then its groups; a group that took
  // no part is empty. REQUIRES: valid UTF-8.
  using Visit = std::function<void(std::span<const std::string_view> groups)>;
  void find_all(std::string_view text, const Visit& visit) const;

  // re.sub(expression, "", text). REQUIRES: valid UTF-8.
  std::string erase_from(std::string_view text) const;

 private:
  struct Impl;
  explicit Pattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::metrics
