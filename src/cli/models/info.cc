// kvasir info: describes a model file.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "backend/cpu/cpu_backend.h"
#include "base/counted.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "gguf/reader.h"
#include "model/chat_template_from_gguf.h"
#include "model/config.h"
#include "model/vocabulary_from_gguf.h"
#include "model/weights.h"
#include "planning/cache_sizing.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "tensor/dtype.h"
#include "text/tokenizer.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kShownElements = 8;

template <class T>
Json number_at(std::span<const std::byte> raw, std::size_t index) {
  T value;
  std::memcpy(&value, raw.data() + index * sizeof value, sizeof value);
  return value;
}

// REQUIRES: an array of numbers or bools, and an index below its count.
Json element_json(const gguf::Array& array, std::size_t index) {
  switch (array.type) {
    case gguf::ValueType::kUint8: return number_at<std::uint8_t>(array.raw, index);
    case gguf::ValueType::kInt8: return number_at<std::int8_t>(array.raw, index);
    case gguf::ValueType::kUint16: return number_at<std::uint16_t>(array.raw, index);
    case gguf::ValueType::kInt16: return number_at<std::int16_t>(array.raw, index);
    case gguf::ValueType::kUint32: return number_at<std::uint32_t>(array.raw, index);
    case gguf::ValueType::kInt32: return number_at<std::int32_t>(array.raw, index);
    case gguf::ValueType::kFloat32: return number_at<float>(array.raw, index);
    case gguf::ValueType::kBool: return number_at<std::uint8_t>(array.raw, index) != 0;
    case gguf::ValueType::kUint64: return number_at<std::uint64_t>(array.raw, index);
    case gguf::ValueType::kInt64: return number_at<std::int64_t>(array.raw, index);
    case gguf::ValueType::kFloat64: return number_at<double>(array.raw, index);
    case gguf::ValueType::kString: return printable(array.strings[index], 64);
    case gguf::ValueType::kArray: break;
  }
  return nullptr;
}

// Formats a scalar, or an array's type, count and first elements (unless they are arrays).
Json value_json(const gguf::Value& value) {
  if (value.type == gguf::ValueType::kBool) return std::get<std::uint64_t>(value.data) != 0;
  return std::visit(
      [](const auto& data) -> Json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, gguf::Array>) {
          Json shown = Json::array();
          if (data.type != gguf::ValueType::kArray)
            for (std::size_t i = 0; i < data.count && i < kShownElements; ++i) shown.push_back(element_json(data, i));
          return {{"type", gguf::value_type_name(data.type)}, {"count", data.count}, {"first", shown}};
        } else if constexpr (std::is_same_v<Data, std::string_view>) {
          return printable(data, 2000);
        } else {
          return data;
        }
      },
      value.data);
}

std::string value_text(const gguf::Value& value) {
  const Json json = value_json(value);
  if (const auto* array = std::get_if<gguf::Array>(&value.data)) {
    std::string out = fmt::format("[{} x {}]", array->count, gguf::value_type_name(array->type));
    for (const Json& element : json["first"])
      out += element.is_string() ? fmt::format(" '{}'", element.get<std::string>()) : " " + element.dump();
    return out;
  }
  if (const auto* text = std::get_if<std::string_view>(&value.data)) return printable(*text, 100);
  return json.dump();
}

std::string type_name(std::uint32_t type) {
  const auto traits = foreign_dtype(type);
  return traits ? std::string(traits->name) : fmt::format("type {}", type);
}

// The memory for one sequence as long as the trained context, and what `run` would do with it.
struct Needs {
  std::uint64_t weights = 0;
  std::uint64_t kv = 0;
  std::uint64_t workspace = 0;
  std::int64_t tokens = 0;
  std::uint64_t available = 0;
  bool fit = false;         // `run --kv full` has room for all tokens
  std::string default_run;  // the policy that `run` would use; empty if it refuses
};

