#include "cli/serve/model_size.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/models/draft_plan.h"
#include "gguf/reader.h"
#include "model/sampling_from_gguf.h"
#include "planning/cache_sizing.h"
#include "planning/memory_plan.h"
#include "prefix_store/prefix_tiers.h"
#include "runtime/loaded_model.h"
#include "scheduler/draft_model.h"
#include "tiers/spill_file.h"

namespace kvasir::cli {
namespace {

// Returns the bytes of buffers between pages and places outside memory.
std::uint64_t buffers_of(const EngineOptions& options) {
  std::uint64_t bytes = options.swap_dir.empty() ? 0 : SpillFile::kBufferBytes;
  if (!options.prefix_dir.empty()) bytes += PrefixTiers::kMostBufferBytes;
  if (!options.redis.empty()) bytes += PrefixTiers::kMostBufferBytes;
  return bytes;
}

// Returns the workspace of passes at the trained context, and what describes their page tables.
std::uint64_t workspace_of(const ModelConfig& config, const BackendShape& sizes, const KvCacheShape& shape,
                           const RetentionPolicy& policy, int chunk, int threads) {
  const std::int64_t tokens = std::min<std::int64_t>(config.context, kMostPlannedTokens);
  const KvMemory kv = plan_kv_memory(shape, policy, {tokens, tokens, chunk, 1});
  const int rows = static_cast<int>(std::clamp<std::int64_t>(prompt_chunk(policy, chunk), 1, tokens));
  return kv.batch_bytes + kv.offload_buffer_bytes +
         cpu_workspace_bytes(sizes, plan_workspace(shape, policy, kv, rows, 1), threads);
}

}  // namespace

Result<PlannedModel> plan_served_model(const ModelSettings& settings, std::uint64_t memory, bool shared) {
  const EngineOptions& options = settings.engine;
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model));
  KVASIR_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(file));
  KVASIR_ASSIGN_OR_RETURN(const WeightMap weights, map_weights(file, config));
  KVASIR_ASSIGN_OR_RETURN(
      const KvCacheShape shape,
      kv_cache_shape(config, resolve_kv_type(options.kv_type, config, options.isa), options.page_slots));
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  KVASIR_ASSIGN_OR_RETURN(PolicySpec spec, PolicySpec::parse(settings.policy));
  PlannedModel planned;
  planned.summary.name = config.name;
  planned.summary.architecture = config.architecture();
  planned.summary.context = config.context;
  planned.summary.vocabulary = config.vocabulary;
  planned.summary.sampling = sampling_from_gguf(file);
  planned.summary.weight_bytes = cpu_weight_bytes(weights.parts);
  KVASIR_ASSIGN_OR_RETURN(const AdapterFiles adapters,
                          open_adapters(options.lora, config, weights, AdapterReading::kSizes));
  planned.summary.adapters = summaries_of(adapters.adapters);
  planned.size.weights = planned.summary.weight_bytes + adapters.bytes();
  BackendShape sizes = backend_shape(config);
  sizes.adapter_ranks = adapters.ranks();

  const int threads = options.threads > 0 ? options.threads : usable_cores();
  KVASIR_ASSIGN_OR_RETURN(const DraftPlan draft,
                          plan_draft_model({options.draft_model, options.page_slots, threads,
                                            kMostDraftTokens + kDraftRows, sequences_of(settings)},
                                           file));
  planned.summary.draft_weight_bytes = draft.weights;
  planned.size.weights += draft.weights;
  const std::uint64_t machine = memory_for_run(threads);
  const std::uint64_t bound = memory == 0 ? machine : memory;
  const std::uint64_t of_drafts = options.kv_memory > 0 ? 0 : draft.kv.bytes;
  const std::uint64_t fixed = planned.size.weights + buffers_of(options) + of_drafts;
  if (fixed >= bound)
    return exhausted("its weights take {}, and the memory left for it is {}; raise --memory or use a smaller model",
                     human_bytes(planned.size.weights), human_bytes(bound))
        .about({"memory"});
  CacheConditions conditions{
      shape,         config.context,
      options.chunk, options.kv_memory,
      bound - fixed, [&](const Backend::WorkspaceRequest& work) { return cpu_workspace_bytes(sizes, work, threads); }};
  KVASIR_ASSIGN_OR_RETURN(const std::vector<KvCodec> codecs, codecs_of(options));
  for (const KvCodec& codec : codecs)
    if (codec != shape.codec()) {
      KVASIR_ASSIGN_OR_RETURN(KvCacheShape other, kv_cache_shape(config, codec_name(codec), options.page_slots));
      conditions.others.push_back(std::move(other));
    }
  KVASIR_ASSIGN_OR_RETURN(const CacheSize several, size_cache(conditions, spec, sequences_of(settings)));
  planned.size.workspace = buffers_of(options) + draft.workspace +
                           workspace_of(config, sizes, shape, *several.policy, several.chunk, threads);
  planned.size.kv = several.bytes + of_drafts;
  if (options.kv_memory > 0) return planned;
  const std::uint64_t others = planned.size.weights + planned.size.workspace;
  if (shared) {
    KVASIR_ASSIGN_OR_RETURN(const CacheSize one, size_cache(conditions, spec, 1));
    const std::uint64_t half = bound / 2 > others ? bound / 2 - others : 0;
    planned.size.kv = std::min(planned.size.kv, std::max(one.bytes, half));
  }
  if (others < bound) planned.size.kv = std::min(planned.size.kv, bound - others);
  return planned;
}

int sequences_of(const ModelSettings& settings) {
  const double mark = settings.engine.scheduler.stop_mark;
  if (mark >= 1 || settings.batch > 64) return settings.batch;
  return std::min(65, static_cast<int>(settings.batch / mark) + 1);
}

SamplingOptions sampling_of(const ModelSettings& settings, const ModelSummary& model) {
  SamplingOptions sampling = model.sampling;
  sampling.temperature = settings.temperature.value_or(sampling.temperature);
  sampling.top_p = settings.top_p.value_or(sampling.top_p);
  sampling.min_p = settings.min_p.value_or(sampling.min_p);
  return sampling;
}

}  // namespace kvasir::cli
