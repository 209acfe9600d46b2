// A model that an evaluation runs in this process: what is known of it before it is loaded, and its engine.
// Thread-safety: a TestedModel is immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "kvasir/engine.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

// The setting of one run: a policy and a codec.
struct CacheSetting {
  std::string policy;  // spec
  std::string codec;   // EngineOptions::kv_type
};

// Returns a digest of the program's own file, which tells builds apart; empty where it cannot be read. Thread-safe.
std::string build_digest();

// Returns what results name of a model in any evaluation: its file's name and fingerprint, the program's version and
// build, kernels and threads.
nlohmann::ordered_json model_identity(const std::string& path, const Hash128& fingerprint, std::string_view isa,
                                      int threads);

class TestedModel {
 public:
  virtual ~TestedModel() = default;

  // Reads the model's header. Errors: as Engine::open gives for the file.
  static Result<std::unique_ptr<TestedModel>> open(const EngineOptions& options);

  virtual const Tokenizer& tokenizer() const = 0;
  virtual std::int64_t context() const = 0;  // trained, tokens
  // The token that begins a text, as lm-evaluation-harness takes it: BOS, or else an end token. Also where the model is
  // not given it before prompts.
  virtual std::optional<std::int32_t> begin_token() const = 0;

  // Returns the KV memory for `parallel` texts of up to `tokens` tokens under any of the settings, or what the system
  // has room for, whichever is less. Errors: kInvalidArgument for a setting.
  virtual Result<std::uint64_t> kv_memory(std::span<const CacheSetting> settings, std::int64_t tokens,
                                          int parallel) const = 0;

  // Loads the model, with KV memory of the options or of kv_memory(). shares_prompts: the engine keeps prompts, in the
  // options' memory or in half of what the system has left, for later ones that begin alike. Errors: those of
  // Engine::open.
  virtual Result<std::unique_ptr<Engine>> load(
      std::span<const CacheSetting> settings, std::int64_t tokens, int parallel, bool shares_prompts,
      const std::function<void(std::uint64_t, std::uint64_t)>& progress) const = 0;

  // Returns what results name as asked: the file's name and fingerprint, and the engine's kernels and threads.
  virtual nlohmann::ordered_json identity(const Engine& engine) const = 0;
};

}  // namespace kvasir
