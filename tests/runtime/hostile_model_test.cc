// Well-formed files that hold no model Kvasir could run: one clear error each.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

// A file whose bytes are overwritten in place.
class Patched {
 public:
  explicit Patched(const RandomModelSpec& spec = {}) : bytes_(make_random_model(spec)) {}

  // Metadata: the value behind a key and its type.
  template <class T>
  Patched& value(const std::string& key, T value) {
    put(behind(key) + sizeof(std::uint32_t), &value, sizeof value);
    return *this;
  }
  Patched& value_type(const std::string& key, std::uint32_t type) {
    put(behind(key), &type, sizeof type);
    return *this;
  }
  Patched& rename(const std::string& from, const std::string& to) {
    EXPECT_EQ(from.size(), to.size());
    put(behind(from) - from.size(), to.data(), to.size());
    return *this;
  }
  // Tensors: name, number of dimensions, dimensions, type, offset.
  Patched& dimension(const std::string& name, int which, std::uint64_t value) {
    put(behind(name) + 4 + 8 * static_cast<std::size_t>(which), &value, sizeof value);
    return *this;
  }
  Patched& type(const std::string& name, int dimensions, std::uint32_t type) {
    put(behind(name) + 4 + 8 * static_cast<std::size_t>(dimensions), &type, sizeof type);
    return *this;
  }
  Patched& replace(const std::string& from, const std::string& to) {
    const std::size_t at = behind(from) - from.size();
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at);
    bytes_.erase(begin, begin + static_cast<std::ptrdiff_t>(from.size()));
    const auto* data = reinterpret_cast<const std::byte*>(to.data());
    bytes_.insert(bytes_.begin() + static_cast<std::ptrdiff_t>(at), data, data + to.size());
    return *this;
  }

  Status run() const {
    const TemporaryFile file(bytes_);
    EngineOptions options;
    options.model = file.path();
    options.threads = 1;
    auto engine = Engine::open(options);
    if (!engine.ok()) return engine.status();
    auto session = (*engine)->new_session({});
    if (!session.ok()) return session.status();
    const Status read = (*session)->read("the house");
    if (!read.ok()) return read;
    GenerateOptions generate;
    generate.max_tokens = 3;
    return (*session)->generate(generate, {}).status();
  }

 private:
  // The first place behind a string that is stored with its length.
  std::size_t behind(const std::string& text) const {
    std::string stored(8, '\0');
    const std::uint64_t size = text.size();
    std::memcpy(stored.data(), &size, sizeof size);
    stored += text;
    const std::string_view all(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
    const std::size_t found = all.find(
        text.find('\0') == std::string::npos && all.find(stored) != std::string_view::npos ? std::string_view(stored)
                                                                                           : std::string_view(text));
    EXPECT_NE(found, std::string_view::npos) << text;
    return found + (all.find(stored) == found ? stored.size() : text.size());
  }
  void put(std::size_t at, const void* data, std::size_t size) { std::memcpy(bytes_.data() + at, data, size); }

  std::vector<std::byte> bytes_;
};

void expect_refused(const char* what, const Patched& model, const std::string& mentions) {
  const Status status = model.run();
  EXPECT_FALSE(status.ok()) << what;
  EXPECT_TRUE(status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound ||
              status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kResourceExhausted)
      << what << ": " << status_code_name(status.code());
  EXPECT_NE(status.message().find(mentions), std::string::npos) << what << ": " << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << what << ": " << status.message();
}

TEST(HostileModel, UnpatchedRuns) {
  EXPECT_TRUE(Patched().run().ok());
}

