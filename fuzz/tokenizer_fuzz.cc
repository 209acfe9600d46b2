// Any bytes as text, over a small vocabulary with byte fallback: encoding either names an invalid byte or can be
// undone, streaming gives what decoding gives, and what a message says never becomes a control token. The first byte
// chooses the vocabulary's options.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace kvasir;

constexpr std::string_view kSpacePiece = "\xE2\x96\x81";

std::unique_ptr<Tokenizer> make_tokenizer(unsigned options) {
  Vocabulary vocabulary;
  const auto add = [&](std::string piece, TokenKind kind) {
    vocabulary.scores.push_back(static_cast<float>(vocabulary.pieces.size() * 7 % 11));  // ties and disorder
    vocabulary.pieces.push_back(std::move(piece));
    vocabulary.kinds.push_back(kind);
    return static_cast<TokenValue>(vocabulary.pieces.size() - 1);
  };
  vocabulary.unknown = add("<unk>", TokenKind::kUnknown);
  vocabulary.bos = add("<s>", TokenKind::kControl);
  vocabulary.eos = add("</s>", TokenKind::kControl);
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    add({'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'}, TokenKind::kByte);
  }
  add(std::string(kSpacePiece), TokenKind::kNormal);
  for (const char* piece : {"a", "b", "aa", "ab", "aaa", "ba", "abab", "<|", "<|end", "</s", "\xC3\xA9", "a\xC3\xA9"}) {
    add(piece, TokenKind::kNormal);
  }
  add(std::string(kSpacePiece) + "a", TokenKind::kNormal);
  add("b" + std::string(kSpacePiece), TokenKind::kUnused);
  const TokenKind marker = (options & 1) != 0 ? TokenKind::kControl : TokenKind::kUserDefined;
  for (const char* piece : {"<|user|>", "<|assistant|>", "<|end|>"}) add(piece, marker);
  add("\n\n", TokenKind::kUserDefined);
  vocabulary.add_eos = (options & 2) != 0;
  vocabulary.add_space_prefix = (options & 4) != 0;
  auto tokenizer = make_spm_tokenizer(std::move(vocabulary));
  KVASIR_CHECK(tokenizer.ok());
  return std::move(*tokenizer);
}

int count_special(const Tokenizer& tokenizer, const std::vector<TokenValue>& tokens,
                  const std::vector<TokenValue>& reserved) {
  int count = 0;
  for (const TokenValue token : tokens) {
    const TokenKind kind = tokenizer.vocabulary().kinds[static_cast<std::size_t>(token)];
    count += kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    for (const TokenValue other : reserved) count += kind == TokenKind::kUserDefined && token == other;
  }
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::vector<std::unique_ptr<Tokenizer>> tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> made;
    for (unsigned options = 0; options < 8; ++options) made.push_back(make_tokenizer(options));
    return made;
  }();
  const Tokenizer& tokenizer = *tokenizers[data[0] % 8];
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  const bool valid = !find_invalid_utf8(text);

  for (const bool parse_special : {false, true}) {
    const auto tokens = tokenizer.encode(text, {.add_special = true, .parse_special = parse_special});
    KVASIR_CHECK(tokens.ok() == valid);
    if (!valid) continue;
    const std::string decoded = tokenizer.decode(*tokens);
    if (!parse_special && text.find(kSpacePiece) == std::string::npos) {
      KVASIR_CHECK(decoded == text);
    }
    TokenStream stream(tokenizer, true);
    std::string streamed;
    for (const TokenValue token : *tokens) streamed += stream.push(token);
    KVASIR_CHECK(streamed + stream.flush() == decoded);
  }

  // Bytes as a model may produce them, one token each.
  TokenStream stream(tokenizer, false);
  std::string streamed;
  for (std::size_t i = 1; i < size; ++i) streamed += stream.push(3 + data[i]);
  streamed += stream.flush();
  KVASIR_CHECK(!find_invalid_utf8(streamed));
  if (valid) KVASIR_CHECK(streamed == text);

  const auto chat = make_chat_template(tokenizer.vocabulary(), {});
  KVASIR_CHECK(chat.ok());
  const auto special = [&](const std::string& content) {
    const std::vector<ChatMessage> messages = {{"user", content}};
    const auto prompt = (*chat)->render(messages, true);
    KVASIR_CHECK(prompt.ok());
    const auto tokens = encode_chat(tokenizer, *prompt);
    KVASIR_CHECK(tokens.ok());
    return count_special(tokenizer, *tokens, prompt->reserved);
  };
  if (valid) KVASIR_CHECK(special(text) == special("a"));
  return 0;
}
