// Runs small models through the engine's own path: file, load, sequence, passes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gguf/reader.h"
#include "reference/reference_model.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "sequence/sequence_runner.h"
#include "support/decay_mixer.h"
#include "support/random_model.h"

namespace kvasir::test {

// A file that goes away with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<std::byte>& content) {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() /
             ("kvasir-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".gguf"))
                .string();
    write_bytes(path_, content);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::shared_ptr<LoadedModel> load(const std::string& path, EngineOptions options = {}) {
  options.model = path;
  auto model = load_model(options, {}, families_with_decay());
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : nullptr;
}

inline std::vector<TokenId> random_tokens(int count, int vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocabulary));
  return tokens;
}

// `codec`: none: the model's own. The cache has no other.
inline std::unique_ptr<SequenceRunner> new_runner(const std::shared_ptr<LoadedModel>& model, const std::string& policy,
                                                  std::uint64_t budget = std::uint64_t{1} << 28,
                                                  std::optional<KvCodec> codec = {}) {
  auto made = make_policy(policy);
  EXPECT_TRUE(made.ok()) << made.status().message();
  auto cache = new_cache(model, model->kv_shape.with(codec.value_or(model->kv_shape.codec())), budget);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return std::make_unique<SequenceRunner>(model, *cache, std::move(*made));
}

// Logits of every token, [tokens][vocabulary], fed in passes of up to `chunk`.
inline std::vector<float> all_logits(SequenceRunner& runner, std::span<const TokenId> tokens, int chunk) {
  std::vector<float> out;
  const Status status =
      runner.feed(tokens, chunk, SequenceRunner::Logits::kAll, [&](std::int64_t, int, std::span<const float> logits) {
        out.insert(out.end(), logits.begin(), logits.end());
        return true;
      });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline std::vector<double> flatten(const std::vector<std::vector<double>>& rows) {
  std::vector<double> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

}  // namespace kvasir::test
