#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::string_view kDown = ".lora_a", kUp = ".lora_b";
constexpr std::uint64_t kMostRank = 65536;
constexpr std::size_t kLongestShown = 96;  // of a name in messages

// The tensors for one matrix of the model.
struct Tensors {
  const gguf::Tensor* a = nullptr;
  const gguf::Tensor* b = nullptr;
};

std::string dims_of(const gguf::Tensor& tensor) {
  std::string text;
  for (const std::uint64_t dim : tensor.dims) text += fmt::format("{}{}", text.empty() ? "" : " x ", dim);
  return text;
}

// The tensor's dims as two, if all further ones are 1.
std::vector<std::uint64_t> matrix_dims(const gguf::Tensor& tensor) {
  std::vector<std::uint64_t> dims = tensor.dims;
  while (dims.size() > 2 && dims.back() == 1) dims.pop_back();
  while (dims.size() < 2) dims.push_back(1);
  return dims;
}

std::string text_or_empty(const gguf::File& file, std::string_view key) {
  const auto text = file.get_string(key);
  return text.ok() ? std::string(*text) : std::string();
}

Status check_kind(const gguf::File& file, const ModelConfig& config) {
  const std::string type = text_or_empty(file, "general.type");
  if (type != "adapter")
    return invalid_argument(
        "this is no adapter: its general.type is '{}'; give a file that convert_lora_to_gguf.py wrote",
        type.substr(0, kLongestShown));
  const std::string kind = text_or_empty(file, "adapter.type");
  if (kind != "lora")
    return unsupported("the adapter is of type '{}'; only 'lora' is supported", kind.substr(0, kLongestShown));
  const std::string architecture = text_or_empty(file, "general.architecture");
  if (architecture != config.architecture())
    return invalid_argument("the adapter is for models of architecture '{}', and this one is of '{}'",
                            architecture.substr(0, kLongestShown), config.architecture());
  if (file.find("adapter.alora.invocation_tokens") != nullptr)
    return unsupported(
        "the adapter is an activated LoRA, which counts only behind its invocation tokens; those are not supported");
  return {};
}

Result<std::map<std::string, Tensors>> pairs_of(const gguf::File& file) {
  std::map<std::string, Tensors> pairs;
  for (const gguf::Tensor& tensor : file.tensors()) {
    const bool down = tensor.name.ends_with(kDown);
    if (!down && !tensor.name.ends_with(kUp))
      return unsupported("tensor {} is neither .lora_a nor .lora_b of a matrix; running without it would be wrong",
                         tensor.name.substr(0, kLongestShown));
    Tensors& pair = pairs[std::string(tensor.name.substr(0, tensor.name.size() - kDown.size()))];
    (down ? pair.a : pair.b) = &tensor;
  }
  if (pairs.empty()) return data_loss("the adapter has no tensors; convert it again");
  return pairs;
}

// Checks the tensors of `name` against the model's tensor. Sets the types of their elements.
Status check_pair(const std::string& name, const Tensors& pair, const gguf::Tensor& base, const WeightPart& part,
                  DType* a, DType* b) {
  const std::string_view shown = std::string_view(name).substr(0, kLongestShown);
  if (pair.a == nullptr || pair.b == nullptr)
    return data_loss("tensor {}{} is missing; convert the adapter again", shown, pair.a == nullptr ? kDown : kUp);
  if (part.is_vector || base.dims.size() > 2)
    return unsupported("tensor {} is {}, and adapters can only add to matrices; train one without it", shown,
                       part.is_vector ? "no matrix" : "a stack of experts' matrices");
  const std::vector<std::uint64_t> dims = matrix_dims(base), down = matrix_dims(*pair.a), up = matrix_dims(*pair.b);
  if (down.size() != 2 || up.size() != 2 || down[0] != dims[0] || up[1] != dims[1] || down[1] != up[0])
    return data_loss(
        "tensors {}.lora_a ({}) and .lora_b ({}) do not fit the model's ({}); the adapter is of another model", shown,
        dims_of(*pair.a), dims_of(*pair.b), dims_of(base));
  if (down[1] > kMostRank)
    return unsupported("tensor {}.lora_a has rank {}, and adapters have {} at most", shown, down[1], kMostRank);
  for (const auto& [tensor, type] : {std::pair(pair.a, a), std::pair(pair.b, b)}) {
    const auto known = dtype_from_gguf(tensor->type);
    if (!known)
      return unsupported("tensor {} is of a type that is not supported; convert the adapter again",
                         tensor->name.substr(0, kLongestShown));
    *type = *known;
  }
  return {};
}

}  // namespace

Result<AdapterMap> map_adapter(const gguf::File& file, const ModelConfig& config, const WeightMap& model) {
  KVASIR_RETURN_IF_ERROR(check_kind(file, config));
  AdapterMap map;
  map.name = text_or_empty(file, "general.name");
  map.task = text_or_empty(file, "adapter.lora.task_name");
  map.prompt_prefix = text_or_empty(file, "adapter.lora.prompt_prefix");
  KVASIR_ASSIGN_OR_RETURN(const double alpha, file.get_float("adapter.lora.alpha"));
  KVASIR_ASSIGN_OR_RETURN(const auto pairs, pairs_of(file));
  std::multimap<std::string_view, std::size_t> weights;  // the model's, by the name of their tensor
  for (std::size_t i = 0; i < model.tensors.size(); ++i) weights.emplace(model.tensors[i]->name, i);
  for (const auto& [name, pair] : pairs) {
    const auto [begin, end] = weights.equal_range(name);
    if (begin == end)
      return data_loss("the model has no tensor {}, to which the adapter would add; the adapter is of another model",
                       std::string_view(name).substr(0, kLongestShown));
    const auto id = static_cast<WeightId>(begin->second);
    if (id == model.weights.embedding || id == model.weights.positions || id == model.weights.per_layer_embedding)
      return unsupported(
          "tensor {} is a table of embeddings, and adapters can only add to matrices of layers and of the output; "
          "train "
          "one without it",
          std::string_view(name).substr(0, kLongestShown));
    DType a{}, b{};
    const gguf::Tensor& base = *model.tensors[begin->second];
    KVASIR_RETURN_IF_ERROR(check_pair(name, pair, base, model.parts[begin->second], &a, &b));
    const auto rank = static_cast<int>(pair.b->dims[0]);
    map.rank = std::max(map.rank, rank);
    // As llama.cpp: an alpha of 0 stands for the rank.
    const auto factor = static_cast<float>(alpha == 0 ? 1 : alpha / rank);
    if (!std::isfinite(factor))
      return data_loss("adapter.lora.alpha is {}, which no adapter has; convert it again", alpha);
    for (auto weight = begin; weight != end; ++weight) {
      const WeightPart& part = model.parts[weight->second];
      map.parts.push_back({static_cast<WeightId>(weight->second),
                           factor,
                           {a, rank, part.inputs, false, {}, pair.a->bytes},
                           {b, part.outputs, rank, false, part.order, pair.b->bytes}});
    }
  }
  return map;
}

}  // namespace kvasir
