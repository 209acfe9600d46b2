#include "runtime/loaded_model.h"

#include <fmt/ranges.h>
#include <malloc.h>

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "base/counted.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "gguf/reader.h"
#include "model/chat_template_from_gguf.h"
#include "model/sampling_from_gguf.h"
#include "model/vocabulary_from_gguf.h"
#include "runtime/draft_file.h"
#include "runtime/fingerprint.h"
#include "runtime/token_workspace.h"

namespace kvasir {

Hash128 fingerprint_of(const gguf::File& file) {
  constexpr std::size_t kEnds = std::size_t{64} << 10;
  Hasher hasher;
  hasher.add(file.header_bytes());
  for (const gguf::Tensor& tensor : file.tensors()) {
    hasher.add(tensor.bytes.first(std::min(tensor.bytes.size(), kEnds)));
    hasher.add(tensor.bytes.last(std::min(tensor.bytes.size(), kEnds)));
  }
  return hasher.digest();
}

std::uint64_t token_workspace_bytes(const ModelConfig& config, const BackendShape& shape, int threads) {
  Backend::WorkspaceRequest token{.rows = 1};
  token.tables.front().layer = config.first_governed_layer();
  return cpu_workspace_bytes(shape, token, threads);
}

namespace {

// Returns the checksum of all tensor data, and releases the file's pages.
Hash128 checksum_of(const gguf::File& file) {
  constexpr std::size_t kSlice = std::size_t{32} << 20;
  Hasher hasher;
  hasher.add(file.header_bytes());
  for (const gguf::Tensor& tensor : file.tensors())
    for (std::size_t at = 0; at < tensor.bytes.size(); at += kSlice) {
      const std::size_t size = std::min(kSlice, tensor.bytes.size() - at);
      hasher.add(tensor.bytes.subspan(at, size));
      file.release(tensor, at, size);
    }
  return hasher.digest();
}

// Identifies the model and its packing: which tensor is which weight, in which order of rows.
Hash128 identity_of(const Hash128& fingerprint, const WeightMap& weights) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(&fingerprint, 1)));
  for (std::size_t i = 0; i < weights.parts.size(); ++i) {
    const WeightPart& part = weights.parts[i];
    const std::int64_t numbers[] = {static_cast<std::int64_t>(weights.tensors[i]->offset),
                                    static_cast<std::int64_t>(part.type),
                                    part.outputs,
                                    part.inputs,
                                    part.is_vector ? 1 : 0,
                                    part.order.first,
                                    part.order.head_dim,
                                    part.order.rotary};
    hasher.add(std::as_bytes(std::span(numbers)));
  }
  return hasher.digest();
}

constexpr std::string_view kAutomatic = "auto";
constexpr std::size_t kMostKvTypes = 6;  // each has up to two page forms per head dimension and rotation

// Whether "auto" may stand for i16: heads that are no multiple of 16 would be slow, and latent keys are values too.
bool words_fit(const ModelConfig& config) {
  return std::ranges::all_of(config.layers, [](const LayerSpec& layer) {
    return layer.state || (!layer.attention.latent && layer.attention.head_dim % 16 == 0);
  });
}

// Returns options whose KV type is a codec. Where it was "auto", texts may have either codec that this stands for on
// some machine, as a session may come from another one. Each codec takes address space of the size of the cache.
EngineOptions with_codec(EngineOptions options, const ModelConfig& config) {
  if (options.kv_type != kAutomatic) return options;
  options.kv_type = resolve_kv_type(kAutomatic, config, options.isa);
  if (words_fit(config) && options.kv_types.size() < kMostKvTypes && !address_space_is_limited())
    options.kv_types.push_back(options.kv_type == "i16" ? "f16" : "i16");
  return options;
}

