// Adapter files that are damaged, or not for the model: one clear error each.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/mapped_file.h"
#include "model/adapter.h"
#include "support/engine_fixture.h"
#include "support/gguf_writer.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::string llama_base() {
  return source_dir() + "/tests/reference/originals/llama.gguf";
}

// A tensor of an adapter, whose bytes are all the same.
struct TensorSpec {
  std::string name;
  std::vector<std::uint64_t> dims;
  DType type = DType::kF32;
  std::byte fill{};
};

// An adapter that can be loaded, unless something is changed.
struct AdapterSpec {
  std::string type = "adapter";
  std::string kind = "lora";
  std::string architecture = "llama";
  float alpha = 8;
  bool has_alpha = true;
  bool activated = false;
  std::vector<TensorSpec> tensors = {{"blk.0.attn_q.weight.lora_a", {64, 4}}, {"blk.0.attn_q.weight.lora_b", {4, 64}}};

  std::vector<std::byte> bytes() const {
    gguf::Writer writer;
    writer.set_string("general.type", type);
    if (!kind.empty()) writer.set_string("adapter.type", kind);
    writer.set_string("general.architecture", architecture);
    if (has_alpha) writer.set_float32("adapter.lora.alpha", alpha);
    if (activated) writer.set_int32s("adapter.alora.invocation_tokens", {1, 2});
    for (const TensorSpec& tensor : tensors) {
      const DTypeTraits& traits = dtype_traits(tensor.type);
      std::uint64_t elements = 1;
      for (const std::uint64_t dim : tensor.dims) elements *= dim;
      writer.add_tensor(tensor.name, static_cast<std::uint32_t>(tensor.type), tensor.dims,
                        std::vector<std::byte>(elements / traits.block_elements * traits.block_bytes, tensor.fill));
    }
    return writer.finish();
  }
};

Status load_adapter_of(const std::vector<std::byte>& bytes, float scale = 1) {
  const TemporaryFile file(bytes);
  EngineOptions options;
  options.model = llama_base();
  options.lora = {{file.path(), scale}};
  const auto model = load_model(options, {});
  if (model.ok()) return {};
  EXPECT_EQ(model.status().message().find('\n'), std::string::npos);
  EXPECT_NE(model.status().message().find(file.path()), std::string::npos) << model.status().message();
  return model.status();
}

void expect_refused(const AdapterSpec& spec, StatusCode code, const std::string& part) {
  const Status status = load_adapter_of(spec.bytes());
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(AdapterFiles, OfTheFormatAreLoaded) {
  EXPECT_TRUE(load_adapter_of(AdapterSpec().bytes()).ok());
  AdapterSpec one;  // rank 1, whose last dimension some writers leave out
  one.tensors = {{"blk.0.attn_q.weight.lora_a", {64}}, {"blk.0.attn_q.weight.lora_b", {1, 64}}};
  EXPECT_TRUE(load_adapter_of(one.bytes()).ok());
  AdapterSpec types;
  types.tensors = {{"blk.0.ffn_up.weight.lora_a", {64, 32}, DType::kQ8_0},
                   {"blk.0.ffn_up.weight.lora_b", {32, 96}, DType::kQ4_0},
                   {"blk.1.ffn_up.weight.lora_a", {64, 3}, DType::kBF16},
                   {"blk.1.ffn_up.weight.lora_b", {3, 96}, DType::kF16}};
  EXPECT_TRUE(load_adapter_of(types.bytes()).ok());
}

TEST(AdapterFiles, WithValuesThatAreNotFiniteAreRefused) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    AdapterSpec spec;
    spec.tensors = {{"blk.0.ffn_up.weight.lora_a", {64, 32}},
                    {"blk.0.ffn_up.weight.lora_b", {32, 96}, type, std::byte{0xff}}};
    expect_refused(spec, StatusCode::kDataLoss, "blk.0.ffn_up.weight.lora_b has values that are NaN or infinite");
  }
}

TEST(AdapterFiles, OfOtherKindsAreRefused) {
  AdapterSpec spec;
  spec.type = "model";
  expect_refused(spec, StatusCode::kInvalidArgument, "general.type is 'model'");
  spec = {};
  spec.kind = "control_vector";
  expect_refused(spec, StatusCode::kUnsupported, "of type 'control_vector'");
  spec.kind = "";
  expect_refused(spec, StatusCode::kUnsupported, "of type ''");
  spec = {};
  spec.architecture = "qwen2";
  expect_refused(spec, StatusCode::kInvalidArgument, "for models of architecture 'qwen2', and this one is of 'llama'");
  spec = {};
  spec.activated = true;
  expect_refused(spec, StatusCode::kUnsupported, "activated LoRA");
  const Status model = load_adapter_of([] {
    auto file = MappedFile::open(llama_base());
    return std::vector<std::byte>(file->bytes().begin(), file->bytes().end());
  }());
  EXPECT_NE(model.message().find("this is no adapter"), std::string::npos) << model.message();
}

