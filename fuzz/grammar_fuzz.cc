// Any bytes as a grammar: it is compiled or refused in one line, and every text that its masks lead to is followed
// within bounds of time and memory. Masks are checked against accept(), token by token.
//
// The input: a byte for the kind of grammar and its white space, 8 bytes that choose the tokens, then the source.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "byte_vocabulary.h"
#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace {

using namespace kvasir;

constexpr std::size_t kHead = 9;
constexpr int kSteps = 24;

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> words = [] {
    Vocabulary vocabulary = fuzz::byte_vocabulary();
    fuzz::add_piece(vocabulary, "<|tool|>", TokenKind::kControl);
    for (const char* piece : {"ab", "abc",  "\",", "\":",      "{\"",          "\"}",    "}}",   "true", "null", "12",
                              "00", "0.",   "\\u", "\xC3\xA9", "\xE6\x97\xA5", "aaaa",   "\"\"", "],",   "[[",   "-1",
                              "e1", "\\\"", ",\"", "xyz",      "name",         "\":{\"", "\\\\", "\n",   "T0",   "20"})
      fuzz::add_piece(vocabulary, piece, TokenKind::kNormal);
    auto made = make_tokenizer(std::move(vocabulary));
    KVASIR_CHECK(made.ok());
    return std::move(*made);
  }();
  return *words;
}

GrammarSource source_of(const std::uint8_t* data, std::size_t size) {
  constexpr GrammarSource::Kind kKinds[] = {GrammarSource::Kind::kJsonSchema, GrammarSource::Kind::kGbnf,
                                            GrammarSource::Kind::kRegex, GrammarSource::Kind::kChoice};
  GrammarSource source;
  source.kind = kKinds[data[0] % 4];
  source.compact = (data[0] & 4) != 0;
  source.text.assign(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  if (source.kind == GrammarSource::Kind::kChoice)
    for (std::size_t begin = 0; begin < source.text.size(); begin += 5)
      source.choices.push_back(source.text.substr(begin, 5));
  return source;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kHead || size > 4096) return 0;
  static const GrammarCompiler compiler(tokenizer());
  const auto grammar = compiler.compile(source_of(data, size));
  if (!grammar.ok()) {
    KVASIR_CHECK(!grammar.status().message().empty() && grammar.status().message().find('\n') == std::string::npos);
    return 0;
  }
  std::uint64_t seed = 0;
  for (std::size_t i = 1; i < kHead; ++i) seed = seed << 8 | data[i];
  std::mt19937_64 random(seed);
  GrammarMatcher matcher(*grammar);
  const auto vocabulary = static_cast<TokenId>((*grammar)->trie().vocabulary());
  for (int step = 0; step < kSteps; ++step) {
    const auto mask = matcher.mask();
    if (!mask.ok()) return 0;  // too ambiguous
    const auto allows = [&](TokenId token) {
      return ((**mask)[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0;
    };
    std::vector<TokenId> next;
    bool ends = false;
    for (TokenId token = 0; token < vocabulary; ++token) {
      if (tokenizer().is_end(token)) {
        KVASIR_CHECK(allows(token) == matcher.complete());
        ends = ends || allows(token);
      } else if (allows(token)) {
        next.push_back(token);
      }
    }
    KVASIR_CHECK(ends || !next.empty());  // the vocabulary has all bytes, so no text is stuck
    // What the mask says of some tokens is what accept() does.
    for (int i = 0; i < 6; ++i) {
      const auto token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocabulary));
      if (tokenizer().is_end(token)) continue;
      GrammarMatcher copy = matcher;
      const Status accepted = copy.accept(token);
      KVASIR_CHECK(accepted.ok() == allows(token) || accepted.code() == StatusCode::kResourceExhausted);
    }
    const std::string forced = matcher.forced(16);
    if (next.empty()) return 0;
    const TokenId token = next[random() % next.size()];
    const std::string_view bytes = (*grammar)->trie().bytes_of(token);
    const std::size_t common = std::min(bytes.size(), forced.size());
    KVASIR_CHECK(bytes.substr(0, common) == std::string_view(forced).substr(0, common));
    const Status accepted = matcher.accept(token);
    KVASIR_CHECK(accepted.ok() || accepted.code() == StatusCode::kResourceExhausted);
    if (!accepted.ok()) return 0;
  }
  return 0;
}