// Checks the codec before the model's heads are known.
Result<KvCodec> checked_codec(std::string_view kv_type, int page_slots) {
  KVASIR_RETURN_IF_ERROR(check_kv_type(kv_type));
  if (page_slots != 16 && page_slots != 32 && page_slots != 64)
    return invalid_argument("a page of {} is not possible; choose 16, 32 or 64", counted(page_slots, "token"))
        .about({"page_slots"});
  return parse_codec(kv_type).codec;
}

}  // namespace

Status check_chunk(int chunk) {
  if (chunk >= 0 && chunk <= 4096) return {};
  return invalid_argument("chunk={} is outside 1 to 4096 tokens (0: the policy's own)", chunk).about({"chunk"});
}

std::string resolve_kv_type(std::string_view kv_type, const ModelConfig& config, std::string_view isa) {
  if (kv_type != kAutomatic) return std::string(kv_type);
  const KernelTable* const kernels = find_kernels(isa);
  return kernels != nullptr && kernels->prefers_words && words_fit(config) ? "i16" : "f16";
}

Status check_kv_type(std::string_view kv_type) {
  const ParsedCodec parsed = parse_codec(kv_type);
  return parsed.error.empty() ? Status() : invalid_argument("{}", parsed.error).about({"kv_type"});
}

Result<std::vector<KvCodec>> codecs_of(const EngineOptions& options) {
  KVASIR_RETURN_IF_ERROR(check_kv_type(options.kv_type));
  std::vector<KvCodec> codecs = {parse_codec(options.kv_type).codec};
  for (const std::string& name : options.kv_types) {
    const ParsedCodec parsed = parse_codec(name);
    if (!parsed.error.empty()) return invalid_argument("{}", parsed.error).about({"kv_types"});
    if (std::ranges::find(codecs, parsed.codec) == codecs.end()) codecs.push_back(parsed.codec);
  }
  if (codecs.size() > kMostKvTypes + 1)
    return invalid_argument("there are {} KV types beside the server's own, and it can have at most {}; allow fewer",
                            codecs.size() - 1, kMostKvTypes)
        .about({"kv_types"});
  return codecs;
}

namespace {

Status check_latent_codec(const PageFormat& page, const KvCodec& codec) {
  if (!page.latent || codec.key == codec.value) return {};
  return invalid_argument("KV type '{}': values of this model are its keys; name one type for both", codec_name(codec))
      .about({"kv_type"});
}

// Returns what the governed layers do to queries, with either set of angles.
QueryTurns query_turns(const ModelConfig& config, bool long_rotation) {
  std::vector<QueryTurn> turns;
  for (const LayerSpec& layer : config.layers) {
    if (layer.attention.keys_of >= 0 || !config.is_governed(layer)) continue;
    const RotaryEmbedding& rotary = config.rotary[static_cast<std::size_t>(layer.attention.rotary)];
    const std::vector<double>& angles = long_rotation && !rotary.long_inverse_frequencies.empty()
                                            ? rotary.long_inverse_frequencies
                                            : rotary.inverse_frequencies;
    const float scale = layer.attention.scale;
    turns.push_back({{angles.begin(), angles.end()},
                     static_cast<float>(rotary.magnitude),
                     scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(layer.attention.head_dim))});
  }
  return std::make_shared<const std::vector<QueryTurn>>(std::move(turns));
}

}  // namespace

