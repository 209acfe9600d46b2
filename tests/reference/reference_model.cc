#include "reference/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "base/check.h"
#include "reference/dequantise.h"

namespace kvasir::test {
namespace {

int required_int(const gguf::File& file, const std::string& key) {
  const auto value = file.get_uint(key);
  KVASIR_CHECK(value.ok() && *value > 0 && *value <= std::numeric_limits<int>::max());
  return static_cast<int>(*value);
}

int int_or(const gguf::File& file, const std::string& key, int otherwise) {
  return file.find(key) != nullptr ? required_int(file, key) : otherwise;
}

double float_or(const gguf::File& file, const std::string& key, double otherwise) {
  if (file.find(key) == nullptr) return otherwise;
  const auto value = file.get_float(key);
  KVASIR_CHECK(value.ok());
  return *value;
}

double dot(std::span<const double> a, std::span<const double> b) {
  // Four sums, because one would make every addition wait for the one before it.
  double sums[4] = {};
  for (std::size_t i = 0; i < a.size(); ++i) sums[i % 4] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void add(std::vector<double>& x, std::span<const double> y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

std::vector<RowView> full_views(int n) {
  return streaming_views(n, 0, n, 1);
}

std::vector<RowView> window_views(int n, int window, int every) {
  return streaming_views(n, 0, window, every);
}

std::vector<RowView> streaming_views(int n, int sinks, int window, int every, std::span<const int> passes) {
  KVASIR_CHECK(sinks >= 0 && window >= 0 && every >= 1);
  const int target = sinks + window;
  std::vector<RowView> views;
  std::vector<int> cache;
  int next = 0;
  for (std::size_t pass = 0; next < n; ++pass) {
    const int pass_size = pass < passes.size() ? passes[pass] : 1;
    KVASIR_CHECK(pass_size >= 1);
    for (int i = 0; i < pass_size && next < n; ++i) {
      cache.push_back(next++);
      RowView view;
      view.ids = cache;
      for (std::size_t slot = 0; slot < cache.size(); ++slot) view.positions.push_back(static_cast<double>(slot));
      view.query_position = view.positions.back();
      views.push_back(std::move(view));
    }
    if (static_cast<int>(cache.size()) - target >= every) cache.erase(cache.begin() + sinks, cache.end() - window);
  }
  return views;
}

std::vector<double> rms_norm(std::span<const double> x, std::span<const double> weight, double epsilon) {
  const double scale = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + epsilon);
  std::vector<double> out;
  for (std::size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * weight[i]);
  return out;
}

std::vector<double> layer_norm(std::span<const double> x, std::span<const double> weight, std::span<const double> bias,
                               double epsilon) {
  double mean = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  double variance = 0;
  for (const double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  std::vector<double> out;
  for (std::size_t i = 0; i < x.size(); ++i)
    out.push_back((x[i] - mean) / std::sqrt(variance + epsilon) * weight[i] + bias[i]);
  return out;
}

void softmax(std::span<double> x) {
  const double greatest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& value : x) sum += value = std::exp(value - greatest);
  for (double& value : x) value /= sum;
}

std::vector<Turn> turns_at(double position, std::span<const double> frequencies) {
  std::vector<Turn> turns;
  for (double frequency : frequencies)
    turns.push_back({std::cos(position * frequency), std::sin(position * frequency)});
  return turns;
}

void rotate(std::span<double> x, std::span<const Turn> turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const double even = x[2 * i];
    const double odd = x[2 * i + 1];
    x[2 * i] = even * turns[i].cosine - odd * turns[i].sine;
    x[2 * i + 1] = even * turns[i].sine + odd * turns[i].cosine;
  }
}

void rotate_halves(std::span<double> x, std::span<const Turn> turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const double first = x[i];
    const double second = x[i + turns.size()];
    x[i] = first * turns[i].cosine - second * turns[i].sine;
    x[i + turns.size()] = second * turns[i].cosine + first * turns[i].sine;
  }
}

double rms_error_ratio(std::span<const float> got, std::span<const double> want) {
  KVASIR_CHECK(got.size() == want.size());
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = double{got[i]} - want[i];
    error += difference * difference;
  }
  return error == 0 ? 0 : std::sqrt(error / dot(want, want));
}

std::vector<double> ReferenceModel::Matrix::times(std::span<const double> x) const {
  KVASIR_CHECK(x.size() == columns);
  std::vector<double> out;
  for (std::size_t r = 0; r < rows; ++r) out.push_back(dot(row(r), x));
  return out;
}

