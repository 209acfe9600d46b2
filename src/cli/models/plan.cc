// kvasir plan: plans memory from a model's header alone.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "base/counted.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/models/draft_plan.h"
#include "gguf/reader.h"
#include "offload/follower_heads.h"
#include "planning/cache_sizing.h"
#include "planning/memory_plan.h"
#include "prefix_store/prefix_tiers.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "runtime/token_workspace.h"
#include "sequence/context_rules.h"
#include "tiers/spill_file.h"

namespace kvasir::cli {
namespace {

struct PlanOptions {
  std::string model;
  std::vector<AdapterFile> lora;
  std::int64_t context = 0;
  std::int64_t prompt = -1;
  int batch = 1;
  int chunk = 0;
  int page_slots = 32;
  std::string kv_type = "auto";
  std::string isa = "auto";
  std::string policy;
  std::string draft;
  std::string demote;
  std::uint64_t memory = 0;
  bool json = false;
};

// Returns, for each codec of keys and values alike, a page's bytes divided by its tokens.
Json bytes_per_token_by_codec(KvCacheShape shape) {
  Json out = Json::array();
  for (const std::string_view name : kv_type_names()) {
    shape.page.key = shape.page.value = *kv_type_from_name(name);
    out.push_back({{"codec", name}, {"bytes", shape.page.slot_bytes() * static_cast<std::uint64_t>(shape.lanes())}});
  }
  return out;
}

// Says what `run` would do with a text of the planned length, given --memory or this machine's memory.
struct RunDecision {
  int chunk = 0;       // of prompts; 0: the policy's own
  std::string policy;  // the policy it would use
  Status refusal;      // ok: it would run
};

// `weight_bytes`: with the adapters and the draft model.
RunDecision decide(const PlanOptions& options, const std::optional<PolicySpec>& asked, const ModelConfig& config,
                   const BackendShape& sizes, const KvCacheShape& shape, std::uint64_t weight_bytes,
                   std::int64_t prompt) {
  const std::uint64_t memory = options.memory > 0 ? options.memory : memory_for_run(usable_cores());
  RunDecision decision{options.chunk, {}, {}};
  const std::uint64_t pass = token_workspace_bytes(config, sizes, usable_cores());
  if (weight_bytes + pass >= memory) {
    decision.refusal = exhausted("the model's weights take {} bytes and a pass {} more, of {} that there are",
                                 weight_bytes, pass, memory);
    return decision;
  }
  const CacheConditions conditions{
      shape, config.context, options.chunk, 0, memory - weight_bytes, [&](const Backend::WorkspaceRequest& work) {
        return cpu_workspace_bytes(sizes, work, usable_cores());
      }};
  const Result<CacheSize> size = size_cache(conditions, asked, 1);
  if (!size.ok()) {
    decision.refusal = size.status();
    return decision;
  }
  decision.chunk = size->chunk;
  decision.policy = size->policy->traits().spec;
  if (prompt > 0)
    decision.refusal = check_prompt(shape, *size->policy, {}, 0, prompt, size->chunk, config.context, size->bytes);
  return decision;
}

Status plan(PlanOptions options) {
  EngineOptions nothing;  // a plan makes no files
  KVASIR_RETURN_IF_ERROR(apply_demote(options.demote, options.policy, nothing));
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model, {.header_only = true}));
  KVASIR_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(file));
  options.kv_type = resolve_kv_type(options.kv_type, config, options.isa);
  KVASIR_ASSIGN_OR_RETURN(const WeightMap weights, map_weights(file, config));
  const std::uint64_t weight_bytes = cpu_weight_bytes(weights.parts);
  KVASIR_ASSIGN_OR_RETURN(const AdapterFiles adapters,
                          open_adapters(options.lora, config, weights, AdapterReading::kHeaders));
  BackendShape sizes = backend_shape(config);
  sizes.adapter_ranks = adapters.ranks();
  KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(config, options.kv_type, options.page_slots));
  const std::int64_t context = options.context > 0 ? options.context : config.context;
  const std::int64_t prompt = options.prompt >= 0 ? options.prompt : context;
  if (options.context < 0 || context > std::int64_t{1} << 40)
    return invalid_argument("ctx is {}; it must be 0 to 2^40 tokens (0: the trained context)", options.context)
        .about({"ctx"});
  if (options.prompt < -1) return invalid_argument("--prompt {} is below -1 (all tokens)", options.prompt);
  if (prompt > context) return invalid_argument("--prompt {} is more than --ctx {}", prompt, context);
  if (options.batch < 1 || options.batch > 65536)
    return invalid_argument("--batch {} is outside 1 to 65536 sequences", options.batch);
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  std::optional<PolicySpec> asked;
  if (!options.policy.empty()) {
    KVASIR_ASSIGN_OR_RETURN(asked, PolicySpec::parse(options.policy));
  }
  PolicySpec spec = asked.value_or(PolicySpec::named("streaming"));
  if (!asked) spec.parts.front().set("cap", std::max<std::int64_t>(config.context, 5));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(spec));
  const AttentionSpec& governed = config.governed();
  const PolicyModel model{nullptr,        config.governed_layers(), governed.kv_heads,          governed.window,
                          governed.heads, governed.head_dim,        governed.latent.has_value()};
  KVASIR_RETURN_IF_ERROR(check_model(*policy, model));
  KVASIR_RETURN_IF_ERROR(policy->check_pages(model, shape.page));
  const ColdTier any(nullptr, 0);  // only its presence matters
  KVASIR_RETURN_IF_ERROR(check_offload(*policy, shape, &any));
  KVASIR_RETURN_IF_ERROR(check_positions(*policy, options.chunk, config.context));
  if (std::min(policy->bound().value_or(context), context) > kMostPlannedTokens)
    return invalid_argument("policy '{}' keeps up to {} tokens; plan at most 2^24 of them", spec.text(),
                            std::min(policy->bound().value_or(context), context));

  // `run` holds the tokenizer too, which counts if the address space is limited.
  std::optional<Result<ModelHeader>> held;
  if (options.memory == 0 && address_space_is_limited()) held.emplace(read_model_header(file));
  KVASIR_ASSIGN_OR_RETURN(
      const DraftPlan draft,
      plan_draft_model({options.draft, options.page_slots, usable_cores(), context, options.batch}, file));
  RunDecision decision =
      decide(options, asked, config, sizes, shape, weight_bytes + adapters.bytes() + draft.weights, prompt);
  // Reads no tensor data: compares where tensors end with the file's size.
  if (const Status whole = gguf::File::open(options.model).status(); !whole.ok()) decision.refusal = whole;
  for (const AdapterFile& adapter : options.lora)
    if (const Status whole = gguf::File::open(adapter.path).status(); !whole.ok()) decision.refusal = whole;
  if (decision.refusal.ok() && !held) held.emplace(read_model_header(file));
  if (held && !held->ok()) decision.refusal = held->status();
  const int chunk = prompt_chunk(*policy, options.policy.empty() ? options.chunk : decision.chunk);
  const std::string stored_as = codec_name(codec_for(config, shape.codec(), *policy, chunk, context));
  const KvMemory kv = plan_kv_memory(shape, *policy, {context, prompt, chunk, options.batch});
  const int rows = static_cast<int>(std::min<std::int64_t>(chunk, context));
  const std::uint64_t workspace =
      cpu_workspace_bytes(sizes, plan_workspace(shape, *policy, kv, rows, options.batch), usable_cores());
  const std::uint64_t total = weight_bytes + adapters.bytes() + kv.bytes + kv.batch_bytes + kv.offload_buffer_bytes +
                              workspace + draft.weights + draft.kv.bytes + draft.workspace;
  const std::uint64_t one_sequence =
      (kv.bytes + kv.batch_bytes + draft.kv.bytes) / static_cast<std::uint64_t>(options.batch);
  const std::uint64_t others = weight_bytes + adapters.bytes() + workspace + draft.weights + draft.workspace;
  const std::uint64_t fit = options.memory > others ? (options.memory - others) / one_sequence : 0;
  if (policy->context_use() == ContextUse::kNone)
    note_beyond_context(policy->traits().spec, kv.tokens_seen_max, config.context, "would see");
  // Without --kv, `run` uses a smaller cap if its memory does not hold this one.
  const bool cap_would_shrink = options.policy.empty() && options.memory > others && total > options.memory;
  if (options.json) {
    Json out{{"policy", policy->traits().spec},
             {"codec", stored_as},
             {"tokens", context},
             {"trained_context", config.context},
             {"prompt", prompt},
             {"batch", options.batch},
             {"tokens_seen_max", kv.tokens_seen_max},
             {"kv_pages", kv.pages},
             {"kv_page_bytes", kv.page_bytes},
             {"kv_open_pages", kv.open_pages},
             {"kv_open_page_bytes", kv.open_page_bytes},
             {"kv_table_bytes", kv.table_bytes},
             {"policy_bytes", kv.policy_bytes},
             {"demoted_bytes", kv.demoted_bytes},
             {"offload_bytes", kv.offload_bytes},
             {"offload_file_bytes", kv.offload_file_bytes},
             {"offload_buffer_bytes", kv.offload_buffer_bytes},
             {"kv_bytes", kv.bytes},
             {"kv_exact", kv.exact},
             {"kv_bytes_per_token", shape.page.slot_bytes() * static_cast<std::uint64_t>(shape.lanes())},
             {"kv_bytes_per_token_by_codec", bytes_per_token_by_codec(shape)},
             {"batch_bytes", kv.batch_bytes},
             {"weight_bytes", weight_bytes},
             {"adapter_bytes", adapters.bytes()},
             {"workspace_bytes", workspace},
             {"draft_weight_bytes", draft.weights},
             {"draft_kv_bytes", draft.kv.bytes},
             {"draft_workspace_bytes", draft.workspace},
             {"swap_buffer_bytes", SpillFile::kBufferBytes},
             {"prefix_buffer_bytes", PrefixTiers::kMostBufferBytes},
             {"total_bytes", total},
             {"run_refuses", nullptr}};
    for (std::size_t w = 0; w < kv.windows.size(); ++w) {
      const KvMemory::Window& window = kv.windows[w];
      out["kv_windows"].push_back({{"layers", shape.windows[w].layers},
                                   {"window", shape.windows[w].window},
                                   {"pages", window.pages},
                                   {"page_bytes", window.page_bytes},
                                   {"open_pages", window.open_pages},
                                   {"open_page_bytes", window.open_page_bytes}});
    }
    for (const StateGroup& group : shape.states)
      out["kv_states"].push_back({{"layers", group.layers},
                                  {"bytes", group.bytes * static_cast<std::uint64_t>(group.layers * options.batch)}});
    if (!decision.refusal.ok()) out["run_refuses"] = decision.refusal.message();
    out["run_policy"] = decision.policy;
    if (options.memory > 0) {
      out["memory"] = options.memory;
      out["fits"] = total <= options.memory;
      out["sequences_that_fit"] = fit;
      out["cap_would_shrink"] = cap_would_shrink;
    }
    return print_json(out);
  }
  std::string out = fmt::format("{} ({} of them a prompt read {} at a time), {}, policy {}, {} pages of {} tokens\n\n",
                                counted(context, "token"), prompt, chunk, counted(options.batch, "sequence"),
                                policy->traits().spec, stored_as, shape.page.slots);
  out += fmt::format("  KV pages     {:>10} x {} bytes = {}\n", kv.pages, kv.page_bytes,
                     human_bytes(kv.pages * kv.page_bytes));
  if (kv.open_pages > 0)
    out += fmt::format("  open pages   {:>10} x {} bytes = {}   (in 16 bits until they are full)\n", kv.open_pages,
                       kv.open_page_bytes, human_bytes(kv.open_pages * kv.open_page_bytes));
  for (std::size_t w = 0; w < kv.windows.size(); ++w) {
    const KvMemory::Window& window = kv.windows[w];
    out += fmt::format("  window pages {:>10} x {} bytes = {}   (of {} that see {} tokens)\n", window.pages,
                       window.page_bytes,
                       human_bytes(window.pages * window.page_bytes + window.open_pages * window.open_page_bytes),
                       counted(shape.windows[w].layers, "layer"), shape.windows[w].window);
  }
  for (const StateGroup& group : shape.states)
    out += fmt::format("  states       {:>10}   (of {}, whatever the text)\n",
                       human_bytes(group.bytes * static_cast<std::uint64_t>(group.layers * options.batch)),
                       counted(group.layers, "layer"));
  out += fmt::format("  KV tables    {:>10}\n", human_bytes(kv.table_bytes));
  if (kv.policy_bytes > 0) out += fmt::format("  policy state {:>10}   (at most)\n", human_bytes(kv.policy_bytes));
  if (kv.demoted_bytes > 0) out += fmt::format("  demoted      {:>10}   (at most)\n", human_bytes(kv.demoted_bytes));
  if (kv.offload_bytes > 0)
    out += fmt::format("  offloaded    {:>10}   (at most; in a file {}, in buffers beside the KV memory {})\n",
                       human_bytes(kv.offload_bytes), human_bytes(kv.offload_file_bytes),
                       human_bytes(kv.offload_buffer_bytes));
  out += fmt::format("  KV in all    {:>10}   ({} bytes: what run is charged{})\n", human_bytes(kv.bytes), kv.bytes,
                     kv.exact ? " for it" : " at most; how much it is depends on what the text makes the policy drop");
  out += fmt::format("  batch        {:>10}   (at most)\n", human_bytes(kv.batch_bytes));
  out += fmt::format("  weights      {:>10}\n", human_bytes(weight_bytes));
  if (!options.lora.empty())
    out += fmt::format("  adapters     {:>10}   ({} bytes)\n", human_bytes(adapters.bytes()), adapters.bytes());
  if (!options.draft.empty())
    out += fmt::format(
        "  draft model  {:>10}   of weights ({} bytes)\n"
        "  draft KV     {:>10}   ({} bytes at most; part of --kv-memory, given up whenever texts need it)\n"
        "  draft passes {:>10}   (about)\n",
        human_bytes(draft.weights), draft.weights, human_bytes(draft.kv.bytes), draft.kv.bytes,
        human_bytes(draft.workspace));
  out += fmt::format("  workspace    {:>10}   (about)\n  total        {:>10}\n", human_bytes(workspace),
                     human_bytes(total));
  out +=
      fmt::format("\nA server has buffers besides: {} with --swap-dir, up to {} for each of --prefix-dir and --redis\n",
                  human_bytes(SpillFile::kBufferBytes), human_bytes(PrefixTiers::kMostBufferBytes));
  out += "\nBytes of a token by --kv-type:";
  for (const Json& codec : bytes_per_token_by_codec(shape))
    out += fmt::format(" {} {}", codec["codec"].get<std::string>(), codec["bytes"].get<std::uint64_t>());
  out += '\n';
  if (options.memory > 0)
    out += fmt::format("\n{} of memory: {}; {} such sequences fit\n", human_bytes(options.memory),
                       total <= options.memory ? "it fits" : "it does not fit", fit);
  if (context > config.context && policy->context_use() != ContextUse::kNone)
    out +=
        fmt::format("\nThe trained context is {} tokens: under '{}', run {} no more than that\n", config.context,
                    policy->traits().spec, policy->context_use() == ContextUse::kText ? "reads and writes" : "holds");
  if (!decision.refusal.ok()) out += fmt::format("\nrun will refuse this: {}\n", decision.refusal.message());
  if (options.memory == 0 && !decision.policy.empty() && decision.policy != policy->traits().spec)
    out += fmt::format("\nHere memory is short: without --kv, run takes {}\n", decision.policy);
  if (cap_would_shrink)
    out +=
        fmt::format("Without --kv, run takes the largest cap that its memory holds: --kv-memory {} for all of these\n",
                    options.memory - others);
  return print(out);
}

}  // namespace