Result<KvCacheShape> kv_cache_shape(const ModelConfig& config, std::string_view kv_type, int page_slots) {
  KVASIR_ASSIGN_OR_RETURN(const KvCodec codec, checked_codec(kv_type, page_slots));
  const AttentionSpec& governed = config.governed();
  KvCacheShape shape;
  shape.layers = config.governed_layers();
  shape.kv_heads = governed.kv_heads;
  shape.query_heads = governed.heads;
  shape.page = {governed.head_dim,   page_slots,
                codec.key,           codec.value,
                codec.hadamard_keys, codec.hadamard_values,
                governed.rotary,     governed.latent.has_value()};
  KVASIR_RETURN_IF_ERROR(check_latent_codec(shape.page, codec));
  shape.window = governed.window;
  shape.recent = codec.recent;
  shape.turns = query_turns(config, false);
  if (config.has_long_rotation()) {
    shape.long_shift = static_cast<int>(config.rotary.size());
    shape.long_turns = query_turns(config, true);
  }
  if (codec.long_rotation && shape.long_shift == 0)
    return invalid_argument("KV type '{}': the model has no other angles for long texts; leave rope=long out", kv_type)
        .about({"kv_type"});
  std::vector<std::size_t> states_of;  // layers
  for (const LayerSpec& layer : config.layers) {
    if (const int source = layer.attention.keys_of; source >= 0) {
      shape.lanes_of.resize(config.layers.size(), -1);
      shape.lanes_of[shape.group_of_layer.size()] = static_cast<std::int16_t>(source);
      shape.group_of_layer.push_back(shape.group_of_layer[static_cast<std::size_t>(source)]);
      continue;
    }
    if (config.is_governed(layer)) {
      shape.group_of_layer.push_back(0);
      shape.rotations.push_back(static_cast<std::uint8_t>(layer.attention.rotary));
      if (config.rotary[static_cast<std::size_t>(layer.attention.rotary)].dims == 0)
        shape.unrotated = layer.attention.rotary;
      continue;
    }
    if (layer.state) {
      states_of.push_back(shape.group_of_layer.size());
      shape.group_of_layer.push_back(0);
      continue;
    }
    const AttentionSpec& a = layer.attention;
    const auto same = std::ranges::find_if(shape.windows, [&](const WindowGroup& group) {
      return group.kv_heads == a.kv_heads && group.head_dim == a.head_dim && group.rotation == a.rotary &&
             group.window == a.window;
    });
    const auto number = static_cast<std::size_t>(same - shape.windows.begin());
    if (same == shape.windows.end()) shape.windows.push_back({0, a.kv_heads, a.head_dim, a.rotary, a.window});
    ++shape.windows[number].layers;
    shape.group_of_layer.push_back(static_cast<std::uint8_t>(number + 1));
  }
  if (std::ranges::count(shape.rotations, shape.rotations.front()) == std::ssize(shape.rotations))
    shape.rotations.clear();
  // Their groups are numbered behind those of windows.
  for (const std::size_t l : states_of) {
    const std::uint64_t bytes =
        (config.layers[l].state->mixer->state_bytes() + kStateAlign - 1) / kStateAlign * kStateAlign;
    const auto same = std::ranges::find(shape.states, bytes, &StateGroup::bytes);
    const std::size_t number = shape.windows.size() + static_cast<std::size_t>(same - shape.states.begin());
    if (same == shape.states.end()) shape.states.push_back({0, bytes});
    ++shape.states[number - shape.windows.size()].layers;
    shape.group_of_layer[l] = static_cast<std::uint8_t>(number + 1);
  }
  return codec.long_rotation ? shape.with(codec) : shape;
}

Result<ModelHeader> read_model_header(const gguf::File& file, ChatTemplateOptions chat,
                                      std::span<const Family* const> known) {
  ModelHeader header;
  KVASIR_ASSIGN_OR_RETURN(header.config, read_model_config(file, known));
  header.sampling = sampling_from_gguf(file);
  KVASIR_ASSIGN_OR_RETURN(header.weights, map_weights(file, header.config));
  header.weight_bytes = cpu_weight_bytes(header.weights.parts);
  KVASIR_ASSIGN_OR_RETURN(Vocabulary vocabulary, vocabulary_from_gguf(file));
  if (vocabulary.pieces.size() != static_cast<std::size_t>(header.config.vocabulary))
    return data_loss("the tokenizer has {} tokens, the embedding {}; convert the model again", vocabulary.pieces.size(),
                     header.config.vocabulary);
  KVASIR_ASSIGN_OR_RETURN(header.chat, chat_template_from_gguf(file, vocabulary, std::move(chat)));
  if (const auto end = header.chat->end_token()) vocabulary.ends.push_back(*end);
  KVASIR_ASSIGN_OR_RETURN(header.tokenizer, make_tokenizer(std::move(vocabulary)));
  return header;
}