ReferenceModel::Matrix ReferenceModel::load(const gguf::File& file, std::string_view name, int rows, int columns) {
  const gguf::Tensor* tensor = file.find_tensor(name);
  KVASIR_CHECK(tensor != nullptr);
  std::vector<std::uint64_t> dims = tensor->dims;
  dims.resize(std::max<std::size_t>(dims.size(), 2), 1);
  KVASIR_CHECK(dims.size() == 2 && dims[0] == static_cast<std::uint64_t>(columns) &&
               dims[1] == static_cast<std::uint64_t>(rows));
  return {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns),
          dequantise(tensor->type, tensor->bytes, tensor->elements)};
}

std::vector<double> ReferenceModel::load_vector(const gguf::File& file, std::string_view name, int length) {
  return load(file, name, 1, length).values;
}

ReferenceModel::Linear ReferenceModel::load_linear(const gguf::File& file, const std::string& name, int rows,
                                                   int columns) {
  Linear linear{load(file, name + ".weight", rows, columns), {}};
  if (file.find_tensor(name + ".bias") != nullptr) linear.bias = load_vector(file, name + ".bias", rows);
  return linear;
}

std::vector<ReferenceModel::Linear> ReferenceModel::load_experts(const gguf::File& file, const std::string& name,
                                                                 int count, int rows, int columns) {
  const gguf::Tensor* tensor = file.find_tensor(name + ".weight");
  KVASIR_CHECK(tensor != nullptr);
  const std::vector<double> values = dequantise(tensor->type, tensor->bytes, tensor->elements);
  const auto size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  KVASIR_CHECK(values.size() == static_cast<std::size_t>(count) * size);
  std::vector<double> biases;
  if (file.find_tensor(name + ".bias") != nullptr) biases = load(file, name + ".bias", count, rows).values;
  std::vector<Linear> experts;
  for (std::size_t e = 0; e < static_cast<std::size_t>(count); ++e) {
    const auto part = [e](const std::vector<double>& of, std::size_t n) {
      if (of.empty()) return of;
      const auto first = of.begin() + static_cast<std::ptrdiff_t>(e * n);
      return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(n));
    };
    experts.push_back({{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), part(values, size)},
                       part(biases, static_cast<std::size_t>(rows))});
  }
  return experts;
}

ReferenceModel::Norm ReferenceModel::load_norm(const gguf::File& file, const std::string& name) const {
  Norm norm{load_vector(file, name + ".weight", d_), {}};
  if (neox_) norm.bias = load_vector(file, name + ".bias", d_);
  return norm;
}

ReferenceModel::Layer ReferenceModel::load_layer(const gguf::File& file, const std::string& prefix, int ffn) const {
  Layer layer;
  const int queries = heads_ * head_dim_;
  const int keys = kv_heads_ * head_dim_;
  layer.attn_norm = load_norm(file, prefix + "attn_norm");
  const gguf::Tensor* decay = file.find_tensor(prefix + "mix_decay");
  const int channels = decay != nullptr ? static_cast<int>(decay->dims[0]) : 0;
  if (channels > 0) {
    layer.mix_input = load_linear(file, prefix + "mix_input", channels, d_);
    layer.mix_gate = load_linear(file, prefix + "mix_gate", channels, d_);
    layer.taps = load(file, prefix + "mix_taps", channels, 3);
    layer.decays = load_vector(file, prefix + "mix_decay", channels);
  } else if (neox_) {
    const Linear all = load_linear(file, prefix + "attn_qkv", queries + 2 * keys, d_);
    const auto rows = [&](int first, int count) {
      Linear part{{static_cast<std::size_t>(count), all.weight.columns, {}}, {}};
      for (int r = first; r < first + count; ++r) {
        const auto row = all.weight.row(static_cast<std::size_t>(r));
        part.weight.values.insert(part.weight.values.end(), row.begin(), row.end());
        part.bias.push_back(all.bias[static_cast<std::size_t>(r)]);
      }
      return part;
    };
    layer.q = rows(0, queries);
    layer.k = rows(queries, keys);
    layer.v = rows(queries + keys, keys);
  } else {
    layer.q = load_linear(file, prefix + "attn_q", queries, d_);
    layer.k = load_linear(file, prefix + "attn_k", keys, d_);
    layer.v = load_linear(file, prefix + "attn_v", keys, d_);
  }
  if (!neox_ && experts_ == 0) layer.gate = load_linear(file, prefix + "ffn_gate", ffn, d_);
  if (oss_) layer.sinks = load_vector(file, prefix + "attn_sinks.weight", heads_);
  if (gemma_) {
    layer.attn_norm_after = load_norm(file, prefix + "post_attention_norm");
    layer.ffn_norm_after = load_norm(file, prefix + "post_ffw_norm");
  }
  if (file.find_tensor(prefix + "attn_q_norm.weight") != nullptr) {
    layer.q_norm = load_vector(file, prefix + "attn_q_norm.weight", head_dim_);
    layer.k_norm = load_vector(file, prefix + "attn_k_norm.weight", head_dim_);
  }
  layer.o = channels > 0 ? load_linear(file, prefix + "mix_output", d_, channels)
                         : load_linear(file, prefix + "attn_output", d_, queries);
  layer.ffn_norm = load_norm(file, prefix + (oss_ ? "post_attention_norm" : "ffn_norm"));
  if (experts_ > 0) {
    layer.router = load_linear(file, prefix + "ffn_gate_inp", experts_, d_);
    layer.expert_gate = load_experts(file, prefix + "ffn_gate_exps", experts_, ffn, d_);
    layer.expert_up = load_experts(file, prefix + "ffn_up_exps", experts_, ffn, d_);
    layer.expert_down = load_experts(file, prefix + "ffn_down_exps", experts_, d_, ffn);
    return layer;
  }
  layer.up = load_linear(file, prefix + "ffn_up", ffn, d_);
  layer.down = load_linear(file, prefix + "ffn_down", d_, ffn);
  return layer;
}