Result<Needs> needs_of(const gguf::File& file) {
  Needs needs;
  KVASIR_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(file));
  KVASIR_ASSIGN_OR_RETURN(const WeightMap weights, map_weights(file, config));
  needs.weights = cpu_weight_bytes(weights.parts);
  const EngineOptions defaults;
  // As for a run without options.
  const char* const type = std::getenv("KVASIR_KV_TYPE");
  const std::string kv_type = resolve_kv_type(type != nullptr && *type != '\0' ? type : "auto", config);
  KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(config, kv_type, defaults.page_slots));
  needs.tokens = std::min(config.context, kMostPlannedTokens);
  needs.available = memory_for_run(usable_cores());
  CacheConditions conditions{shape, needs.tokens, 0, 0, needs.available - std::min(needs.available, needs.weights), {}};
  conditions.workspace_bytes = [&](const Backend::WorkspaceRequest& work) {
    return needs.workspace = cpu_workspace_bytes(backend_shape(config), work, usable_cores());
  };
  if (const Result<CacheSize> taken = size_cache(conditions, {}, 1); taken.ok())
    needs.default_run = taken->policy->traits().spec;
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> full, make_policy(PolicySpec::named("full")));
  const CacheFit fit = fit_cache(conditions, *full);
  needs.kv = fit.needed;
  needs.fit = fit.fits();
  return needs;
}

std::string memory_verdict(const Needs& needs) {
  if (needs.fit) return "fits";
  if (needs.default_run.empty()) return "too large";
  return fmt::format("fits with a policy that keeps less, such as run's default of {} (kvasir plan)",
                     needs.default_run);
}

// Returns the chat template of a model that does not run; nullptr if the vocabulary is not known.
std::unique_ptr<ChatTemplate> chat_template_of(const gguf::File& file, const Result<Vocabulary>& vocabulary) {
  if (!vocabulary.ok()) return nullptr;
  auto chat = chat_template_from_gguf(file, *vocabulary);
  return chat.ok() ? std::move(*chat) : nullptr;
}

// What the layers compute and what they keep of a text.
struct LayerSummary {
  int experts = 0;                          // layers with experts
  int latent = 0;                           // layers with latent attention
  int shared = 0;                           // layers that read the keys of earlier ones
  std::uint64_t kv_bytes = 0;               // a token in all layers whose keys are kept for the whole text, at f16
  std::vector<std::uint64_t> window_bytes;  // [window groups]: most pages of one sequence, at f16
  KvCacheShape shape;
  const ExpertsSpec* most_experts = nullptr;  // of the layer with the most; null: none has any
  const LatentSpec* latent_attention = nullptr;
};

// REQUIRES: `config` outlives the result.
Result<LayerSummary> summarize_layers(const ModelConfig& config) {
  LayerSummary summary;
  KVASIR_ASSIGN_OR_RETURN(summary.shape, kv_cache_shape(config, "f16", EngineOptions().page_slots));
  for (const LayerSpec& layer : config.layers) {
    if (layer.experts) {
      ++summary.experts;
      if (summary.most_experts == nullptr || layer.experts->count > summary.most_experts->count)
        summary.most_experts = &*layer.experts;
    }
    if (layer.state) continue;
    summary.shared += layer.attention.keys_of >= 0;
    if (!layer.attention.latent) continue;
    ++summary.latent;
    summary.latent_attention = &*layer.attention.latent;
  }
  summary.kv_bytes = summary.shape.page.slot_bytes() * static_cast<std::uint64_t>(summary.shape.lanes());
  if (summary.shape.windows.empty()) return summary;
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> full, make_policy(PolicySpec::named("full")));
  const std::int64_t tokens = std::min(config.context, 4 * std::int64_t{summary.shape.widest_window()} + 4096);
  const KvMemory memory = plan_kv_memory(summary.shape, *full, {.tokens = tokens, .prompt = tokens});
  for (const KvMemory::Window& window : memory.windows)
    summary.window_bytes.push_back(window.pages * window.page_bytes + window.open_pages * window.open_page_bytes);
  return summary;
}

