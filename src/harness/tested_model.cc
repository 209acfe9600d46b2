#include "harness/tested_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/mapped_file.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "gguf/reader.h"
#include "kvasir/version.h"
#include "planning/memory_plan.h"
#include "retention/registry.h"
#include "runtime/fingerprint.h"
#include "runtime/loaded_model.h"

namespace kvasir {
namespace {

class GgufModel : public TestedModel {
 public:
  GgufModel(EngineOptions options, ModelHeader header, Hash128 fingerprint)
      : options_(std::move(options)), header_(std::move(header)), fingerprint_(fingerprint) {}

  const Tokenizer& tokenizer() const override { return *header_.tokenizer; }
  std::int64_t context() const override { return header_.config.context; }
  std::optional<std::int32_t> begin_token() const override {
    const Vocabulary& vocabulary = header_.tokenizer->vocabulary();
    if (vocabulary.bos || vocabulary.ends.empty()) return vocabulary.bos;
    return vocabulary.ends.front();
  }

  Result<std::uint64_t> kv_memory(std::span<const CacheSetting> settings, std::int64_t tokens,
                                  int parallel) const override {
    std::uint64_t most = 0;
    for (const CacheSetting& setting : settings) {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape,
                              kv_cache_shape(header_.config, setting.codec, options_.page_slots));
      KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(setting.policy));
      // A text that its last tokens are generated behind takes most where all but one are a prompt.
      const KvMemory memory = plan_kv_memory(
          shape, *policy,
          {.tokens = tokens, .prompt = tokens - 1, .chunk = options_.chunk, .sequences = 1, .divided = true});
      most = std::max(most, memory.bytes);
    }
    // Texts that are scored side by side have pages of their own behind their prompt.
    const std::uint64_t wanted = (most + most / 4) * static_cast<std::uint64_t>(parallel);
    return std::min(wanted, memory_left() / 4 * 3);
  }

  Result<std::unique_ptr<Engine>> load(
      std::span<const CacheSetting> settings, std::int64_t tokens, int parallel, bool shares_prompts,
      const std::function<void(std::uint64_t, std::uint64_t)>& progress) const override {
    EngineOptions options = options_;
    options.kv_types.clear();
    for (const CacheSetting& setting : settings)
      if (std::ranges::find(options.kv_types, setting.codec) == options.kv_types.end())
        options.kv_types.push_back(setting.codec);
    options.kv_type = options.kv_types.front();
    options.kv_types.erase(options.kv_types.begin());
    if (shares_prompts) options.prefix_memory = options.kv_memory;
    if (options.kv_memory == 0) {
      KVASIR_ASSIGN_OR_RETURN(options.kv_memory, kv_memory(settings, tokens, parallel));
      if (shares_prompts) {
        const std::uint64_t left = memory_left();
        options.prefix_memory = (left - std::min(left, options.kv_memory)) / 2;
        options.kv_memory += options.prefix_memory;
      }
    }
    return Engine::open(options, progress);
  }

  nlohmann::ordered_json identity(const Engine& engine) const override {
    const ModelSummary& model = engine.model();
    nlohmann::ordered_json json = model_identity(options_.model, fingerprint_, model.isa, model.threads);
    json["page"] = options_.page_slots;
    for (const AdapterFile& adapter : options_.lora) {
      const Result<gguf::File> file = gguf::File::open(adapter.path);
      json["adapters"].push_back({{"file", std::filesystem::path(adapter.path).filename().string()},
                                  {"fingerprint", file.ok() ? fingerprint_of(*file).hex() : ""},
                                  {"scale", adapter.scale}});
    }
    return json;
  }

 private:
  // Returns what the system has room for beside the weights.
  std::uint64_t memory_left() const {
    const std::uint64_t memory = memory_for_run(options_.threads > 0 ? options_.threads : usable_cores());
    return memory - std::min(memory, header_.weight_bytes);
  }

  EngineOptions options_;
  ModelHeader header_;
  Hash128 fingerprint_;
};

}  // namespace

std::string build_digest() {
  static const std::string digest = [] {
    const Result<MappedFile> file = MappedFile::open("/proc/self/exe");
    return file.ok() ? fmt::format("{:016x}", hash64(file->bytes())) : std::string();
  }();
  return digest;
}

nlohmann::ordered_json model_identity(const std::string& path, const Hash128& fingerprint, std::string_view isa,
                                      int threads) {
  return {{"model", std::filesystem::path(path).filename().string()},
          {"fingerprint", fingerprint.hex()},
          {"version", kVersion},
          {"build", build_digest()},
          {"isa", isa},
          {"threads", threads}};
}

Result<std::unique_ptr<TestedModel>> TestedModel::open(const EngineOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model));
  KVASIR_ASSIGN_OR_RETURN(ModelHeader header, read_model_header(file));
  header.weights = {};  // refers to the file
  return std::unique_ptr<TestedModel>(std::make_unique<GgufModel>(options, std::move(header), fingerprint_of(file)));
}

}  // namespace kvasir