// YaRN as Hugging Face's modeling_rope_utils computes it: between the dimensions whose wavelengths fit the original
// context beta_fast and beta_slow times, frequencies go over from their own to those divided by the factor.
void ReferenceModel::read_rope(const gguf::File& file, const std::string& arch) {
  const double base = float_or(file, arch + ".rope.freq_base", 10000);
  const int rotated = int_or(file, arch + ".rope.dimension_count", head_dim_);
  KVASIR_CHECK(rotated % 2 == 0 && rotated <= head_dim_);
  const std::string scaling = arch + ".rope.scaling.";
  const std::string type =
      file.find(scaling + "type") != nullptr ? std::string(*file.get_string(scaling + "type")) : "none";
  KVASIR_CHECK(type == "none" || type == "linear" || type == "yarn");
  const double factor = type == "none" ? 1 : float_or(file, scaling + "factor", 1);
  std::vector<double> factors(static_cast<std::size_t>(rotated) / 2, 1.0);
  if (file.find_tensor("rope_freqs.weight") != nullptr) factors = load_vector(file, "rope_freqs.weight", rotated / 2);
  double low = 0;
  double high = 0;
  if (type == "yarn") {
    const double original = float_or(file, scaling + "original_context_length", 0);
    const auto dimension = [&](double rotations) {
      return rotated * std::log(original / (rotations * 2 * std::acos(-1.0))) / (2 * std::log(base));
    };
    // gpt-oss does not begin and end at whole dimensions.
    const double first = dimension(float_or(file, scaling + "yarn_beta_fast", 32));
    const double last = dimension(float_or(file, scaling + "yarn_beta_slow", 1));
    low = std::max(oss_ ? first : std::floor(first), 0.0);
    high = std::min(oss_ ? last : std::ceil(last), rotated - 1.0);
    if (low == high) high += 0.001;
    magnitude_ = float_or(file, scaling + "yarn_attn_factor", 0.1 * std::log(factor) + 1);
  }
  for (int i = 0; i < rotated / 2; ++i) {
    const double own = std::pow(base, -2.0 * i / rotated) / factors[static_cast<std::size_t>(i)];
    const double kept = type == "yarn" ? 1 - std::min(1.0, std::max(0.0, (i - low) / (high - low))) : 0;
    frequencies_.push_back(own / factor * (1 - kept) + own * kept);
  }
}

