#include "model/weights.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "base/status.h"
#include "gguf/in_file.h"
#include "model/family.h"

namespace kvasir {
namespace {

std::string supported_types() {
  std::string names;
  for (const DType type : all_dtypes()) {
    if (!names.empty()) names += ", ";
    names += dtype_traits(type).name;
  }
  return names;
}

class Layout {
 public:
  Layout(const gguf::File& file, const ModelConfig& config)
      : file_(file), config_(config), layout_(config.family->tensors) {}

  Status all() {
    const ModelConfig& c = config_;
    Weights* weights = &map_.weights;
    KVASIR_RETURN_IF_ERROR(matrix("token_embd.weight", {c.vocabulary, c.width}, &weights->embedding));
    if (c.learned_positions)
      KVASIR_RETURN_IF_ERROR(
          matrix("position_embd.weight", {static_cast<int>(c.context), c.width}, &weights->positions));
    KVASIR_RETURN_IF_ERROR(per_layer_embedding(weights));
    weights->layers.resize(c.layers.size());
    for (std::size_t l = 0; l < c.layers.size(); ++l) {
      LayerWeights& layer = weights->layers[l];
      const std::string prefix = fmt::format("blk.{}.", l);
      if (c.layers[l].norms_before) KVASIR_RETURN_IF_ERROR(norm(prefix + "attn_norm", &layer.attention_norm));
      KVASIR_RETURN_IF_ERROR(c.layers[l].state ? state(prefix, *c.layers[l].state, &layer)
                                               : attention(prefix, c.layers[l], &layer));
      if (c.layers[l].norms_after)
        KVASIR_RETURN_IF_ERROR(norm(prefix + "post_attention_norm", &layer.attention_norm_after));
      KVASIR_RETURN_IF_ERROR(feed_forward(prefix, c.layers[l], &layer));
      KVASIR_RETURN_IF_ERROR(end_of_layer(prefix, c.layers[l], &layer));
    }
    KVASIR_RETURN_IF_ERROR(norm(std::string(layout_.output_norm), &weights->output_norm));
    weights->output = weights->embedding;
    if (file_.find_tensor("output.weight") != nullptr)
      KVASIR_RETURN_IF_ERROR(matrix("output.weight", {c.vocabulary, c.width}, &weights->output));
    known_.emplace(kRotaryFactors);
    if (c.has_long_rotation()) known_.insert({std::string(kShortFactors), std::string(kLongFactors)});
    for (const gguf::Tensor& tensor : file_.tensors())
      if (known_.find(std::string(tensor.name)) == known_.end() && !predicts_further(tensor.name))
        return unsupported("tensor {} is not part of a {} model as supported; running without it would be wrong",
                           tensor.name.substr(0, 64), config_.family->name);
    return {};
  }

  WeightMap& map() { return map_; }

  // Whether a tensor belongs to the layers behind the model's own that guess further tokens, which are not run.
  bool predicts_further(std::string_view tensor) const {
    for (int l = config_.layer_count(); l < config_.layer_count() + config_.further_layers; ++l)
      if (tensor.starts_with(fmt::format("blk.{}.", l))) return true;
    return false;
  }

 private:
  // The rows to take from a tensor of `rows` rows (0: as many as outputs).
  struct Shape {
    int outputs;
    int inputs;
    int rows = 0;
    RowOrder order{};
    int slices = 0;  // of a tensor of three dimensions; 0: it has two

    std::uint64_t tensor_rows() const { return static_cast<std::uint64_t>(rows > 0 ? rows : outputs); }
  };

  Status per_layer_embedding(Weights* weights) {
    const int size = config_.per_layer_embedding;
    if (size == 0) return {};
    const int all = size * config_.layer_count();
    KVASIR_RETURN_IF_ERROR(
        matrix("per_layer_token_embd.weight", {config_.vocabulary, all}, &weights->per_layer_embedding));
    KVASIR_RETURN_IF_ERROR(matrix("per_layer_model_proj.weight", {all, config_.width}, &weights->per_layer_projection));
    return vector("per_layer_proj_norm.weight", {size, 1}, &weights->per_layer_norm);
  }

