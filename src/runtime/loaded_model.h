// A model ready to run: header, tokenizer, weights, kernels, threads.
// Thread-safety: one caller at a time (the transformer has one workspace).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "chat/chat_template.h"
#include "dialogue/conversation.h"
#include "gguf/reader.h"
#include "grammar/compiler.h"
#include "kv/kv_cache.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "model/config.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "offload/demotion_file.h"
#include "runtime/adapters.h"
#include "runtime/weight_file.h"
#include "text/tokenizer.h"
#include "tiers/cold_tier.h"

namespace kvasir {

struct LoadedModel {
  EngineOptions options;
  ModelConfig config;
  SamplingOptions sampling;  // recommended by the file
  KvCacheShape kv_shape;
  std::vector<KvCodec> codecs;  // available to sequences, kv_shape's first
  const KernelTable* kernels = nullptr;
  std::shared_ptr<ThreadPool> threads;  // never null; the draft model has the same
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarCompiler> grammars;  // of the tokenizer
  std::unique_ptr<FormatCache> formats;       // of answers by the chat template
  std::unique_ptr<ChatTemplate> chat;
  std::unique_ptr<WeightFile> weight_file;  // holds the backend's weights; null: they are in private memory
  std::unique_ptr<Backend> backend;
  Weights weights;
  std::uint64_t weight_bytes = 0;        // allocated
  std::uint64_t token_weight_bytes = 0;  // of these, what a pass of one token reads
  std::vector<Adapter> adapters;         // loaded into the backend; only their scales may change
  std::unique_ptr<Transformer> transformer;
  std::shared_ptr<LoadedModel> draft;           // EngineOptions::draft_model; null: none was given
  std::unique_ptr<DemotionFile> demotion_file;  // demoted pages of all sequences; null: no folder was given

  std::unique_ptr<ColdTier> cold_tier;  // offloaded heads of all sequences; null: no folder was given

  // XXH3-128 over the file's header and the first and last 64 KiB of each tensor. A split file has the fingerprint of
  // the whole file (gguf/reader.h), so sessions, stored prefixes and packed weights serve both.
  Hash128 fingerprint;

  // Names what decides the bits of a pass: the backend (of the CPU, its kernel table), its version, page slots, entries
  // per partial; behind kStatesOfId the mixers of layers with states. Sequences of equal ids may be continued by each
  // other.
  static constexpr std::string_view kStatesOfId = "/states=";
  // `adapted`: of texts that run with adapters.
  std::string arithmetic_id(const PageFormat& format, bool adapted = false) const;

  // Returns the store behind a cache of new_cache.
  PageStore* store_of(const KvCache& cache) const { return cache.pool().store(); }
};

// Checks that KV memory of `bytes` holds a page for each KV head of each layer. Errors: kInvalidArgument.
Status check_kv_memory(const KvCacheShape& shape, std::uint64_t bytes);

// Makes a cache for sequences of the model in any of its codecs, with the pages' bytes in the model's backend. Errors:
// those of check_kv_memory; kResourceExhausted.
Result<std::shared_ptr<KvCache>> new_cache(const std::shared_ptr<LoadedModel>& model, std::uint64_t budget);
// As above, only for the given shape.
Result<std::shared_ptr<KvCache>> new_cache(const std::shared_ptr<LoadedModel>& model, const KvCacheShape& shape,
                                           std::uint64_t budget);
// As above, within the budget of `other`, whose ownership the cache shares.
Result<std::shared_ptr<KvCache>> new_cache_within(const std::shared_ptr<LoadedModel>& model,
                                                  const std::shared_ptr<KvCache>& other);

// All that a file says of its model, checked, except the weights.
struct ModelHeader {
  ModelConfig config;
  SamplingOptions sampling;  // recommended by the file
  std::unique_ptr<ChatTemplate> chat;
  std::unique_ptr<Tokenizer> tokenizer;
  WeightMap weights;               // valid while the file is open
  std::uint64_t weight_bytes = 0;  // allocated by loading
};

// `chat`: a source in place of the file's own, unless empty. `known`: as read_model_config. Errors: those of the file
// and of the template.
Result<ModelHeader> read_model_header(const gguf::File& file, ChatTemplateOptions chat = {},
                                      std::span<const Family* const> known = families());

// Checks every option before any work. Errors: kInvalidArgument naming the option, and those of the file.
Result<std::shared_ptr<LoadedModel>> load_model(const EngineOptions& options,
                                                const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                                std::span<const Family* const> known = families());

// Errors: kInvalidArgument unless `chunk` is 0 or a number of tokens per forward pass that the engine takes.
Status check_chunk(int chunk);

// Errors: kInvalidArgument unless this names a codec (parse_codec).
Status check_kv_type(std::string_view kv_type);

// Returns the codec that "auto" stands for, with the kernels `isa` of this machine: i16 where attention is faster with
// it and the model's heads allow it, else f16. Returns any other text as it is.
std::string resolve_kv_type(std::string_view kv_type, const ModelConfig& config, std::string_view isa = "auto");

// Returns the codecs of EngineOptions, each once: kv_type, then kv_types. Errors: kInvalidArgument, also for too many.
Result<std::vector<KvCodec>> codecs_of(const EngineOptions& options);

// Returns the page shape that options ask of a model. Errors: kInvalidArgument.
Result<KvCacheShape> kv_cache_shape(const ModelConfig& config, std::string_view kv_type, int page_slots);

}  // namespace kvasir
