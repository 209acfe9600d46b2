#include "tasks/metrics/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir::metrics {
namespace {

constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimit = 256 * 1024;  // in KiB

template <auto free>
struct FreeWith {
  template <class T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using PatternCode = std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>>;
using PatternData = std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, FreeWith<pcre2_compile_context_free>>;
using PatternContext = std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>>;

}  // namespace

struct Pattern::Impl {
  PatternCode code;
};

Pattern::Pattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(std::string_view expression) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) return exhausted("compiling a regular expression failed; free some memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // the default is chosen when PCRE2 is built
  int error = 0;
  std::size_t offset = 0;
  PatternCode code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    return invalid_argument("the regular expression '{}' is wrong at byte {}: {}", expression, offset,
                            reinterpret_cast<const char*>(reason.data()));
  }
  // Fails where the machine forbids writable executable memory; matching is then slower, with the same results.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto impl = std::make_unique<Impl>();
  impl->code = std::move(code);
  return Pattern(std::move(impl));
}

void Pattern::find_all(std::string_view text, const Visit& visit) const {
  const pcre2_code* code = impl_->code.get();
  const PatternData data(pcre2_match_data_create_from_pattern(code, nullptr));
  const PatternContext context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) return;
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimit);

  std::vector<std::string_view> groups(pcre2_get_ovector_count(data.get()));
  const std::size_t* bounds = pcre2_get_ovector_pointer(data.get());
  std::uint32_t options = PCRE2_NO_UTF_CHECK;
  for (std::size_t at = 0; at <= text.size();) {
    const auto match = [&](std::uint32_t more) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options | more, data.get(),
                         context.get());
    };
    int found = match(0);
    // Compiled code has a small stack; the interpreter takes its own from the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (found < 0 || bounds[0] < at || bounds[1] < bounds[0]) return;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const bool set = bounds[2 * group] != PCRE2_UNSET && bounds[2 * group] <= bounds[2 * group + 1];
      groups[group] =
          set ? text.substr(bounds[2 * group], bounds[2 * group + 1] - bounds[2 * group]) : std::string_view();
    }
    at = bounds[1];
    // After an empty match the next one at the same place must not be empty.
    options = PCRE2_NO_UTF_CHECK | (bounds[0] == bounds[1] ? PCRE2_NOTEMPTY_ATSTART : 0);
    visit(groups);
  }
}

std::string Pattern::erase_from(std::string_view text) const {
  std::string kept;
  const char* rest = text.data();
  find_all(text, [&](std::span<const std::string_view> groups) {
    kept.append(rest, groups[0].data());
    rest = groups[0].data() + groups[0].size();
  });
  kept.append(rest, text.data() + text.size());
  return kept;
}

}  // namespace kvasir::metrics