  Status end_of_layer(const std::string& prefix, const LayerSpec& spec, LayerWeights* layer) {
    const int size = config_.per_layer_embedding;
    if (size > 0) {
      KVASIR_RETURN_IF_ERROR(
          linear(prefix + "inp_gate", {size, config_.width}, Presence::kNever, &layer->per_layer_gate));
      KVASIR_RETURN_IF_ERROR(
          linear(prefix + "proj", {config_.width, size}, Presence::kNever, &layer->per_layer_output));
      KVASIR_RETURN_IF_ERROR(norm(prefix + "post_norm", &layer->per_layer_norm));
    }
    if (spec.scaled) KVASIR_RETURN_IF_ERROR(vector(prefix + "layer_output_scale.weight", {1, 1}, &layer->scale));
    return {};
  }

  Status latent_attention(const std::string& prefix, const AttentionSpec& spec, LayerWeights* layer) {
    const LatentSpec& latent = *spec.latent;
    const int width = config_.width, rotated = spec.head_dim - latent.rank, part = latent.plain + rotated;
    const Presence none = Presence::kNever;
    const int given = latent.query_rank > 0 ? latent.query_rank : width;
    const std::string query = prefix + (latent.query_rank > 0 ? "attn_q_b" : "attn_q");
    if (latent.query_rank > 0) {
      KVASIR_RETURN_IF_ERROR(linear(prefix + "attn_q_a", {latent.query_rank, width}, none, &layer->query_down));
      KVASIR_RETURN_IF_ERROR(vector(prefix + "attn_q_a_norm.weight", {latent.query_rank, 1}, &layer->query_down_norm));
    }
    const bool halves = layout_.pairs == RotaryPairs::kHalves;
    const RowOrder plain{0, latent.plain, 0, part}, turned{latent.plain, rotated, halves ? rotated : 0, part};
    KVASIR_RETURN_IF_ERROR(
        linear(query, {spec.heads * latent.plain, given, spec.heads * part, plain}, none, &layer->plain_query));
    KVASIR_RETURN_IF_ERROR(
        linear(query, {spec.heads * rotated, given, spec.heads * part, turned}, none, &layer->query));
    const std::string keys = prefix + "attn_kv_a_mqa";
    const RowOrder key{latent.rank, rotated, halves ? rotated : 0};
    KVASIR_RETURN_IF_ERROR(linear(keys, {latent.rank, width, spec.head_dim}, none, &layer->latent));
    KVASIR_RETURN_IF_ERROR(linear(keys, {rotated, width, spec.head_dim, key}, none, &layer->key));
    KVASIR_RETURN_IF_ERROR(vector(prefix + "attn_kv_a_norm.weight", {latent.rank, 1}, &layer->latent_norm));
    if (file_.find_tensor(prefix + "attn_kv_b.weight") != nullptr)
      return unsupported(
          "tensor {}attn_kv_b.weight: this file was made before its parts were split; convert the model "
          "again",
          prefix);
    Linear of_heads;
    KVASIR_RETURN_IF_ERROR(of_experts(prefix + "attn_k_b", spec.heads, {latent.rank, latent.plain}, none, &of_heads));
    layer->head_keys = of_heads.matrix;
    KVASIR_RETURN_IF_ERROR(of_experts(prefix + "attn_v_b", spec.heads, {latent.value, latent.rank}, none, &of_heads));
    layer->head_values = of_heads.matrix;
    return linear(prefix + "attn_output", {width, spec.heads * latent.value}, none, &layer->attention_output);
  }

