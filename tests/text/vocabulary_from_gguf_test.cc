#include "model/vocabulary_from_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/gguf_writer.h"
#include "support/shared_data.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;

struct Keys {
  std::string model = "llama";
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "a", "<|end|>"};
  std::vector<float> scores = {0, 0, 0, -1, 0};
  std::vector<std::int32_t> types = {2, 3, 3, 1, 4};
};

Result<Vocabulary> read_vocabulary(const Keys& keys, const std::function<void(gguf::Writer*)>& more = {}) {
  gguf::Writer writer;
  if (!keys.model.empty()) writer.set_string("tokenizer.ggml.model", keys.model);
  if (!keys.tokens.empty()) writer.set_strings("tokenizer.ggml.tokens", keys.tokens);
  if (!keys.scores.empty()) writer.set_float32s("tokenizer.ggml.scores", keys.scores);
  if (!keys.types.empty()) writer.set_int32s("tokenizer.ggml.token_type", keys.types);
  if (more) more(&writer);
  const std::vector<std::byte> bytes = writer.finish();
  const auto file = gguf::File::parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return vocabulary_from_gguf(*file);
}

std::string data_loss_message(const Keys& keys, const std::function<void(gguf::Writer*)>& more = {}) {
  const auto vocabulary = read_vocabulary(keys, more);
  EXPECT_EQ(vocabulary.status().code(), StatusCode::kDataLoss);
  return vocabulary.status().message();
}

TEST(VocabularyFromGguf, DefaultsOfSpm) {
  const auto vocabulary = read_vocabulary({});
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->pieces, Keys().tokens);
  EXPECT_EQ(vocabulary->scores, Keys().scores);
  EXPECT_EQ(vocabulary->kinds[3], TokenKind::kNormal);
  EXPECT_EQ(vocabulary->bos, 1);
  EXPECT_EQ(vocabulary->eos, 2);
  EXPECT_EQ(vocabulary->unknown, 0);
  EXPECT_TRUE(vocabulary->add_bos);
  EXPECT_FALSE(vocabulary->add_eos);
  EXPECT_TRUE(vocabulary->add_space_prefix);
  EXPECT_EQ(vocabulary->eot, 4);
  EXPECT_EQ(vocabulary->kinds[4], TokenKind::kControl);
}

TEST(VocabularyFromGguf, DefaultIdsOnlyIfTheTokensAreOfThatKind) {
  Keys keys;
  keys.types = {1, 1, 1, 1, 1};
  keys.tokens = {"a", "b", "c", "d", "e"};
  const auto vocabulary = read_vocabulary(keys);
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_FALSE(vocabulary->bos || vocabulary->eos || vocabulary->eot || vocabulary->unknown);
  EXPECT_FALSE(vocabulary->add_bos);
}

TEST(VocabularyFromGguf, KeysOverrideDefaults) {
  const auto vocabulary = read_vocabulary({}, [](gguf::Writer* writer) {
    writer->set_uint32("tokenizer.ggml.bos_token_id", 2);
    writer->set_uint32("tokenizer.ggml.eos_token_id", 1);
    writer->set_uint32("tokenizer.ggml.eot_token_id", 3);
    writer->set_int32("tokenizer.ggml.unknown_token_id", 4);
    writer->set_bool("tokenizer.ggml.add_bos_token", false);
    writer->set_bool("tokenizer.ggml.add_eos_token", true);
    writer->set_bool("tokenizer.ggml.add_space_prefix", false);
  });
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->bos, 2);
  EXPECT_EQ(vocabulary->eos, 1);
  EXPECT_EQ(vocabulary->eot, 3);
  EXPECT_EQ(vocabulary->unknown, 4);
  EXPECT_FALSE(vocabulary->add_bos);
  EXPECT_TRUE(vocabulary->add_eos);
  EXPECT_FALSE(vocabulary->add_space_prefix);
}