namespace {

// Each codec comes with either rotation, if the model has two.
Status add_long_codecs(const ModelConfig& config, const EngineOptions& options, std::vector<KvCodec>* codecs) {
  for (const std::string& name : options.kv_types)
    KVASIR_RETURN_IF_ERROR(kv_cache_shape(config, name, options.page_slots).status());
  if (!config.has_long_rotation()) return {};
  for (const KvCodec& codec : std::vector<KvCodec>(*codecs))
    for (const bool is_long : {false, true}) {
      KvCodec other = codec;
      other.long_rotation = is_long;
      if (std::ranges::find(*codecs, other) == codecs->end()) codecs->push_back(other);
    }
  return {};
}

// Returns the bytes of weights that a pass of one token leaves out: experts that it does not choose, and the
// embeddings, of which it reads a row.
std::uint64_t unread_bytes(const ModelConfig& config, const Weights& weights, std::span<const WeightPart> parts) {
  const auto bytes = [&](WeightId first, int count) {
    if (first == kNoWeight) return std::uint64_t{0};
    return cpu_weight_bytes(parts.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  };
  std::uint64_t unread = bytes(weights.per_layer_embedding, 1) + bytes(weights.positions, 1);
  if (weights.output != weights.embedding) unread += bytes(weights.embedding, 1);
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    if (!config.layers[l].experts) continue;
    const int left_out = config.layers[l].experts->count - config.layers[l].experts->used;  // all are of one size
    const LayerWeights& layer = weights.layers[l];
    for (const Linear& linear : {layer.expert_gate, layer.expert_up, layer.expert_down})
      for (const WeightId first : {linear.matrix, linear.bias}) unread += bytes(first, left_out);
  }
  return unread;
}

// `threads`: null: threads of its own.
Result<std::shared_ptr<LoadedModel>> load_with(const EngineOptions& options,
                                               const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                               std::span<const Family* const> known,
                                               std::shared_ptr<ThreadPool> shared_threads) {
  auto model = std::make_shared<LoadedModel>();
  model->options = options;
  if (options.threads < 0 || options.threads > 1024)
    return invalid_argument("threads={} is outside 0 (one per core) to 1024", options.threads).about({"threads"});
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  model->kernels = find_kernels(options.isa);
  if (model->kernels == nullptr)
    return invalid_argument("no kernels '{}' on this machine; there are: auto, {}", options.isa,
                            fmt::join(kernel_names(), ", "))
        .about({"isa"});
  // Before the file is opened, in which "auto" stands for f16.
  EngineOptions checked = options;
  if (checked.kv_type == kAutomatic) checked.kv_type = "f16";
  KVASIR_RETURN_IF_ERROR(checked_codec(checked.kv_type, options.page_slots).status());
  KVASIR_RETURN_IF_ERROR(codecs_of(checked).status());

  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model));
  ChatTemplateOptions chat;
  chat.source = options.chat_template;
  chat.arguments = options.template_arguments;
  KVASIR_ASSIGN_OR_RETURN(ModelHeader header, read_model_header(file, std::move(chat), known));
  KVASIR_ASSIGN_OR_RETURN(AdapterFiles adapters, open_adapters(options.lora, header.config, header.weights));
  if (!options.draft_model.empty())
    KVASIR_RETURN_IF_ERROR(read_draft_file(options.draft_model, header.tokenizer->vocabulary(), known).status());
  const std::uint64_t weight_bytes = header.weight_bytes;
  model->config = std::move(header.config);
  if (options.pooling) model->config.pooling = *options.pooling;
  model->sampling = header.sampling;
  model->chat = std::move(header.chat);
  model->tokenizer = std::move(header.tokenizer);
  model->grammars = std::make_unique<GrammarCompiler>(*model->tokenizer);
  model->formats = std::make_unique<FormatCache>();
  model->options = with_codec(options, model->config);
  KVASIR_ASSIGN_OR_RETURN(model->codecs, codecs_of(model->options));
  KVASIR_ASSIGN_OR_RETURN(model->kv_shape, kv_cache_shape(model->config, model->options.kv_type, options.page_slots));
  KVASIR_RETURN_IF_ERROR(add_long_codecs(model->config, model->options, &model->codecs));
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  // glibc reserves at least 64 MiB of address space for each thread that allocates.
  if (address_space_is_limited()) ::mallopt(M_ARENA_MAX, 1);
  model->fingerprint = fingerprint_of(file);
  if (!options.weight_dir.empty()) {
    auto weights = WeightFile::open(options.weight_dir, {.files = file.parts(),
                                                         .identity = identity_of(model->fingerprint, header.weights),
                                                         .checksum = [&] { return checksum_of(file); },
                                                         .packing = std::string(model->kernels->packing->name),
                                                         .bytes = weight_bytes});
    if (!weights.ok()) return Status(weights.status()).about({"weight_dir"});
    model->weight_file = std::move(*weights);
  }
  // Weights that are already in a file may be in memory too, shared with other processes.
  const std::uint64_t new_weights =
      adapters.bytes() + (model->weight_file != nullptr && model->weight_file->is_complete() ? 0 : weight_bytes);
  BackendShape shape = backend_shape(model->config);
  shape.adapter_ranks = adapters.ranks();
  const std::uint64_t work = token_workspace_bytes(model->config, shape, threads);
  if (const std::uint64_t available = memory_for_run(threads);
      new_weights > available || work > available - new_weights)
    return exhausted(
        "the model's weights take {} bytes and a pass {} more, but only {} bytes of memory are available; use a "
        "smaller model or one with smaller weights (kvasir plan says what each takes), or close other programs",
        weight_bytes + adapters.bytes(), work, available);
  if (!options.demote_dir.empty()) {
    const std::uint64_t least =
        static_cast<std::uint64_t>(model->kv_shape.lanes()) * model->kv_shape.page.open().bytes();
    if (options.demote_size < least)
      return invalid_argument(
                 "demote_size={} is too small: one page of each layer and KV head takes {} bytes, and a text many of "
                 "them",
                 options.demote_size, least)
          .about({"demote_size"});
    // Finds a folder that cannot be written now, not when a request needs it.
    if (const auto scratch = create_scratch_file(options.demote_dir); !scratch.ok())
      return Status(scratch.status()).about({"demote_dir"});
    model->demotion_file = std::make_unique<DemotionFile>(
        [folder = options.demote_dir] { return create_scratch_file(folder); }, options.demote_size);
    model->cold_tier = std::make_unique<ColdTier>(
        [folder = options.demote_dir] { return create_scratch_file(folder, TransferMethod::kCaller); },
        options.demote_size);
  }
  model->threads = shared_threads != nullptr ? std::move(shared_threads) : std::make_shared<ThreadPool>(threads);
  model->backend = make_cpu_backend(shape, model->kernels, model->threads.get());
  WeightFile* const packed = model->weight_file.get();
  Backend::LoadOptions memory;
  if (packed != nullptr) memory = {.memory = packed->weights(), .loaded_before = packed->is_complete()};
  KVASIR_RETURN_IF_ERROR(load_weights(file, header.weights, *model->backend, progress, memory));
  if (packed != nullptr && !packed->is_complete())
    if (const Status status = packed->complete(); !status.ok()) return Status(status).about({"weight_dir"});
  for (const AdapterMap& map : adapters.maps) KVASIR_RETURN_IF_ERROR(model->backend->load_adapter(map.parts));
  model->adapters = std::move(adapters.adapters);
  if (options.lock_weights)
    if (const Status status = model->backend->lock_weights(); !status.ok())
      return Status(status).about({"lock_weights"});
  model->weights = std::move(header.weights.weights);
  model->weight_bytes = weight_bytes;
  model->token_weight_bytes = weight_bytes - unread_bytes(model->config, model->weights, header.weights.parts);
  model->transformer = std::make_unique<Transformer>(&model->config, &model->weights, model->backend.get());
  return model;
}

}  // namespace