  Status attention(const std::string& prefix, const LayerSpec& spec, LayerWeights* layer) {
    if (spec.attention.latent) return latent_attention(prefix, spec.attention, layer);
    const ModelConfig& c = config_;
    const int head_dim = spec.attention.head_dim;
    const int queries = spec.attention.heads * head_dim;
    const int keys = spec.attention.kv_heads * head_dim;
    const int rotary = c.rotary[static_cast<std::size_t>(spec.attention.rotary)].dims;
    const bool halves = layout_.pairs == RotaryPairs::kHalves;
    const RowOrder rotated{0, head_dim, halves ? rotary : 0};
    const Presence bias = layout_.qkv_bias;
    const bool fused = present(layout_.fused_qkv, prefix + "attn_qkv.weight");
    const auto projection = [&](const char* name, int first, int outputs, RowOrder order, Linear* to) {
      if (!fused) return linear(prefix + name, {outputs, c.width, 0, order}, bias, to);
      order.first = first;
      return linear(prefix + "attn_qkv", {outputs, c.width, queries + 2 * keys, order}, bias, to);
    };
    if (spec.attention.gated) {
      const RowOrder query{0, head_dim, halves ? rotary : 0, 2 * head_dim}, gate{head_dim, head_dim, 0, 2 * head_dim};
      KVASIR_RETURN_IF_ERROR(linear(prefix + "attn_q", {queries, c.width, 2 * queries, query}, bias, &layer->query));
      KVASIR_RETURN_IF_ERROR(
          linear(prefix + "attn_q", {queries, c.width, 2 * queries, gate}, bias, &layer->attention_gate));
    } else {
      KVASIR_RETURN_IF_ERROR(projection("attn_q", 0, queries, rotated, &layer->query));
    }
    const bool own_keys = spec.attention.keys_of < 0;
    if (own_keys) {
      KVASIR_RETURN_IF_ERROR(projection("attn_k", queries, keys, rotated, &layer->key));
      // The rows of keys again, in the order of the file, which is that of the output matrix's columns.
      const char* values = spec.attention.values_from_keys ? "attn_k" : "attn_v";
      KVASIR_RETURN_IF_ERROR(projection(values, queries + keys, keys, {}, &layer->value));
    }
    if (present(layout_.qk_norm, prefix + "attn_q_norm.weight")) {
      const bool row = layout_.qk_norm_of_row;
      KVASIR_RETURN_IF_ERROR(
          vector(prefix + "attn_q_norm.weight", {row ? queries : head_dim, 1, 0, rotated}, &layer->query_norm));
      if (own_keys)
        KVASIR_RETURN_IF_ERROR(
            vector(prefix + "attn_k_norm.weight", {row ? keys : head_dim, 1, 0, rotated}, &layer->key_norm));
    }
    if (spec.attention.sinks)
      KVASIR_RETURN_IF_ERROR(vector(prefix + "attn_sinks.weight", {spec.attention.heads, 1}, &layer->sinks));
    return linear(prefix + "attn_output", {c.width, queries}, layout_.other_biases, &layer->attention_output);
  }

  Status state(const std::string& prefix, const StateSpec& spec, LayerWeights* layer) {
    const std::span<const int> inputs = spec.mixer->inputs();
    KVASIR_CHECK(spec.inputs.size() == inputs.size() && inputs.size() <= StateMixer::kMostInputs);
    layer->mixer_inputs.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      KVASIR_RETURN_IF_ERROR(
          linear(prefix + spec.inputs[i], {inputs[i], config_.width}, layout_.other_biases, &layer->mixer_inputs[i]));
    for (const StateSpec::Parameter& parameter : spec.parameters)
      KVASIR_RETURN_IF_ERROR(floats(prefix + parameter.name, parameter.dims,
                                    static_cast<int>(std::accumulate(parameter.dims.begin(), parameter.dims.end(),
                                                                     std::uint64_t{1}, std::multiplies<>())),
                                    {}, &layer->mixer_parameters.emplace_back()));
    return linear(prefix + spec.output, {config_.width, spec.mixer->output()}, layout_.other_biases,
                  &layer->attention_output);
  }

  Status feed_forward(const std::string& prefix, const LayerSpec& spec, LayerWeights* layer) {
    if (spec.norms_before && !spec.shared_norm)
      KVASIR_RETURN_IF_ERROR(norm(prefix + std::string(layout_.ffn_norm), &layer->ffn_norm));
    if (spec.norms_after) KVASIR_RETURN_IF_ERROR(norm(prefix + "post_ffw_norm", &layer->ffn_norm_after));
    if (spec.experts && spec.experts->beside_network) {
      KVASIR_RETURN_IF_ERROR(network(prefix, "", spec.feed_forward, layer));
      KVASIR_RETURN_IF_ERROR(vector(prefix + "ffn_gate_inp.scale", {config_.width, 1}, &layer->router_norm));
      KVASIR_RETURN_IF_ERROR(norm(prefix + "post_ffw_norm_1", &layer->network_norm_after));
      KVASIR_RETURN_IF_ERROR(norm(prefix + "pre_ffw_norm_2", &layer->expert_norm));
      KVASIR_RETURN_IF_ERROR(norm(prefix + "post_ffw_norm_2", &layer->expert_norm_after));
    }
    if (spec.experts) return experts(prefix, *spec.experts, layer);
    return network(prefix, "", spec.feed_forward, layer);
  }