TEST(VocabularyFromGguf, OtherTokenizersAreUnsupported) {
  for (const char* model : {"bert", "t5", "rwkv"}) {
    Keys keys;
    keys.model = model;
    const auto vocabulary = read_vocabulary(keys);
    EXPECT_EQ(vocabulary.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(vocabulary.status().message(), HasSubstr(model));
    EXPECT_THAT(vocabulary.status().message(), HasSubstr("\"llama\""));
    EXPECT_THAT(vocabulary.status().message(), HasSubstr("\"gpt2\""));
  }
}

TEST(VocabularyFromGguf, MissingKeysAreNamed) {
  Keys keys;
  keys.model.clear();
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.model is missing"));
  keys = {};
  keys.tokens.clear();
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.tokens is missing"));
  keys = {};
  keys.scores.clear();
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.scores is missing"));
  keys = {};
  keys.types.clear();
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.token_type is missing"));
}

TEST(VocabularyFromGguf, LengthsAndRangesAreChecked) {
  Keys keys;
  keys.scores.pop_back();
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.scores has 4 entries"));
  keys = {};
  keys.types.push_back(1);
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.token_type has 6 entries"));
  for (const std::int32_t type : {-1, 0, 7, 257}) {
    keys = {};
    keys.types[3] = type;
    EXPECT_THAT(data_loss_message(keys), HasSubstr("of token 3 is " + std::to_string(type)));
  }
  for (const char* key : {"bos", "eos", "eot", "unknown"}) {
    const std::string name = "tokenizer.ggml." + std::string(key) + "_token_id";
    EXPECT_THAT(data_loss_message({}, [&](gguf::Writer* writer) { writer->set_uint32(name, 5); }),
                HasSubstr(name + " is 5"));
    EXPECT_THAT(data_loss_message({}, [&](gguf::Writer* writer) { writer->set_int32(name, -2); }), HasSubstr(name));
  }
  EXPECT_THAT(
      data_loss_message({}, [](gguf::Writer* writer) { writer->set_string("tokenizer.ggml.add_bos_token", "x"); }),
      HasSubstr("tokenizer.ggml.add_bos_token"));
}

Keys bpe_keys() {
  Keys keys;
  keys.model = "gpt2";
  keys.tokens = {"a", "b", "ab", "<|bos|>", "<|endoftext|>"};
  keys.scores.clear();
  keys.types = {1, 1, 1, 3, 1};
  return keys;
}

// The keys, with one merge and the pre-tokenizer if it has a name.
Result<Vocabulary> read_bpe(const Keys& keys, const char* pre, const std::function<void(gguf::Writer*)>& more = {}) {
  return read_vocabulary(keys, [&](gguf::Writer* writer) {
    writer->set_strings("tokenizer.ggml.merges", {"a b"});
    if (pre != nullptr) writer->set_string("tokenizer.ggml.pre", pre);
    if (more) more(writer);
  });
}

TEST(VocabularyFromGguf, SentencePieceWithMerges) {
  Keys keys;
  keys.model = "gemma4";
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.merges is missing"));
  keys.scores.clear();  // not needed
  const auto vocabulary = read_vocabulary(keys, [](gguf::Writer* writer) {
    writer->set_strings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    writer->set_bool("tokenizer.ggml.add_bos_token", false);  // as early files say
  });
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->tokenizer, TokenizerKind::kSpmMerges);
  EXPECT_EQ(vocabulary->merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(vocabulary->bos, 1);
  EXPECT_TRUE(vocabulary->add_bos);
  EXPECT_FALSE(vocabulary->add_space_prefix);
}

TEST(VocabularyFromGguf, DefaultsOfBpe) {
  const auto vocabulary = read_bpe(bpe_keys(), "qwen2");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->tokenizer, TokenizerKind::kBpe);
  EXPECT_EQ(vocabulary->merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(vocabulary->pre_tokenizer, "qwen2");
  EXPECT_FALSE(vocabulary->pre_tokenizer_assumed);
  EXPECT_EQ(vocabulary->scores.size(), 5U);
  EXPECT_FALSE(vocabulary->bos || vocabulary->eos || vocabulary->eot || vocabulary->unknown);
  EXPECT_FALSE(vocabulary->add_bos || vocabulary->add_eos || vocabulary->add_space_prefix);
  EXPECT_EQ(vocabulary->ends, std::vector<TokenId>{4});
  EXPECT_EQ(vocabulary->kinds[4], TokenKind::kControl);
}

TEST(VocabularyFromGguf, BpeTakesTokenElevenForBosAndEosIfItIsAControlToken) {
  Keys keys = bpe_keys();
  for (int i = 5; i < 12; ++i) {
    keys.tokens.push_back("t" + std::to_string(i));
    keys.types.push_back(1);
  }
  EXPECT_FALSE(read_bpe(keys, "falcon")->eos);
  keys.types[11] = 3;
  EXPECT_EQ(read_bpe(keys, "falcon")->bos, 11);
  EXPECT_EQ(read_bpe(keys, "falcon")->eos, 11);
}

TEST(VocabularyFromGguf, ThePreTokenizerTellsWhetherBosIsAdded) {
  const auto with_bos = [](gguf::Writer* writer) { writer->set_uint32("tokenizer.ggml.bos_token_id", 3); };
  EXPECT_TRUE(read_bpe(bpe_keys(), "llama-bpe", with_bos)->add_bos);
  EXPECT_FALSE(read_bpe(bpe_keys(), "llama-bpe")->add_bos);
  EXPECT_FALSE(read_bpe(bpe_keys(), "qwen2", with_bos)->add_bos);
  const auto refused = read_bpe(bpe_keys(), "llama-bpe", [&](gguf::Writer* writer) {
    with_bos(writer);
    writer->set_bool("tokenizer.ggml.add_bos_token", false);
  });
  EXPECT_FALSE(refused->add_bos);
}

TEST(VocabularyFromGguf, WithoutAPreTokenizerGpt2sIsAssumed) {
  const auto vocabulary = read_bpe(bpe_keys(), nullptr);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->pre_tokenizer, "gpt-2");
  EXPECT_TRUE(vocabulary->pre_tokenizer_assumed);
}

