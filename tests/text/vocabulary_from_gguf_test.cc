#include "model/vocabulary_from_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "gguf/writer.h"
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

Result<Vocabulary> read(const Keys& keys, const std::function<void(gguf::Writer*)>& more = {}) {
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
  const auto vocabulary = read(keys, more);
  EXPECT_EQ(vocabulary.status().code(), StatusCode::kDataLoss);
  return vocabulary.status().message();
}

TEST(VocabularyFromGguf, DefaultsOfSpm) {
  const auto vocabulary = read({});
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
  const auto vocabulary = read(keys);
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_FALSE(vocabulary->bos || vocabulary->eos || vocabulary->eot || vocabulary->unknown);
  EXPECT_FALSE(vocabulary->add_bos);
}

TEST(VocabularyFromGguf, KeysOverrideDefaults) {
  const auto vocabulary = read({}, [](gguf::Writer* writer) {
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
  for (const char* model : {"bert", "t5", "rwkv", "gemma4"}) {
    Keys keys;
    keys.model = model;
    const auto vocabulary = read(keys);
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
    EXPECT_THAT(data_loss_message({}, [&](gguf::Writer* writer) { writer->set_int32(name, -1); }), HasSubstr(name));
  }
  EXPECT_THAT(
      data_loss_message({}, [](gguf::Writer* writer) { writer->set_string("tokenizer.ggml.add_bos_token", "x"); }),
      HasSubstr("tokenizer.ggml.add_bos_token"));
}

TEST(VocabularyFromGguf, BundledModel) {
  const auto file = gguf::File::open(test::bundled_model());
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