  // `suffix`: of the tensors' names.
  Status network(const std::string& prefix, const std::string& suffix, const FeedForwardSpec& spec,
                 LayerWeights* layer) {
    const int width = config_.width;
    const Presence bias = layout_.other_biases;
    const bool fused = layout_.fused_gate_up && suffix.empty();
    const RowOrder second{spec.hidden, 0, 0};
    if (fused) {
      KVASIR_RETURN_IF_ERROR(linear(prefix + "ffn_up", {spec.hidden, width, 2 * spec.hidden}, bias, &layer->gate));
    } else if (spec.gated) {
      KVASIR_RETURN_IF_ERROR(linear(prefix + "ffn_gate" + suffix, {spec.hidden, width}, bias, &layer->gate));
    }
    KVASIR_RETURN_IF_ERROR(linear(
        prefix + "ffn_up" + suffix,
        fused ? Shape{spec.hidden, width, 2 * spec.hidden, second} : Shape{spec.hidden, width}, bias, &layer->up));
    return linear(prefix + "ffn_down" + suffix, {width, spec.hidden}, bias, &layer->down);
  }

  Status experts(const std::string& prefix, const ExpertsSpec& spec, LayerWeights* layer) {
    const int width = config_.width;
    const Presence bias = spec.biases ? Presence::kAlways : Presence::kNever;
    KVASIR_RETURN_IF_ERROR(linear(prefix + "ffn_gate_inp", {spec.count, width}, bias, &layer->router));
    if (spec.selection_bias)
      KVASIR_RETURN_IF_ERROR(vector(prefix + "exp_probs_b.bias", {spec.count, 1}, &layer->selection_bias));
    if (spec.output_scales)
      KVASIR_RETURN_IF_ERROR(vector(prefix + "ffn_down_exps.scale", {spec.count, 1}, &layer->expert_scales));
    if (file_.find_tensor(prefix + "ffn_gate_up_exps.weight") != nullptr) {
      const std::string both = prefix + "ffn_gate_up_exps";
      KVASIR_RETURN_IF_ERROR(
          of_experts(both, spec.count, {spec.hidden, width, 2 * spec.hidden}, bias, &layer->expert_gate));
      KVASIR_RETURN_IF_ERROR(of_experts(both, spec.count, {spec.hidden, width, 2 * spec.hidden, {spec.hidden, 0, 0}},
                                        bias, &layer->expert_up));
    } else {
      KVASIR_RETURN_IF_ERROR(
          of_experts(prefix + "ffn_gate_exps", spec.count, {spec.hidden, width}, bias, &layer->expert_gate));
      KVASIR_RETURN_IF_ERROR(
          of_experts(prefix + "ffn_up_exps", spec.count, {spec.hidden, width}, bias, &layer->expert_up));
    }
    KVASIR_RETURN_IF_ERROR(
        of_experts(prefix + "ffn_down_exps", spec.count, {width, spec.hidden}, bias, &layer->expert_down));
    if (spec.shared_hidden == 0) return {};
    if (spec.shared_gate)
      KVASIR_RETURN_IF_ERROR(floats(prefix + "ffn_gate_inp_shexp.weight", {static_cast<std::uint64_t>(width)}, width,
                                    {}, &layer->shared_gate));
    return network(prefix, "_shexp", {.hidden = spec.shared_hidden}, layer);
  }

  // The experts' slices of a tensor, one after the other. `shape`: of the first.
  Status of_experts(const std::string& name, int count, const Shape& shape, Presence bias, Linear* to) {
    const auto rows = static_cast<int>(shape.tensor_rows());
    const auto first = [&](int expert) { return shape.order.first + expert * rows; };
    for (int e = 0; e < count; ++e) {
      WeightId id{};
      KVASIR_RETURN_IF_ERROR(
          matrix(name + ".weight", {shape.outputs, shape.inputs, rows, {first(e), 0, 0}, count}, &id));
      if (e == 0) to->matrix = id;
    }
    for (int e = 0; e < count && bias == Presence::kAlways; ++e) {
      WeightId id{};
      KVASIR_RETURN_IF_ERROR(floats(name + ".bias",
                                    {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(count)},
                                    shape.outputs, {first(e), 0, 0}, &id));
      if (e == 0) to->bias = id;
    }
    return {};
  }

