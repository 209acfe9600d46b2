// Files that others wrote: the small model, whole, cut and damaged; and published vocabularies.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "gguf/reader.h"
#include "support/shared_data.h"
#include "walk.h"

namespace kvasir::gguf {
namespace {

constexpr std::size_t kModelSize = 3526176;
constexpr std::size_t kHeaderEnd = 95505;  // of the small model: metadata and descriptions of tensors

std::vector<std::byte> read_model() {
  std::ifstream in(kvasir::test::small_model(), std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(content.size());
  std::memcpy(bytes.data(), content.data(), content.size());
  return bytes;
}

std::uint64_t fnv1a(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3;
  return hash;
}

std::string write_temporary(const std::string& name, std::span<const std::byte> bytes) {
  const std::string path = testing::TempDir() + std::to_string(::getpid()) + "-" + name;
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  return path;
}

// Values as an independent reader of the format printed them.
TEST(ModelFile, HasKnownValues) {
  const auto file = File::open(kvasir::test::small_model());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->alignment(), 32u);
  EXPECT_EQ(file->size_bytes(), kModelSize);
  EXPECT_EQ(file->metadata().size(), 26u);
  EXPECT_EQ(file->tensors().size(), 56u);
  EXPECT_EQ(*file->get_string("general.architecture"), "llama");
  EXPECT_EQ(*file->get_uint("llama.block_count"), 6u);
  EXPECT_EQ(*file->get_uint("llama.attention.head_count_kv"), 3u);
  EXPECT_EQ(*file->get_float("llama.attention.layer_norm_rms_epsilon"), static_cast<double>(1e-5f));
  EXPECT_EQ(*file->get_float("llama.rope.freq_base"), 50000.0);
  EXPECT_TRUE(*file->get_bool("tokenizer.ggml.add_bos_token"));
  EXPECT_FALSE(*file->get_bool("tokenizer.ggml.add_eos_token"));
  const auto tokens = file->get_strings("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens.ok());
  ASSERT_EQ(tokens->size(), 4096u);
  EXPECT_EQ((*tokens)[3], "<|user|>");
  EXPECT_EQ((*tokens)[300], "\xe2\x96\x81n");
  EXPECT_EQ((*tokens)[4095], "]");
  EXPECT_EQ((*file->get_floats("tokenizer.ggml.scores"))[4095], -3833.0f);
  EXPECT_EQ((*file->get_ints("tokenizer.ggml.token_type"))[3], 4);

  const Tensor* norm = file->find_tensor("output_norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->dims, std::vector<std::uint64_t>{192});
  EXPECT_EQ(norm->offset, 95520u);
  float first = 0;
  std::memcpy(&first, norm->bytes.data(), sizeof first);
  EXPECT_EQ(first, 1.1425704956054688f);
  const Tensor* key = file->find_tensor("blk.0.attn_k.weight");
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(key->type, 8u);
  EXPECT_EQ(key->dims, (std::vector<std::uint64_t>{192, 96}));
  EXPECT_EQ(key->bytes.size(), 19584u);
  EXPECT_EQ(fnv1a(key->bytes), 0x179863a9dd05802u);
  const Tensor* last = file->find_tensor("blk.5.ffn_norm.weight");
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(fnv1a(last->bytes), 0x4d7965cb85b95614u);
  // Released pages come back from the file when they are read after all.
  file->release(*key, 0, ~std::uint64_t{0});
  EXPECT_EQ(fnv1a(key->bytes), 0x179863a9dd05802u);
  const auto bytes = read_model();
  std::uint64_t sum = 0;
  for (const Tensor& tensor : file->tensors()) {
    ASSERT_LE(tensor.offset + tensor.bytes.size(), bytes.size());
    EXPECT_EQ(std::memcmp(tensor.bytes.data(), bytes.data() + tensor.offset, tensor.bytes.size()), 0) << tensor.name;
    sum += tensor.bytes.size();
  }
  EXPECT_EQ(file->tensor_bytes(), sum);
}

TEST(ModelFile, SurvivesMoving) {
  auto file = File::open(kvasir::test::small_model());
  ASSERT_TRUE(file.ok());
  const std::string_view name = *file->get_string("general.name");
  const File moved = std::move(*file);
  EXPECT_EQ(name, "kvasir-mini 3M");
  EXPECT_EQ(moved.find_tensor("output_norm.weight")->elements, 192u);
}

TEST(ModelFile, CutAnywhereIsToldAsTruncated) {
  const auto whole = read_model();
  ASSERT_EQ(whole.size(), kModelSize);
  for (std::size_t part = 0; part < 64; ++part) {
    const std::span<const std::byte> cut(whole.data(), whole.size() * part / 64);
    const auto file = File::parse(cut);
    ASSERT_FALSE(file.ok()) << part;
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(file.status().message().find("download it again"), std::string::npos) << file.status().message();
    const auto header = File::parse(cut, {.header_only = true});
    EXPECT_EQ(header.ok(), cut.size() >= kHeaderEnd) << part;
    if (header.ok()) test::walk(*header, cut, true);
  }
}

TEST(ModelFile, HeaderOnlyOpensWhatIsCutBehindTheHeader) {
  const auto whole = read_model();
  ASSERT_EQ(whole.size(), kModelSize);
  const std::string cut = write_temporary("cut.gguf", std::span(whole).first(kHeaderEnd));
  const auto file = File::open(cut, {.header_only = true});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 56u);
  EXPECT_EQ(file->size_bytes(), kHeaderEnd);
  EXPECT_EQ(file->tensor_bytes(), kModelSize - 95520);  // its tensors lie without gaps
  const auto refused = File::open(cut);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(),
            "'" + cut +
                "': the file is truncated: tensor 'output_norm.weight' ends at byte 96288, but the file has 95505; "
                "download it again");
  const std::string shorter = write_temporary("shorter.gguf", std::span(whole).first(kHeaderEnd - 1));
  EXPECT_FALSE(File::open(shorter, {.header_only = true}).ok());
  EXPECT_EQ(File::open(cut + ".absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(File::open(testing::TempDir()).status().code(), StatusCode::kInvalidArgument);
  std::filesystem::remove(cut);
  std::filesystem::remove(shorter);
}

// Damage in the first 200 KB: all of the header and the first tensors.
TEST(ModelFile, RandomDamageIsAnErrorOrAFileThatCanBeWalked) {
  const auto whole = read_model();
  ASSERT_EQ(whole.size(), kModelSize);
  auto bytes = whole;
  std::mt19937_64 random(20240229);
  int refused = 0;
  int accepted = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::size_t reach = round % 2 == 0 ? 200'000 : 2'000;  // every second one where it hurts
    std::vector<std::size_t> damaged;
    for (std::uint64_t n = 1 + random() % 8; n > 0; --n) {
      const std::size_t at = random() % reach;
      const std::uint64_t value = random() % 4 == 0 ? ~std::uint64_t{0} >> random() % 64 : random();
      const std::size_t size = std::size_t{1} << random() % 4;
      std::memcpy(bytes.data() + at, &value, size);
      for (std::size_t i = 0; i < size; ++i) damaged.push_back(at + i);
    }
    const bool ok = test::parse_and_walk(bytes, false);
    const bool header_ok = test::parse_and_walk(bytes, true);
    EXPECT_TRUE(header_ok || !ok) << round;
    (ok ? accepted : refused) += 1;
    for (const std::size_t at : damaged) bytes[at] = whole[at];
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 100);
}

TEST(ModelFile, PublishedVocabulariesOpen) {
  KVASIR_SHARED_OR_SKIP(spm, "vocab/ggml-vocab-llama-spm.gguf");
  const auto file = File::open(spm);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->get_strings("tokenizer.ggml.tokens")->size(), 32000u);
  EXPECT_EQ(*file->get_uint("llama.feed_forward_length"), 11008u);
  KVASIR_SHARED_OR_SKIP(qwen, "vocab/ggml-vocab-qwen2.gguf");
  const auto other = File::open(qwen);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->get_strings("tokenizer.ggml.tokens")->size(), 151936u);
  EXPECT_EQ(other->get_strings("tokenizer.ggml.merges")->size(), 151387u);
}

// What the fuzzer starts from must at least not break the reader.
TEST(ModelFile, FuzzCorpusIsWalked) {
  int accepted = 0;
  for (const auto& seed : std::filesystem::directory_iterator(kvasir::test::source_dir() + "/fuzz/corpus/gguf")) {
    std::ifstream in(seed.path(), std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto* data = reinterpret_cast<const std::byte*>(content.data());
    accepted += test::parse_and_walk({data, content.size()}, false);
    test::parse_and_walk({data, content.size()}, true);
  }
  EXPECT_GE(accepted, 6);
}

}  // namespace
}  // namespace kvasir::gguf
