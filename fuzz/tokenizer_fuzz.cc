// Any bytes as text, over small vocabularies that have all bytes, of SPM and of byte-level BPE with every
// pre-tokenizer: encoding either names an invalid byte or can be undone, streaming gives what decoding gives, and what
// a message says never becomes a control token. The first byte chooses the vocabulary.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "chat/chat_template.h"
#include "generation/token_stream.h"
#include "text/byte_alphabet.h"
#include "text/pre_tokenizers.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace kvasir;

constexpr std::string_view kSpacePiece = "\xE2\x96\x81";

// The token of byte 0; the others follow.
constexpr TokenId kByte0 = 3;

TokenId add_piece(Vocabulary* vocabulary, std::string piece, TokenKind kind) {
  vocabulary->scores.push_back(static_cast<float>(vocabulary->pieces.size() * 7 % 11));  // ties and disorder
  vocabulary->pieces.push_back(std::move(piece));
  vocabulary->kinds.push_back(kind);
  return static_cast<TokenId>(vocabulary->pieces.size() - 1);
}

Vocabulary special_pieces() {
  Vocabulary vocabulary;
  vocabulary.unknown = add_piece(&vocabulary, "<unk>", TokenKind::kUnknown);
  vocabulary.bos = add_piece(&vocabulary, "<s>", TokenKind::kControl);
  vocabulary.eos = add_piece(&vocabulary, "</s>", TokenKind::kControl);
  return vocabulary;
}

void add_markers(Vocabulary* vocabulary, TokenKind kind) {
  for (const char* piece : {"<|user|>", "<|assistant|>", "<|end|>"}) add_piece(vocabulary, piece, kind);
  add_piece(vocabulary, "\n\n", TokenKind::kUserDefined);
}

Vocabulary spm_vocabulary(unsigned options) {
  Vocabulary vocabulary = special_pieces();
  const auto add = [&](std::string piece, TokenKind kind) { add_piece(&vocabulary, std::move(piece), kind); };
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
  add_markers(&vocabulary, (options & 1) != 0 ? TokenKind::kControl : TokenKind::kUserDefined);
  vocabulary.add_eos = (options & 2) != 0;
  vocabulary.add_space_prefix = (options & 4) != 0;
  return vocabulary;
}

Vocabulary spm_merges_vocabulary(unsigned options) {
  Vocabulary vocabulary = spm_vocabulary(options);
  vocabulary.tokenizer = TokenizerKind::kSpmMerges;
  const std::string space(kSpacePiece);
  // The last ones have parts and results that are no pieces.
  vocabulary.merges = {"a a", space + " a", "b " + space, "a b", "ab ab"};
  return vocabulary;
}

Vocabulary bpe_vocabulary(const PreTokenizer& pre_tokenizer, unsigned options) {
  Vocabulary vocabulary = special_pieces();
  vocabulary.tokenizer = TokenizerKind::kBpe;
  vocabulary.pre_tokenizer = pre_tokenizer.names[0];
  for (int byte = 0; byte < 256; ++byte) {
    add_piece(&vocabulary, byte_to_piece(static_cast<std::uint8_t>(byte)), TokenKind::kNormal);
  }
  const std::pair<const char*, const char*> merges[] = {
      {"a", "a"},           {"b", "a"}, {"aa", "a"}, {"\u0120", "a"}, {"\u00C3", "\u00A9"}, {"\u0120", "\u0120"},
      {"\u00A9", "\u00C3"}, {"<", "|"}, {"|", ">"},  {"e", "n"},      {"en", "d"},          {"\u010A", "\u010A"}};
  for (const auto& [left, right] : merges) {
    vocabulary.merges.push_back(std::string(left) + " " + right);
    add_piece(&vocabulary, std::string(left) + right, TokenKind::kNormal);
  }
  vocabulary.merges.push_back("aaa ba");  // of pieces that become none
  add_piece(&vocabulary, "\u0120x", TokenKind::kUserDefined);
  add_markers(&vocabulary, (options & 1) != 0 ? TokenKind::kControl : TokenKind::kUserDefined);
  vocabulary.add_eos = options == 0;
  return vocabulary;
}

std::vector<std::unique_ptr<Tokenizer>> make_tokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> made;
  const auto add = [&](Vocabulary vocabulary) {
    auto tokenizer = make_tokenizer(std::move(vocabulary));
    KVASIR_CHECK(tokenizer.ok());
    made.push_back(std::move(*tokenizer));
  };
  for (unsigned options = 0; options < 8; ++options) add(spm_vocabulary(options));
  for (const PreTokenizer& pre_tokenizer : pre_tokenizers()) {
    add(bpe_vocabulary(pre_tokenizer, static_cast<unsigned>(made.size())));
  }
  for (unsigned options = 0; options < 8; ++options) add(spm_merges_vocabulary(options));
  return made;
}

int count_special(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                  const std::vector<TokenId>& reserved) {
  int count = 0;
  for (const TokenId token : tokens) {
    const TokenKind kind = tokenizer.vocabulary().kinds[static_cast<std::size_t>(token)];
    count += kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    for (const TokenId other : reserved) count += kind == TokenKind::kUserDefined && token == other;
  }
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::vector<std::unique_ptr<Tokenizer>> tokenizers = make_tokenizers();
  const Tokenizer& tokenizer = *tokenizers[data[0] % tokenizers.size()];
  const bool spm = tokenizer.vocabulary().tokenizer != TokenizerKind::kBpe;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  const bool valid = !find_invalid_utf8(text);

  for (const bool parse_special : {false, true}) {
    const auto tokens = tokenizer.encode(text, {.add_special = true, .parse_special = parse_special});
    KVASIR_CHECK(tokens.ok() == valid);
    if (!valid) continue;
    const std::string decoded = tokenizer.decode(*tokens);
    if (!parse_special && (!spm || text.find(kSpacePiece) == std::string::npos)) {
      KVASIR_CHECK(decoded == text);
    }
    TokenStream stream(tokenizer, true);
    std::string streamed;
    for (const TokenId token : *tokens) streamed += stream.push(token);
    KVASIR_CHECK(streamed + stream.flush() == decoded);
  }

  // Bytes as a model may produce them, one token each.
  TokenStream stream(tokenizer, false);
  std::string streamed;
  for (std::size_t i = 1; i < size; ++i) streamed += stream.push(kByte0 + data[i]);
  streamed += stream.flush();
  KVASIR_CHECK(!find_invalid_utf8(streamed));
  if (valid) KVASIR_CHECK(streamed == text);

  const auto chat = make_chat_template(tokenizer.vocabulary(), ChatTemplateOptions());
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