TEST(VocabularyFromGguf, UnknownPreTokenizersAreUnsupported) {
  const auto vocabulary = read_bpe(bpe_keys(), "nonesuch");
  EXPECT_EQ(vocabulary.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(vocabulary.status().message(), HasSubstr("\"nonesuch\" (tokenizer.ggml.pre)"));
  EXPECT_THAT(vocabulary.status().message(), HasSubstr("llama-bpe"));
}

TEST(VocabularyFromGguf, OldBpeFilesHaveNoTokenTypes) {
  Keys keys = bpe_keys();
  keys.types.clear();
  const auto vocabulary = read_bpe(keys, nullptr, [](gguf::Writer* writer) {
    writer->set_uint32("tokenizer.ggml.bos_token_id", 3);
    writer->set_uint32("tokenizer.ggml.eos_token_id", 3);
  });
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  const std::vector<TokenKind> kinds = {TokenKind::kNormal, TokenKind::kNormal, TokenKind::kNormal, TokenKind::kControl,
                                        TokenKind::kControl};
  EXPECT_EQ(vocabulary->kinds, kinds);
}

TEST(VocabularyFromGguf, MalformedBpeIsNamed) {
  EXPECT_THAT(data_loss_message(bpe_keys()), HasSubstr("tokenizer.ggml.merges is missing"));
  EXPECT_THAT(
      data_loss_message(bpe_keys(), [](gguf::Writer* writer) { writer->set_string("tokenizer.ggml.merges", "a b"); }),
      HasSubstr("tokenizer.ggml.merges"));
  Keys keys = bpe_keys();
  keys.types.pop_back();
  EXPECT_THAT(data_loss_message(keys), HasSubstr("tokenizer.ggml.token_type has 4 entries"));
  const auto far =
      read_bpe(bpe_keys(), "qwen2", [](gguf::Writer* writer) { writer->set_uint32("tokenizer.ggml.eom_token_id", 5); });
  EXPECT_THAT(far.status().message(), HasSubstr("tokenizer.ggml.eom_token_id is 5"));
  const auto number =
      read_bpe(bpe_keys(), nullptr, [](gguf::Writer* writer) { writer->set_uint32("tokenizer.ggml.pre", 5); });
  EXPECT_EQ(number.status().code(), StatusCode::kDataLoss);
}

TEST(VocabularyFromGguf, EndsAreKnownByHowTheyAreWritten) {
  Keys keys = bpe_keys();
  keys.tokens = {"<|eot_id|>", "<|eom_id|>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "</s>", "<|im_end|>"};
  keys.types = {1, 3, 4, 3, 3};
  const auto vocabulary = read_bpe(keys, "qwen2");
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(vocabulary->ends, (std::vector<TokenId>{0, 1, 2, 4}));  // </s> only where it is EOS
  EXPECT_EQ(vocabulary->eot, 0);
  EXPECT_EQ(vocabulary->kinds, std::vector<TokenKind>(5, TokenKind::kControl));
}

// Where an answer has parts, <|end|> ends one of them.
TEST(VocabularyFromGguf, EndsOfPartsAreNoEnds) {
  Keys keys = bpe_keys();
  keys.tokens = {"<|end|>", "<|return|>", "<|call|>", "a", "b"};
  EXPECT_EQ(read_bpe(keys, "gpt-4o")->ends, (std::vector<TokenId>{1, 2}));
  EXPECT_FALSE(read_bpe(keys, "gpt-4o")->eot);
  keys.tokens[1] = "c";
  EXPECT_EQ(read_bpe(keys, "gpt-4o")->ends, (std::vector<TokenId>{0, 2}));
}

TEST(VocabularyFromGguf, TokensOfPhi3SwallowWhiteSpace) {
  const auto strip_after = [](const char* key, const char* value) {
    Keys keys;
    keys.tokens = {"<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>"};
    keys.types = {2, 3, 4, 3, 3};
    return read_vocabulary(keys, [&](gguf::Writer* writer) { writer->set_string(key, value); })->strip_after;
  };
  const std::vector<TokenId> expected = {2, 4};
  EXPECT_EQ(strip_after("general.name", "Phi-3 mini"), expected);
  EXPECT_EQ(strip_after("general.name", "phi3"), expected);
  EXPECT_EQ(strip_after("general.architecture", "phi3"), expected);
  EXPECT_EQ(strip_after("general.name", "Llama"), std::vector<TokenId>());
}

TEST(VocabularyFromGguf, SmallModel) {
  const auto file = gguf::File::open(test::small_model());
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto vocabulary = vocabulary_from_gguf(*file);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->pieces.size(), 4096U);
  EXPECT_EQ(vocabulary->pieces[265], "in");
  EXPECT_EQ(vocabulary->bos, 1);
  EXPECT_EQ(vocabulary->eos, 2);
  EXPECT_EQ(vocabulary->unknown, 0);
  EXPECT_EQ(vocabulary->eot, 5);  // <|end|>
}

}  // namespace
}  // namespace kvasir