ReferenceModel::ReferenceModel(const gguf::File& file) {
  const std::string arch(*file.get_string("general.architecture"));
  KVASIR_CHECK(arch == "llama" || arch == "qwen2" || arch == "qwen3" || arch == "gptneox" || arch == "gemma3" ||
               arch == "smollm3" || arch == "qwen3moe" || arch == "gpt-oss" || arch == "decay");
  oss_ = arch == "gpt-oss";
  experts_ = int_or(file, arch + ".expert_count", 0);
  if (experts_ > 0) experts_used_ = required_int(file, arch + ".expert_used_count");
  neox_ = arch == "gptneox";
  gemma_ = arch == "gemma3";
  turn_halves_ = arch != "llama" && arch != "smollm3" && arch != "decay";
  if (arch == "smollm3") unrotated_ = 4;  // SmolLM3Config.no_rope_layer_interval
  d_ = required_int(file, arch + ".embedding_length");
  heads_ = required_int(file, arch + ".attention.head_count");
  kv_heads_ = int_or(file, arch + ".attention.head_count_kv", heads_);
  KVASIR_CHECK(heads_ % kv_heads_ == 0);
  head_dim_ = int_or(file, arch + ".attention.key_length", d_ / heads_);
  KVASIR_CHECK(int_or(file, arch + ".attention.value_length", head_dim_) == head_dim_);
  epsilon_ =
      float_or(file, arch + (neox_ ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"), 1e-5);
  if (neox_) parallel_residual_ = *file.get_bool("gptneox.use_parallel_residual");
  window_ = int_or(file, arch + ".attention.sliding_window", 0);
  read_rope(file, arch);
  if (oss_) {
    pattern_ = 2;
    local_frequencies_ = frequencies_;
  }
  if (gemma_) {
    // Hugging Face's Gemma3TextConfig: every sixth layer sees all, the others rotate by a base of their own.
    pattern_ = int_or(file, arch + ".attention.sliding_window_pattern", 6);
    for (std::size_t i = 0; i < frequencies_.size(); ++i)
      local_frequencies_.push_back(
          std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(frequencies_.size())));
  }

  const gguf::Tensor* embedding = file.find_tensor("token_embd.weight");
  KVASIR_CHECK(embedding != nullptr && embedding->dims.size() == 2);
  vocab_ = static_cast<int>(embedding->dims[1]);
  embedding_ = load(file, "token_embd.weight", vocab_, d_);
  const bool tied = file.find_tensor("output.weight") == nullptr;
  output_ = tied ? embedding_ : load(file, "output.weight", vocab_, d_);
  output_norm_ = load_norm(file, "output_norm");
  const int layers = required_int(file, arch + ".block_count");
  const int ffn = required_int(file, arch + ".feed_forward_length");
  for (int i = 0; i < layers; ++i) layers_.push_back(load_layer(file, "blk." + std::to_string(i) + ".", ffn));
}

std::vector<double> ReferenceModel::Linear::of(std::span<const double> x) const {
  std::vector<double> out = weight.times(x);
  for (std::size_t i = 0; i < bias.size(); ++i) out[i] += bias[i];
  return out;
}

std::vector<double> ReferenceModel::normalise(std::span<const double> x, const Norm& norm) const {
  return norm.bias.empty() ? rms_norm(x, norm.weight, epsilon_) : layer_norm(x, norm.weight, norm.bias, epsilon_);
}

void ReferenceModel::normalise_heads(std::vector<double>& x, std::span<const double> weight) const {
  if (weight.empty()) return;
  for (std::size_t at = 0; at < x.size(); at += weight.size()) {
    const std::vector<double> head = rms_norm(std::span(x).subspan(at, weight.size()), weight, epsilon_);
    std::copy(head.begin(), head.end(), x.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

void ReferenceModel::turn(std::span<double> head, const std::vector<Turn>& turns) const {
  if (turn_halves_) {
    rotate_halves(head, turns);
  } else {
    rotate(head, turns);
  }
  for (std::size_t i = 0; i < 2 * turns.size(); ++i) head[i] *= magnitude_;
}

// The experts of the highest outputs, weighted by the softmax of those: as much as the softmax of all, divided by its
// sum.
std::vector<double> ReferenceModel::mix_experts(const Layer& layer, std::span<const double> x) const {
  const std::vector<double> scores = layer.router.of(x);
  std::vector<std::size_t> order;
  for (std::size_t e = 0; e < scores.size(); ++e) order.push_back(e);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<std::size_t>(experts_used_));
  std::vector<double> weights;
  for (const std::size_t e : order) weights.push_back(scores[e]);
  softmax(weights);
  std::vector<double> sum(x.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<double> gate = layer.expert_gate[order[i]].of(x);
    std::vector<double> hidden = layer.expert_up[order[i]].of(x);
    for (std::size_t j = 0; j < hidden.size(); ++j) {
      if (oss_) {
        const double g = std::min(gate[j], 7.0);
        hidden[j] = (std::min(std::max(hidden[j], -7.0), 7.0) + 1) * g / (1 + std::exp(-1.702 * g));
      } else {
        hidden[j] *= gate[j] / (1 + std::exp(-gate[j]));
      }
    }
    const std::vector<double> out = layer.expert_down[order[i]].of(hidden);
    for (std::size_t j = 0; j < out.size(); ++j) sum[j] += weights[i] * out[j];
  }
  return sum;
}

std::vector<double> ReferenceModel::feed_forward(const Layer& layer, std::span<const double> x) const {
  if (experts_ > 0) return mix_experts(layer, x);
  std::vector<double> hidden = layer.up.of(x);
  if (gemma_) {
    const std::vector<double> gate = layer.gate.of(x);
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      const double g = gate[i];
      hidden[i] *= 0.5 * g * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g)));
    }
  } else if (neox_) {
    for (double& h : hidden) h *= 0.5 * (1 + std::erf(h / std::sqrt(2.0)));
  } else {
    const std::vector<double> gate = layer.gate.of(x);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] *= gate[i] / (1 + std::exp(-gate[i]));
  }
  return layer.down.of(hidden);
}