Result<std::shared_ptr<LoadedModel>> load_model(const EngineOptions& options,
                                                const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                                std::span<const Family* const> known) {
  KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, load_with(options, progress, known, nullptr));
  if (options.draft_model.empty()) return model;
  Result<std::shared_ptr<LoadedModel>> draft = load_with(draft_engine_options(options), {}, known, model->threads);
  if (!draft.ok()) return Status(draft.status()).about({"draft_model", "draft"});
  model->draft = std::move(*draft);
  return model;
}

std::string LoadedModel::arithmetic_id(const PageFormat& format, bool adapted) const {
  // Which tokens are encoded again, and when, also decides bits: raise this with every change of it.
  constexpr int kPacking = 2;
  std::string id = backend->arithmetic_id(format);
  if (format.encoded()) id += fmt::format("/packing-{}", kPacking);
  if (adapted) id += fmt::format("/lora-{}", kAdapterVersion);
  std::vector<std::string> mixers;
  for (const LayerSpec& layer : config.layers)
    if (layer.state) mixers.push_back(layer.state->mixer->arithmetic_id());
  std::ranges::sort(mixers);
  mixers.erase(std::unique(mixers.begin(), mixers.end()), mixers.end());
  return mixers.empty() ? id : fmt::format("{}{}{}", id, kStatesOfId, fmt::join(mixers, "+"));
}

