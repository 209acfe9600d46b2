// Any bytes as a model file's tokenizer: an error, or a tokenizer whose tokens exist, that makes no control token of
// plain text, and that decodes whatever it is given.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gguf/reader.h"
#include "model/vocabulary_from_gguf.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir;
  const auto file = gguf::File::parse(std::as_bytes(std::span(data, size)), {.header_only = true});
  if (!file.ok()) return 0;
  auto vocabulary = vocabulary_from_gguf(*file);
  if (!vocabulary.ok()) return 0;
  const auto tokenizer = make_tokenizer(std::move(*vocabulary));
  if (!tokenizer.ok()) return 0;
  const std::vector<TokenKind>& kinds = (*tokenizer)->vocabulary().kinds;
  const auto unknown = (*tokenizer)->vocabulary().unknown;
  constexpr std::string_view kText = "ab  abab<|im_end|>\n\n 123'S caf\u00E9 \u4E16\u754C";
  const auto tokens = (*tokenizer)->encode(kText, {.add_special = false});
  if (tokens.ok()) {
    for (const TokenId token : *tokens) {
      KVASIR_CHECK(token >= 0 && static_cast<std::size_t>(token) < kinds.size());
      KVASIR_CHECK(token == unknown || kinds[static_cast<std::size_t>(token)] != TokenKind::kControl);
    }
    (void)(*tokenizer)->decode(*tokens, true);
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) (void)(*tokenizer)->bytes_of(static_cast<TokenId>(i), true);
  return 0;
}