TEST(HostileModel, Metadata) {
  for (const std::string key :
       {"llama.attention.head_count", "llama.attention.head_count_kv", "llama.block_count", "llama.embedding_length",
        "llama.feed_forward_length", "llama.context_length", "llama.rope.dimension_count"})
    for (const std::uint32_t value : {0u, 0x7fffffffu, 0xffffffffu})
      expect_refused((key + " = " + std::to_string(value)).c_str(), Patched().value(key, value), key);
  expect_refused("3 heads", Patched().value("llama.attention.head_count", 3u), "head");
  expect_refused("5 KV heads", Patched().value("llama.attention.head_count_kv", 3u), "heads");
  expect_refused("7 rotated dimensions", Patched().value("llama.rope.dimension_count", 7u), "dimension_count");
  expect_refused("more layers", Patched().value("llama.block_count", 3u), "blk.2.");
  expect_refused("wider", Patched().value("llama.embedding_length", 128u), "");
  expect_refused("epsilon 0", Patched().value("llama.attention.layer_norm_rms_epsilon", 0.0F), "epsilon");
  expect_refused("epsilon nan", Patched().value("llama.attention.layer_norm_rms_epsilon", NAN), "epsilon");
  expect_refused("base 0", Patched().value("llama.rope.freq_base", 0.0F), "freq_base");
  expect_refused("base nan", Patched().value("llama.rope.freq_base", NAN), "freq_base");
  expect_refused("base inf", Patched().value("llama.rope.freq_base", INFINITY), "freq_base");
  RandomModelSpec linear;
  linear.rope_scaling = RopeScaling::kLinear;
  EXPECT_TRUE(Patched(linear).run().ok());
  expect_refused("factor 0", Patched(linear).value("llama.rope.scaling.factor", 0.0F), "factor");
  expect_refused("factor inf", Patched(linear).value("llama.rope.scaling.factor", INFINITY), "factor");
  expect_refused("scaling", Patched(linear).rename("linear", "dynami"), "dynami");
  RandomModelSpec yarn;
  yarn.rope_scaling = RopeScaling::kYarn;
  EXPECT_TRUE(Patched(yarn).run().ok());
  for (const float factor : {0.0F, 0.5F, NAN, INFINITY})
    expect_refused("yarn factor", Patched(yarn).value("llama.rope.scaling.factor", factor), "factor");
  expect_refused("original context", Patched(yarn).value("llama.rope.scaling.original_context_length", 0u),
                 "original_context_length");
  RandomModelSpec window;
  window.sliding_window = 8;
  for (const std::uint32_t value : {0u, 1u, 8u, 0xffffffffu})
    EXPECT_TRUE(Patched(window).value("llama.attention.sliding_window", value).run().ok()) << value;
  expect_refused("window as a float", Patched(window).value_type("llama.attention.sliding_window", 6),
                 "sliding_window");
  expect_refused("architecture", Patched().rename("llama", "camel"), "camel");
  expect_refused("no architecture", Patched().rename("general.architecture", "general.architectura"), "architecture");
  expect_refused("no head count", Patched().rename("llama.attention.head_count", "llama.attention.head_coumt"),
                 "head_count");
  expect_refused("a float for a count", Patched().value_type("llama.block_count", 6), "block_count");
  expect_refused("BOS", Patched().value("tokenizer.ggml.bos_token_id", 9999u), "bos");
  expect_refused("tokenizer", Patched().rename("tokenizer.ggml.model", "tokenizer.ggml.modem"), "tokenizer");
}

TEST(HostileModel, HugeContextIsBoundedByTheMemory) {
  // Within what a context may be, and far beyond any memory: bounded like any other.
  const Status status = Patched().value("llama.context_length", 1u << 30).run();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(HostileModel, Tensors) {
  expect_refused("missing", Patched().rename("blk.1.ffn_up.weight", "blk.1.ffn_uq.weight"), "blk.1.ffn_up.weight");
  expect_refused("no embedding", Patched().rename("token_embd.weight", "token_embe.weight"), "token_embd.weight");
  expect_refused("no final norm", Patched().rename("output_norm.weight", "output_morn.weight"), "output_norm.weight");
  expect_refused("fewer rows", Patched().dimension("blk.0.attn_q.weight", 1, 32), "blk.0.attn_q.weight");
  expect_refused("shorter rows", Patched().dimension("blk.0.attn_k.weight", 0, 32), "blk.0.attn_k.weight");
  expect_refused("no rows", Patched().dimension("blk.0.attn_v.weight", 1, 0), "blk.0.attn_v.weight");
  expect_refused("rows beyond the file", Patched().dimension("blk.0.attn_v.weight", 1, std::uint64_t{1} << 40),
                 "blk.0.attn_v.weight");
  expect_refused("dimensions that overflow", Patched().dimension("blk.0.attn_v.weight", 1, ~std::uint64_t{0}),
                 "blk.0.attn_v.weight");
  expect_refused("smaller vocabulary", Patched().dimension("token_embd.weight", 1, 300), "320");
  expect_refused("short norm", Patched().dimension("blk.0.ffn_norm.weight", 0, 32), "blk.0.ffn_norm.weight");
  expect_refused("a type that is none", Patched().type("blk.0.ffn_down.weight", 2, 999), "blk.0.ffn_down.weight");
  expect_refused("I8", Patched().type("blk.0.ffn_down.weight", 2, 24), "I8");
  expect_refused("a norm in Q8_0", Patched().type("blk.0.attn_norm.weight", 1, 8), "blk.0.attn_norm.weight");
  RandomModelSpec llama3;
  llama3.rope_scaling = RopeScaling::kLlama3;
  EXPECT_TRUE(Patched(llama3).run().ok());
  expect_refused("a tensor nobody asked for", Patched(llama3).rename("rope_freqs.weight", "rope_fraqs.weight"),
                 "rope_fraqs.weight");
}

TEST(HostileModel, WeightsThatAreNoNumbers) {
  const auto with = [](float value) {
    return make_model({}, [&](const std::string&, int rows, int columns) {
      return std::vector<float>(static_cast<std::size_t>(rows * columns), value);
    });
  };
  for (const float value : {NAN, INFINITY, -INFINITY, 1e38F, 0.0F}) {
    const TemporaryFile file(with(value));
    EngineOptions options;
    options.model = file.path();
    options.threads = 1;
    auto engine = Engine::open(options);
    if (!engine.ok()) continue;
    auto session = (*engine)->new_session({});
    ASSERT_TRUE(session.ok());
    if (!(*session)->read("the house").ok()) continue;
    GenerateOptions generate;
    generate.max_tokens = 3;
    const auto result = (*session)->generate(generate, {});
    if (std::isnan(value)) {
      EXPECT_EQ(result.status().code(), StatusCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace kvasir::test