TEST(AdapterFiles, WithTensorsThatDoNotFitAreRefused) {
  const auto with = [](std::vector<TensorSpec> tensors) {
    AdapterSpec spec;
    spec.tensors = std::move(tensors);
    return spec;
  };
  const std::string q = "blk.0.attn_q.weight";
  expect_refused(with({{q + ".lora_a", {64, 4}}}), StatusCode::kDataLoss, q + ".lora_b is missing");
  expect_refused(with({{q + ".lora_b", {4, 64}}}), StatusCode::kDataLoss, q + ".lora_a is missing");
  expect_refused(with({{q + ".lora_a", {64, 4}}, {q + ".lora_b", {5, 64}}}), StatusCode::kDataLoss, q);
  expect_refused(with({{q + ".lora_a", {63, 4}}, {q + ".lora_b", {4, 64}}}), StatusCode::kDataLoss, "(63 x 4)");
  expect_refused(with({{q + ".lora_a", {64, 4}}, {q + ".lora_b", {4, 65}}}), StatusCode::kDataLoss, "(4 x 65)");
  expect_refused(with({{q + ".lora_a", {4, 64}}, {q + ".lora_b", {64, 4}}}), StatusCode::kDataLoss, q);
  expect_refused(with({{q + ".lora_a", {64, 4, 2}}, {q + ".lora_b", {4, 64, 2}}}), StatusCode::kDataLoss, q);
  expect_refused(with({{"blk.9.attn_q.weight.lora_a", {64, 4}}, {"blk.9.attn_q.weight.lora_b", {4, 64}}}),
                 StatusCode::kDataLoss, "no tensor blk.9.attn_q.weight");
  expect_refused(with({{"output.weight.lora_a", {64, 4}}, {"output.weight.lora_b", {4, 96}}}), StatusCode::kDataLoss,
                 "no tensor output.weight");
  expect_refused(with({{"blk.0.attn_norm.weight", {64}}}), StatusCode::kUnsupported, "blk.0.attn_norm.weight");
  expect_refused(with({{"blk.0.attn_norm.weight.lora_a", {64, 1}}, {"blk.0.attn_norm.weight.lora_b", {1, 1}}}),
                 StatusCode::kUnsupported, "is no matrix");
  expect_refused(with({{"token_embd.weight.lora_a", {4, 96}}, {"token_embd.weight.lora_b", {4, 64}}}),
                 StatusCode::kUnsupported, "token_embd.weight is a table of embeddings");
  expect_refused(with({}), StatusCode::kDataLoss, "no tensors");
  expect_refused(with({{q + ".lora_a", {64, 70000}}, {q + ".lora_b", {70000, 64}}}), StatusCode::kUnsupported,
                 "rank 70000");
}

TEST(AdapterFiles, OfExpertsAreRefused) {
  AdapterSpec spec;
  spec.architecture = "qwen3moe";
  spec.tensors = {{"blk.0.ffn_up_exps.weight.lora_a", {64, 4, 8}}, {"blk.0.ffn_up_exps.weight.lora_b", {4, 32, 8}}};
  const TemporaryFile file(spec.bytes());
  EngineOptions options;
  options.model = source_dir() + "/tests/reference/originals/qwen3moe.gguf";
  options.lora = {{file.path()}};
  const auto model = load_model(options, {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(model.status().message().find("blk.0.ffn_up_exps.weight is a stack of experts' matrices"),
            std::string::npos)
      << model.status().message();
}

TEST(AdapterFiles, WithWrongNumbersAreRefused) {
  for (const float alpha : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    AdapterSpec spec;
    spec.alpha = alpha;
    expect_refused(spec, StatusCode::kDataLoss, "adapter.lora.alpha");
  }
  AdapterSpec none;
  none.has_alpha = false;
  expect_refused(none, StatusCode::kNotFound, "adapter.lora.alpha");
  EngineOptions options;
  options.model = llama_base();
  options.lora = {{"x.gguf", std::numeric_limits<float>::quiet_NaN()}};
  EXPECT_EQ(load_model(options, {}).status().code(), StatusCode::kInvalidArgument);
  options.lora.assign(kMostAdapters + 1, {"x.gguf"});
  EXPECT_NE(load_model(options, {}).status().message().find("at most 64"), std::string::npos);
  options.lora = {{"/no/such/adapter.gguf"}};
  EXPECT_EQ(load_model(options, {}).status().code(), StatusCode::kNotFound);
}

// Whatever bytes are changed or cut off, the file is refused, or what it names fits the model.
TEST(AdapterFiles, DamagedOnesNeverCrash) {
  const auto base = gguf::File::open(llama_base());
  ASSERT_TRUE(base.ok());
  const auto config = read_model_config(*base);
  const auto weights = map_weights(*base, *config);
  ASSERT_TRUE(weights.ok());
  const std::vector<std::byte> whole = AdapterSpec().bytes();
  std::mt19937_64 random(1);
  int mapped = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = whole;
    for (std::uint64_t change = 0; change <= random() % 3; ++change)
      bytes[random() % std::min<std::size_t>(bytes.size(), 400)] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto file = gguf::File::parse(bytes);
    if (!file.ok()) continue;
    const auto map = map_adapter(*file, *config, *weights);
    if (!map.ok()) continue;
    ++mapped;
    for (const LowRankPart& part : map->parts) {
      EXPECT_TRUE(std::isfinite(part.factor));
      EXPECT_EQ(part.a.outputs, part.b.inputs);
      EXPECT_EQ(part.a.inputs, weights->parts[static_cast<std::size_t>(part.matrix)].inputs);
      EXPECT_EQ(part.b.outputs, weights->parts[static_cast<std::size_t>(part.matrix)].outputs);
    }
  }
  EXPECT_GT(mapped, 100);
}

}  // namespace
}  // namespace kvasir::test
