#include "text/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {
namespace {

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, Free>;
using MatchData = std::unique_ptr<pcre2_match_data, Free>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free>;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

std::string with_unicode_white_space(std::string_view expression) {
  std::string out;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const bool escape = expression[i] == '\\' && i + 1 < expression.size();
    const char next = escape ? expression[i + 1] : '\0';
    if (next == 's' || next == 'S') {
      out += next == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      out += expression.substr(i, escape ? 2 : 1);
    }
    i += escape ? 1 : 0;
  }
  return out;
}

Result<Code> compile_one(std::string_view published) {
  const std::string expression = with_unicode_white_space(published);
  int error = 0;
  std::size_t offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_UCP,
                          &error, &offset, nullptr));
  if (code == nullptr) {
    return unsupported("this machine's PCRE2 does not compile the pre-tokenizer's expression '{}': {}", published,
                       error_text(error));
  }
  // Fails where the machine forbids writable executable memory; matching is then slower, with the same results.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

struct RegexSplitter::Impl {
  std::vector<Code> codes;
};

namespace {

// State of one call of split().
class Splitting {
 public:
  Splitting(const std::vector<Code>& codes, const RegexSplitter::Visit& visit) : codes_(codes), visit_(visit) {}

  Status run(std::string_view text) {
    context_.reset(pcre2_match_context_create(nullptr));
    if (context_ == nullptr) return no_memory(PCRE2_ERROR_NOMEMORY);
    // No limits: every search ends, and the expressions of the table take linear time.
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    pcre2_set_depth_limit(context_.get(), UINT32_MAX);
    pcre2_set_heap_limit(context_.get(), UINT32_MAX);
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      data_.emplace_back(pcre2_match_data_create(1, nullptr));
      if (data_.back() == nullptr) return no_memory(PCRE2_ERROR_NOMEMORY);
    }
    return split(0, text);
  }

 private:
  static Status no_memory(int error) {
    return exhausted("splitting the text failed: {}; free some memory", error_text(error));
  }

  struct Match {
    std::size_t begin;
    std::size_t end;
  };

  // Finds the first match in `text` from `at` on; an empty match at its end if there is none.
  Result<Match> find(std::size_t stage, std::string_view text, std::size_t at) {
    constexpr std::uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    const auto match = [&](std::uint32_t options) {
      return pcre2_match(codes_[stage].get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options,
                         data_[stage].get(), context_.get());
    };
    int found = match(kOptions);
    // Compiled code has a small stack; the interpreter takes its own from the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(kOptions | PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return Match{text.size(), text.size()};
    if (found < 0) return no_memory(found);
    const std::size_t* bounds = pcre2_get_ovector_pointer(data_[stage].get());
    return Match{bounds[0], bounds[1]};
  }

  // REQUIRES: text not empty. Recursion depth: the number of expressions.
  Status split(std::size_t stage, std::string_view text) {
    if (stage == codes_.size()) {
      visit_(text);
      return {};
    }
    for (std::size_t rest = 0; rest < text.size();) {
      KVASIR_ASSIGN_OR_RETURN(const Match match, find(stage, text, rest));
      if (match.begin > rest) KVASIR_RETURN_IF_ERROR(split(stage + 1, text.substr(rest, match.begin - rest)));
      if (match.end > match.begin) {
        KVASIR_RETURN_IF_ERROR(split(stage + 1, text.substr(match.begin, match.end - match.begin)));
      }
      rest = match.end;
    }
    return {};
  }

  const std::vector<Code>& codes_;
  const RegexSplitter::Visit& visit_;
  MatchContext context_;
  std::vector<MatchData> data_;
};

}  // namespace

RegexSplitter::RegexSplitter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::compile(std::span<const std::string_view> expressions) {
  auto impl = std::make_unique<Impl>();
  for (const std::string_view expression : expressions) {
    KVASIR_ASSIGN_OR_RETURN(Code code, compile_one(expression));
    impl->codes.push_back(std::move(code));
  }
  return RegexSplitter(std::move(impl));
}

Status RegexSplitter::split(std::string_view text, const Visit& visit) const {
  if (text.empty()) return {};
  return Splitting(impl_->codes, visit).run(text);
}

}  // namespace kvasir
