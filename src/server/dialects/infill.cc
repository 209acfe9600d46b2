#include "server/dialects/infill.h"

#include <optional>
#include <span>
#include <string_view>

#include "base/status.h"

namespace kvasir::server {
namespace {

// Names in the order of Qwen, StarCoder, CodeLlama, DeepSeek and Granite.
constexpr std::string_view kPrefixNames[] = {"<|fim_prefix|>", "<fim_prefix>", "<PRE>",
                                             "<\xef\xbd\x9c"
                                             "fim\xe2\x96\x81"
                                             "begin\xef\xbd\x9c>",
                                             "<fim-prefix>"};
constexpr std::string_view kSuffixNames[] = {"<|fim_suffix|>", "<fim_suffix>", "<SUF>",
                                             "<\xef\xbd\x9c"
                                             "fim\xe2\x96\x81"
                                             "hole\xef\xbd\x9c>",
                                             "<fim-suffix>"};
constexpr std::string_view kMiddleNames[] = {"<|fim_middle|>", "<fim_middle>", "<MID>",
                                             "<\xef\xbd\x9c"
                                             "fim\xe2\x96\x81"
                                             "end\xef\xbd\x9c>",
                                             "<fim-middle>"};
constexpr std::string_view kRepositoryNames[] = {"<|repo_name|>", "<repo_name>", "<reponame>"};
constexpr std::string_view kFileNames[] = {"<|file_sep|>", "<file_sep>"};

// Returns the control token that has one of these names.
std::optional<std::int32_t> token_named(const ModelText& text, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    const Result<std::vector<std::int32_t>> tokens = text.encode(name, false, true);
    if (!tokens.ok() || tokens->size() != 1) continue;
    const Result<std::string> bytes = text.bytes_of(tokens->front());
    if (bytes.ok() && *bytes == name) return tokens->front();
  }
  return std::nullopt;
}

class InfillTokens {
 public:
  explicit InfillTokens(const ModelText& text) : text_(text) {}

  void add(std::optional<std::int32_t> token) {
    if (token) tokens_.push_back(*token);
  }
  Status add(std::string_view words) {
    if (words.empty()) return {};
    KVASIR_ASSIGN_OR_RETURN(const std::vector<std::int32_t> more, text_.encode(words, false, false));
    tokens_.insert(tokens_.end(), more.begin(), more.end());
    return {};
  }
  std::vector<std::int32_t> take() && { return std::move(tokens_); }

 private:
  const ModelText& text_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace

Result<ApiPrompt> infill_prompt(const Infill& infill, const ModelText& text) {
  const std::optional<std::int32_t> prefix = token_named(text, kPrefixNames), suffix = token_named(text, kSuffixNames),
                                    middle = token_named(text, kMiddleNames);
  if (!prefix || !suffix || !middle)
    return unsupported(
        "this model cannot fill in text: its vocabulary has no tokens for a prefix, a suffix and what "
        "is between");
  InfillTokens tokens(text);
  // The beginning of a text, if the vocabulary marks it.
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::int32_t> start, text.encode("", true, false));
  if (!start.empty()) tokens.add(start.front());
  if (!infill.files.empty()) {
    const std::optional<std::int32_t> repository = token_named(text, kRepositoryNames),
                                      file = token_named(text, kFileNames);
    if (repository && file) {
      tokens.add(repository);
      KVASIR_RETURN_IF_ERROR(tokens.add("project\n"));
    }
    for (const Infill::File& each : infill.files) {
      tokens.add(file);
      KVASIR_RETURN_IF_ERROR(tokens.add((file ? "" : "\n\n") + each.name + "\n" + each.text + "\n"));
    }
    tokens.add(file);
  }
  tokens.add(prefix);
  KVASIR_RETURN_IF_ERROR(tokens.add(infill.prefix));
  tokens.add(suffix);
  KVASIR_RETURN_IF_ERROR(tokens.add(infill.suffix));
  tokens.add(middle);
  KVASIR_RETURN_IF_ERROR(tokens.add(infill.begun));
  ApiPrompt prompt;
  prompt.tokens = std::move(tokens).take();
  return prompt;
}

}  // namespace kvasir::server