// The newest row's sums over all rows so far, in closed form: what entered s rows ago has decayed s times.
std::vector<double> ReferenceModel::decayed(const Layer& layer, std::span<const std::vector<double>> inputs) {
  std::vector<double> sums;
  for (std::size_t channel = 0; channel < layer.decays.size(); ++channel) {
    const double factor = 1 / (1 + std::exp(-layer.decays[channel] - 3));
    double sum = 0;
    for (std::size_t row = 0; row < inputs.size(); ++row) {
      double convolved = 0;
      for (std::size_t tap = 0; tap < 3 && tap <= row; ++tap)
        convolved += layer.taps.row(channel)[tap] * inputs[row - tap][channel];
      sum += std::pow(factor, static_cast<double>(inputs.size() - 1 - row)) * convolved;
    }
    sums.push_back(sum);
  }
  return sums;
}

std::vector<std::vector<double>> ReferenceModel::logits(std::span<const int> tokens) const {
  return logits(tokens, full_views(static_cast<int>(tokens.size())));
}

std::vector<std::vector<double>> ReferenceModel::logits(std::span<const int> tokens, std::span<const RowView> views,
                                                        const AttentionObserver& observe) const {
  KVASIR_CHECK(views.size() == tokens.size());
  const ViewSource view = [&](int, int row, int) -> const RowView& { return views[static_cast<std::size_t>(row)]; };
  return logits(tokens, view, observe);
}