void add_plan(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = program.add_subcommand("plan", "Memory plan, from a model's header alone");
  add_model_option(*command, options->model);
  add_lora_option(*command, options->lora);
  command->add_option("-c,--ctx", options->context, "Tokens per sequence; 0: the trained context")
      ->capture_default_str();
  command->add_option("--prompt", options->prompt, "How many of them are a prompt, read in chunks; -1: all")
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences side by side")->capture_default_str();
  command->add_option("--chunk", options->chunk, "Prompt tokens per forward pass; 0: the policy's own")
      ->capture_default_str();
  command->add_option("--page", options->page_slots, "Tokens per page: 16, 32 or 64")->capture_default_str();
  add_kv_type_option(*command, options->kv_type);
  command->add_option("--isa", options->isa, "Kernels, as for 'kvasir run': they decide what auto is")
      ->capture_default_str()
      ->envname("KVASIR_ISA");
  add_policy_option(*command, options->policy, "Retention policy; default: streaming with the trained context as cap")
      ->envname("KVASIR_KV");
  command->add_option("--draft", options->draft, "GGUF file of a small model that drafts, as for 'kvasir run'")
      ->type_name("FILE");
  command->add_option("--demote", options->demote, "Where what the policy of --kv drops goes, as for 'kvasir run'");
  add_bytes_option(*command, "--memory", options->memory, "Memory there is in all: says what fits");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = plan(*options); });
}

}  // namespace kvasir::cli
