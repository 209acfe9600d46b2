// Cuts text into pieces by a list of regular expressions. Each expression cuts every piece left by its predecessors
// into its matches and the gaps between them. The syntax is PCRE2's, with Unicode properties; \s and \S follow
// Unicode's White_Space, as in the tokenizers that publish such expressions (PCRE2's own \s also has U+180E).
//
// Memory does not grow with the text. An expression that looks far ahead at every match would take quadratic time; none
// of text/pre_tokenizers.h does.
// Thread-safety: immutable after construction.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

class RegexSplitter {
 public:
  // Errors: kUnsupported for an expression that this machine's PCRE2 does not compile, with its reason.
  static Result<RegexSplitter> compile(std::span<const std::string_view> expressions);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  using Visit = std::function<void(std::string_view piece)>;
  // Calls `visit` for each piece, from left to right. The pieces concatenate to the text; none is empty. REQUIRES:
  // valid UTF-8. Errors: kResourceExhausted if there is no memory for a match.
  Status split(std::string_view text, const Visit& visit) const;

 private:
  struct Impl;
  explicit RegexSplitter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
