// Any bytes as a template, and as strings of the caller: it is parsed or refused with a place, its render stays within
// its limits, and nothing the caller gave is taken for the template's own text.
//
// The input: the template's source, then strings, each behind a zero byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "jinja/jinja.h"

namespace {

using namespace kvasir;

constexpr char kSentinel = '\x7F';  // in every string of the caller

jinja::Variables variables_of(std::string_view rest) {
  std::vector<jinja::Value> messages;
  for (int i = 0; !rest.empty() && i < 8; ++i) {
    std::string content(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(std::min(content.size() + 1, rest.size()));
    content.insert(content.size() / 2, 1, kSentinel);
    messages.push_back(
        jinja::Value::dict({{"role", jinja::Value::string(i % 2 == 0 ? "user" : "assistant", jinja::Origin::kTemplate)},
                            {"content", jinja::Value::string(content)}}));
  }
  return {{"messages", jinja::Value::list(std::move(messages))},
          {"bos_token", jinja::Value::string("<s>", jinja::Origin::kTemplate)},
          {"add_generation_prompt", jinja::Value::boolean(true)},
          {"n", jinja::Value::integer(-7)},
          {"f", jinja::Value::real(2.5)}};
}

void check_text(const jinja::Text& text, bool vouched) {
  std::size_t from = 0;
  for (const jinja::Run& run : text.runs()) {
    KVASIR_CHECK(run.end > from);
    const std::string_view bytes = std::string_view(text.bytes()).substr(from, run.end - from);
    if (vouched && run.origin == jinja::Origin::kTemplate)
      KVASIR_CHECK(bytes.find(kSentinel) == std::string_view::npos);
    from = run.end;
  }
  KVASIR_CHECK(from == text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view source = input.substr(0, input.find('\0'));
  const auto parsed = jinja::parse(source);
  if (!parsed.ok()) {
    KVASIR_CHECK(parsed.status().message().starts_with("line "));
    return 0;
  }
  const jinja::Limits limits{.steps = 100'000, .output_bytes = 1u << 20, .memory_bytes = 16u << 20, .depth = 100};
  jinja::Variables variables = variables_of(input.substr(std::min(source.size() + 1, input.size())));
  jinja::Trace trace;
  const auto text = jinja::render(*parsed, variables, 0, limits, &trace);
  if (!text.ok()) {
    KVASIR_CHECK(text.status().code() == StatusCode::kInvalidArgument ||
                 text.status().code() == StatusCode::kResourceExhausted);
    KVASIR_CHECK(text.status().message().starts_with("line "));
    return 0;
  }
  KVASIR_CHECK(text->size() <= limits.output_bytes);
  // A template may spell the sentinel itself.
  check_text(*text, source.find(kSentinel) == std::string_view::npos && source.find('\\') == std::string_view::npos);
  return 0;
}