Json layers_json(const ModelConfig& config, const LayerSummary& summary) {
  const KvCacheShape& shape = summary.shape;
  Json out{{"count", config.layer_count()},
           {"keys", {{"layers", shape.layers}, {"kv_heads", shape.kv_heads}, {"head_dim", shape.page.head_dim}}},
           {"kv_bytes_per_token", summary.kv_bytes},
           {"window", shape.window},
           {"windows", Json::array()},
           {"states", Json::array()},
           {"state_bytes", shape.state_bytes()},
           {"shared_keys", summary.shared},
           {"latent", nullptr},
           {"experts", nullptr}};
  for (std::size_t w = 0; w < shape.windows.size(); ++w) {
    const WindowGroup& group = shape.windows[w];
    out["windows"].push_back({{"layers", group.layers},
                              {"window", group.window},
                              {"kv_heads", group.kv_heads},
                              {"head_dim", group.head_dim},
                              {"bytes_max", summary.window_bytes[w]}});
  }
  for (const StateGroup& group : shape.states)
    out["states"].push_back({{"layers", group.layers}, {"bytes", group.bytes}});
  if (const LatentSpec* latent = summary.latent_attention)
    out["latent"] = {{"layers", summary.latent}, {"rank", latent->rank}, {"query_rank", latent->query_rank}};
  if (const ExpertsSpec* experts = summary.most_experts)
    out["experts"] = {{"layers", summary.experts},
                      {"count", experts->count},
                      {"used", experts->used},
                      {"hidden", experts->hidden},
                      {"shared_hidden", experts->shared_hidden},
                      {"beside_network", experts->beside_network}};
  return out;
}

std::string layers_text(const ModelConfig& config, const LayerSummary& summary) {
  const KvCacheShape& shape = summary.shape;
  std::string out = fmt::format("Layers: {}", config.layer_count());
  if (const LatentSpec* latent = summary.latent_attention)
    out += fmt::format("; latent attention of rank {}", latent->rank);
  if (summary.shared > 0) out += fmt::format("; {} read the keys of earlier ones", summary.shared);
  if (const ExpertsSpec* experts = summary.most_experts) {
    out += fmt::format("; {} with {} experts, {} used by a token", summary.experts, experts->count, experts->used);
    if (experts->shared_hidden > 0 || experts->beside_network) out += ", beside a network for all tokens";
  }
  out +=
      fmt::format("\nKV cache at f16: {} a token in {}", human_bytes(summary.kv_bytes), counted(shape.layers, "layer"));
  if (shape.window > 0) out += fmt::format(", which see {} tokens", shape.window);
  for (std::size_t w = 0; w < shape.windows.size(); ++w)
    out += fmt::format("; at most {} in {} that see {} tokens", human_bytes(summary.window_bytes[w]),
                       counted(shape.windows[w].layers, "layer"), shape.windows[w].window);
  int states = 0;
  for (const StateGroup& group : shape.states) states += group.layers;
  if (states > 0)
    out += fmt::format("; {} of states in {}, whatever the text", human_bytes(shape.state_bytes()),
                       counted(states, "layer"));
  return out + "\n";
}

std::string tokenizer_text(const Vocabulary& vocabulary) {
  if (vocabulary.tokenizer == TokenizerKind::kSpm) return "SentencePiece BPE";
  if (vocabulary.tokenizer == TokenizerKind::kSpmMerges) return "SentencePiece BPE with a list of merges";
  return fmt::format("byte-level BPE, words cut as {}{}", vocabulary.pre_tokenizer,
                     vocabulary.pre_tokenizer_assumed ? " (assumed: the file does not say)" : "");
}