Status check_kv_memory(const KvCacheShape& shape, std::uint64_t bytes) {
  const std::uint64_t least = KvCache::cost(shape, {}, 1);
  if (bytes >= least) return {};
  return invalid_argument(
             "a KV memory of {} is less than one page for each KV head of each layer ({} bytes); give it more",
             counted(static_cast<std::int64_t>(bytes), "byte"), least)
      .about({"kv_memory"});
}

Result<std::shared_ptr<KvCache>> new_cache(const std::shared_ptr<LoadedModel>& model, std::uint64_t budget) {
  KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model, model->kv_shape, budget));
  for (const KvCodec& codec : model->codecs) KVASIR_RETURN_IF_ERROR(cache->allow(codec));
  return cache;
}

namespace {

// A cache with what it needs.
struct WholeCache {
  std::shared_ptr<LoadedModel> model;
  std::shared_ptr<KvCache> other;  // whose budget it shares; null: none
  std::unique_ptr<PageStore> store;
  std::unique_ptr<KvCache> cache;
};

}  // namespace

Result<std::shared_ptr<KvCache>> new_cache(const std::shared_ptr<LoadedModel>& model, const KvCacheShape& shape,
                                           std::uint64_t budget) {
  KVASIR_RETURN_IF_ERROR(check_kv_memory(shape, budget));
  auto whole = std::make_shared<WholeCache>();
  whole->model = model;
  whole->store = model->backend->new_page_store();
  KVASIR_ASSIGN_OR_RETURN(whole->cache, KvCache::create(shape, budget, whole->store.get()));
  return std::shared_ptr<KvCache>(whole, whole->cache.get());
}

Result<std::shared_ptr<KvCache>> new_cache_within(const std::shared_ptr<LoadedModel>& model,
                                                  const std::shared_ptr<KvCache>& other) {
  auto whole = std::make_shared<WholeCache>();
  whole->model = model;
  whole->other = other;
  whole->store = model->backend->new_page_store();
  KVASIR_ASSIGN_OR_RETURN(whole->cache, KvCache::create(model->kv_shape, &other->budget(), whole->store.get()));
  return std::shared_ptr<KvCache>(whole, whole->cache.get());
}

}  // namespace kvasir