  Status norm(const std::string& name, Norm* to) {
    KVASIR_RETURN_IF_ERROR(vector(name + ".weight", {config_.width, 1}, &to->weight));
    if (config_.norm != NormKind::kLayer) return {};
    return vector(name + ".bias", {config_.width, 1}, &to->bias);
  }

  bool present(Presence presence, const std::string& tensor) const {
    return presence == Presence::kAlways || (presence == Presence::kOptional && file_.find_tensor(tensor) != nullptr);
  }

  Status linear(const std::string& name, const Shape& shape, Presence bias, Linear* to) {
    KVASIR_RETURN_IF_ERROR(matrix(name + ".weight", shape, &to->matrix));
    if (!present(bias, name + ".bias")) return {};
    return vector(name + ".bias", shape, &to->bias);
  }

  Status matrix(const std::string& name, const Shape& shape, WeightId* to) {
    const gguf::Tensor* tensor = nullptr;
    std::vector<std::uint64_t> dims = {static_cast<std::uint64_t>(shape.inputs), shape.tensor_rows()};
    if (shape.slices > 0) dims.push_back(static_cast<std::uint64_t>(shape.slices));
    KVASIR_RETURN_IF_ERROR(find(name, dims, &tensor));
    const auto type = dtype_from_gguf(tensor->type);
    if (!type) {
      const auto traits = foreign_dtype(tensor->type);
      return unsupported("tensor {} is of type {}, which is not supported; supported: {}", name,
                         traits ? traits->name : "unknown", supported_types());
    }
    *to = add(tensor, {*type, shape.outputs, shape.inputs, false, shape.order, tensor->bytes});
    return {};
  }

  Status vector(const std::string& name, const Shape& shape, WeightId* to) {
    return floats(name, {shape.tensor_rows()}, shape.outputs, shape.order, to);
  }

  // `count` elements of a tensor of these dimensions.
  Status floats(const std::string& name, const std::vector<std::uint64_t>& dims, int count, RowOrder order,
                WeightId* to) {
    const gguf::Tensor* tensor = nullptr;
    KVASIR_RETURN_IF_ERROR(find(name, dims, &tensor));
    const auto type = dtype_from_gguf(tensor->type);
    if (!type || is_quantized(*type))
      return unsupported("tensor {} must be of type F32, F16 or BF16; convert the model again", name);
    *to = add(tensor, {*type, count, 1, true, order, tensor->bytes});
    return {};
  }

  Status find(const std::string& name, const std::vector<std::uint64_t>& dims, const gguf::Tensor** out) {
    *out = file_.find_tensor(name);
    if (*out == nullptr)
      return data_loss("tensor {} is missing: this file holds no whole {} model", name, config_.family->name);
    std::vector<std::uint64_t> found = (*out)->dims;
    while (found.size() > dims.size() && found.back() == 1) found.pop_back();
    if (found != dims) return data_loss("tensor {} has a shape that contradicts the file's own metadata", name);
    known_.insert(name);
    return {};
  }

  WeightId add(const gguf::Tensor* tensor, const WeightPart& part) {
    map_.parts.push_back(part);
    map_.tensors.push_back(tensor);
    return static_cast<WeightId>(map_.parts.size() - 1);
  }

  const gguf::File& file_;
  const ModelConfig& config_;
  const TensorLayout& layout_;
  std::unordered_set<std::string> known_;
  WeightMap map_;
};

}  // namespace

Result<WeightMap> map_weights(const gguf::File& file, const ModelConfig& config) {
  Layout layout(file, config);
  if (const Status status = layout.all(); !status.ok()) return gguf::in_file(status, file);
  return std::move(layout.map());
}

Status load_weights(const gguf::File& file, const WeightMap& map, Backend& backend,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                    const Backend::LoadOptions& memory) {
  const std::uint64_t all = backend.weight_bytes(map.parts);
  std::uint64_t done = 0;
  Backend::LoadOptions hooks = memory;
  hooks.loaded = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(std::min(done, all), all);
  };
  hooks.read = [&](std::size_t part, std::uint64_t first, std::uint64_t count) {
    file.release(*map.tensors[part], first, count);
  };
  KVASIR_RETURN_IF_ERROR(backend.load(map.parts, hooks));
  if (progress) progress(all, all);
  return {};
}

}  // namespace kvasir