Status info(const std::string& path, bool tensors, bool json) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(path));
  std::map<std::string, std::pair<std::size_t, std::uint64_t>> by_type;
  std::uint64_t parameters = 0;
  for (const gguf::Tensor& tensor : file.tensors()) {
    auto& [count, bytes] = by_type[type_name(tensor.type)];
    ++count;
    bytes += tensor.bytes.size();
    parameters += tensor.elements;
  }
  // Kept until the memory is known, because `run` also holds it when it decides.
  Result<ModelHeader> header = read_model_header(file);
  const Status runs = header.status();
  const Result<Needs> needs = needs_of(file);
  const Result<ModelConfig> config = read_model_config(file);
  const Result<LayerSummary> layers = config.ok() ? summarize_layers(*config) : config.status();
  const Result<Vocabulary> vocabulary = vocabulary_from_gguf(file);
  const std::unique_ptr<ChatTemplate> chat = header.ok() ? std::move(header->chat) : chat_template_of(file, vocabulary);
  if (json) {
    // Keys are unique, so they are appended without look-ups, which would take quadratic time.
    Json::object_t metadata;
    for (const gguf::Entry& entry : file.metadata())
      metadata.emplace_back(std::string(entry.key), value_json(entry.value));
    Json out{{"version", file.version()},
             {"size_bytes", file.size_bytes()},
             {"parts", file.parts().size()},
             {"tensor_bytes", file.tensor_bytes()},
             {"parameters", parameters},
             {"runs", runs.ok()},
             {"why_not", runs.message()},
             {"memory", nullptr},
             {"layers", layers.ok() ? layers_json(*config, *layers) : Json(nullptr)},
             {"tokenizer", vocabulary.ok() ? Json(tokenizer_text(*vocabulary)) : Json(nullptr)},
             {"chat_template", chat ? Json(chat->name()) : Json(nullptr)},
             {"chat_template_unknown", chat && !chat->failure().ok()},
             {"metadata", nullptr},
             {"tensors", Json::array()}};
    out["metadata"] = std::move(metadata);
    if (needs.ok())
      out["memory"] = {{"weight_bytes", needs->weights},      {"kv_bytes", needs->kv},
                       {"kv_tokens", needs->tokens},          {"workspace_bytes", needs->workspace},
                       {"available_bytes", needs->available}, {"fits", needs->fit}};
    for (const gguf::Tensor& tensor : file.tensors())
      out["tensors"].push_back({{"name", printable(tensor.name, 200)},
                                {"type", type_name(tensor.type)},
                                {"dims", tensor.dims},
                                {"bytes", tensor.bytes.size()}});
    return print_json(out);
  }
  const std::string parts = file.parts().size() > 1 ? fmt::format(" in {} parts", file.parts().size()) : "";
  std::string out =
      fmt::format("{}: GGUF version {}, {}{}, {} with {} parameters\nRuns here: {}{}\n", printable(path, 200),
                  file.version(), human_bytes(file.size_bytes()), parts, counted(std::ssize(file.tensors()), "tensor"),
                  parameters, runs.ok() ? "yes" : "no: ", runs.ok() ? "" : printable(runs.message(), 2000));
  if (needs.ok())
    out += fmt::format("Memory: {} of weights, {} of KV for a context of {}, {} to work in; {} available: {}\n",
                       human_bytes(needs->weights), human_bytes(needs->kv), counted(needs->tokens, "token"),
                       human_bytes(needs->workspace), human_bytes(needs->available), memory_verdict(*needs));
  if (layers.ok()) out += layers_text(*config, *layers);
  if (vocabulary.ok())
    out += fmt::format("Tokenizer: {}, {}\n", tokenizer_text(*vocabulary),
                       counted(std::ssize(vocabulary->pieces), "token"));
  if (chat)
    out += fmt::format("Chat template: {}{}\n", chat->name(),
                       chat->failure().ok() ? "" : "; cannot be used: " + printable(chat->failure().message(), 500));
  if (!by_type.empty()) out += "\n";
  for (const auto& [name, totals] : by_type)
    out += fmt::format("  {:<8} {:>4} tensors {:>12}\n", name, totals.first, human_bytes(totals.second));
  out += "\n";
  for (const gguf::Entry& entry : file.metadata())
    out += fmt::format("  {:<46} {}\n", printable(entry.key, 64), value_text(entry.value));
  if (tensors) {
    out += "\n";
    for (const gguf::Tensor& tensor : file.tensors()) {
      std::string dims;
      for (const std::uint64_t dim : tensor.dims) dims += fmt::format("{}{}", dims.empty() ? "" : " x ", dim);
      out += fmt::format("  {:<46} {:<6} {}\n", printable(tensor.name, 64), type_name(tensor.type), dims);
    }
  }
  return print(out);
}

}  // namespace

void add_info(CLI::App& program, Outcome& outcome) {
  struct Options {
    std::string path;
    bool tensors = false;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("info", "What a GGUF file holds, and whether it runs here");
  add_model_option(*command, options->path);
  command->add_flag("--tensors", options->tensors, "List the tensors too");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = info(options->path, options->tensors, options->json); });
}

}  // namespace kvasir::cli