std::vector<std::vector<double>> ReferenceModel::logits(std::span<const int> tokens, const ViewSource& view_of,
                                                        const AttentionObserver& observe) const {
  const std::size_t head_dim = static_cast<std::size_t>(head_dim_);
  const std::size_t heads = static_cast<std::size_t>(heads_);
  const std::size_t group = heads / static_cast<std::size_t>(kv_heads_);
  struct Cache {
    std::vector<std::vector<double>> keys;    // by token, not rotated
    std::vector<std::vector<double>> values;  // or a state's inputs
  };
  std::vector<Cache> caches(layers_.size());
  std::map<std::pair<bool, double>, std::vector<Turn>> turns_by_position;
  bool local = false;   // the layer at hand has a window of its own
  bool rotates = true;  // and rotates queries and keys
  const std::vector<Turn> none;
  const auto turns = [&](double position) -> const std::vector<Turn>& {
    if (!rotates) return none;
    const auto [at, added] = turns_by_position.try_emplace({local, position});
    if (added) at->second = turns_at(position, local ? local_frequencies_ : frequencies_);
    return at->second;
  };
  std::vector<std::vector<double>> result;

  for (std::size_t t = 0; t < tokens.size(); ++t) {
    KVASIR_CHECK(tokens[t] >= 0 && tokens[t] < vocab_);
    const auto embedded = embedding_.row(static_cast<std::size_t>(tokens[t]));
    std::vector<double> x(embedded.begin(), embedded.end());
    if (gemma_)
      for (double& value : x) value *= std::sqrt(static_cast<double>(d_));
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      local = pattern_ > 0 && (l + 1) % static_cast<std::size_t>(pattern_) != 0;
      rotates = unrotated_ == 0 || (l + 1) % static_cast<std::size_t>(unrotated_) != 0;
      Cache& cache = caches[l];
      const std::vector<double> normed = normalise(x, layer.attn_norm);
      if (!layer.decays.empty()) {
        cache.values.push_back(layer.mix_input.of(normed));
        std::vector<double> mixed = decayed(layer, cache.values);
        const std::vector<double> gate = layer.mix_gate.of(normed);
        for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] *= gate[i] / (1 + std::exp(-gate[i]));
        add(x, layer.o.of(mixed));
        add(x, feed_forward(layer, normalise(x, layer.ffn_norm)));
        continue;
      }
      std::vector<double> query = layer.q.of(normed);
      cache.keys.push_back(layer.k.of(normed));
      cache.values.push_back(layer.v.of(normed));
      normalise_heads(query, layer.q_norm);
      normalise_heads(cache.keys.back(), layer.k_norm);

      std::vector<double> attended(heads * head_dim, 0.0);
      for (std::size_t kv = 0; kv * group < heads; ++kv) {
        RowView view;
        if (local) {
          for (int id = std::max(0, static_cast<int>(t) - window_ + 1); id <= static_cast<int>(t); ++id) {
            view.ids.push_back(id);
            view.positions.push_back(id);
          }
          view.query_position = static_cast<double>(t);
        } else {
          view = view_of(static_cast<int>(l), static_cast<int>(t), static_cast<int>(kv));
        }
        KVASIR_CHECK(!view.ids.empty() && view.ids.size() == view.positions.size());
        KVASIR_CHECK(view.biases.empty() || view.biases.size() == view.ids.size());
        KVASIR_CHECK(view.ids.front() >= 0 && view.ids.back() == static_cast<int>(t));
        KVASIR_CHECK(std::adjacent_find(view.ids.begin(), view.ids.end(), std::greater_equal<>()) == view.ids.end());
        const std::size_t kv_at = kv * head_dim;
        std::vector<std::vector<double>> keys;
        for (std::size_t j = 0; j < view.ids.size(); ++j) {
          const auto key = std::span(cache.keys[static_cast<std::size_t>(view.ids[j])]).subspan(kv_at, head_dim);
          keys.emplace_back(key.begin(), key.end());
          turn(keys.back(), turns(view.positions[j]));
        }
        for (std::size_t h = kv * group; h < (kv + 1) * group; ++h) {
          const auto q = std::span(query).subspan(h * head_dim, head_dim);
          turn(q, turns(view.query_position));
          std::vector<double> weights;
          for (std::size_t j = 0; j < keys.size(); ++j) {
            const bool in_window = window_ == 0 || pattern_ > 0 || view.query_position - view.positions[j] < window_;
            weights.push_back(in_window ? dot(q, keys[j]) / std::sqrt(static_cast<double>(head_dim))
                                        : -std::numeric_limits<double>::infinity());
            if (!view.biases.empty()) weights.back() += view.biases[j];
          }
          // A sink is one more score, of a token without a value.
          if (!layer.sinks.empty()) weights.push_back(layer.sinks[h]);
          softmax(weights);
          if (!layer.sinks.empty()) weights.pop_back();
          if (observe) observe(static_cast<int>(l), static_cast<int>(t), static_cast<int>(h), weights);
          for (std::size_t j = 0; j < weights.size(); ++j) {
            const std::vector<double>& value = cache.values[static_cast<std::size_t>(view.ids[j])];
            for (std::size_t i = 0; i < head_dim; ++i) attended[h * head_dim + i] += weights[j] * value[kv_at + i];
          }
        }
      }
      std::vector<double> attention = layer.o.of(attended);
      if (gemma_) {
        add(x, normalise(attention, layer.attn_norm_after));
        add(x, normalise(feed_forward(layer, normalise(x, layer.ffn_norm)), layer.ffn_norm_after));
      } else if (parallel_residual_) {
        const std::vector<double> beside = feed_forward(layer, normalise(x, layer.ffn_norm));
        add(x, attention);
        add(x, beside);
      } else {
        add(x, attention);
        add(x, feed_forward(layer, normalise(x, layer.ffn_norm)));
      }
    }
    result.push_back(output_.times(normalise(x, output_norm_)));
  }
  return result;
}

}  // namespace kvasir::test
