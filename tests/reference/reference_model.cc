#include "reference/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "base/check.h"

namespace kvasir::test {
namespace {

// Decoded here rather than with tensor/dtype.h: the oracle should not inherit its mistakes.
double decode_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  KVASIR_CHECK(exponent != 31);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
T read(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  KVASIR_CHECK(at + sizeof value <= bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::vector<double> dequantise(const gguf::Tensor& tensor) {
  std::vector<double> out(tensor.elements);
  for (std::size_t i = 0; i < out.size(); ++i) {
    switch (tensor.type) {
      case 0:  // F32
        out[i] = double{read<float>(tensor.bytes, 4 * i)};
        break;
      case 1:  // F16
        out[i] = decode_f16(read<std::uint16_t>(tensor.bytes, 2 * i));
        break;
      case 8: {  // Q8_0: blocks of an f16 scale and 32 signed bytes
        const std::size_t block = i / 32 * 34;
        out[i] =
            decode_f16(read<std::uint16_t>(tensor.bytes, block)) * read<std::int8_t>(tensor.bytes, block + 2 + i % 32);
        break;
      }
      case 30: {  // BF16: the upper half of an f32
        const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(tensor.bytes, 2 * i)} << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        out[i] = double{value};
        break;
      }
      default: KVASIR_CHECK(false);
    }
  }
  return out;
}

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
  return {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), dequantise(*tensor)};
}

ReferenceModel::ReferenceModel(const gguf::File& file) {
  const auto arch = file.get_string("general.architecture");
  KVASIR_CHECK(arch.ok() && *arch == "llama");
  d_ = required_int(file, "llama.embedding_length");
  heads_ = required_int(file, "llama.attention.head_count");
  kv_heads_ = int_or(file, "llama.attention.head_count_kv", heads_);
  KVASIR_CHECK(heads_ % kv_heads_ == 0);
  head_dim_ = int_or(file, "llama.attention.key_length", d_ / heads_);
  KVASIR_CHECK(int_or(file, "llama.attention.value_length", head_dim_) == head_dim_);
  epsilon_ = float_or(file, "llama.attention.layer_norm_rms_epsilon", 1e-5);
  const int ffn = required_int(file, "llama.feed_forward_length");

  const double base = float_or(file, "llama.rope.freq_base", 10000);
  const int rotated = int_or(file, "llama.rope.dimension_count", head_dim_);
  KVASIR_CHECK(rotated % 2 == 0 && rotated <= head_dim_);
  double divisor = 1;
  if (file.find("llama.rope.scaling.type") != nullptr) {
    const auto scaling = file.get_string("llama.rope.scaling.type");
    KVASIR_CHECK(scaling.ok() && (*scaling == "none" || *scaling == "linear"));
    if (*scaling == "linear") divisor = float_or(file, "llama.rope.scaling.factor", 1);
  }
  std::vector<double> factors(static_cast<std::size_t>(rotated) / 2, 1.0);
  if (file.find_tensor("rope_freqs.weight") != nullptr) {
    factors = load(file, "rope_freqs.weight", 1, rotated / 2).values;
  }
  for (int i = 0; i < rotated / 2; ++i) {
    const double theta = std::pow(base, -2.0 * i / rotated);
    frequencies_.push_back(theta / divisor / factors[static_cast<std::size_t>(i)]);
  }

  const gguf::Tensor* embedding = file.find_tensor("token_embd.weight");
  KVASIR_CHECK(embedding != nullptr && embedding->dims.size() == 2);
  vocab_ = static_cast<int>(embedding->dims[1]);
  embedding_ = load(file, "token_embd.weight", vocab_, d_);
  const bool tied = file.find_tensor("output.weight") == nullptr;
  output_ = tied ? embedding_ : load(file, "output.weight", vocab_, d_);
  output_norm_ = load(file, "output_norm.weight", 1, d_).values;
  const int layers = required_int(file, "llama.block_count");
  for (int i = 0; i < layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    Layer layer;
    layer.attn_norm = load(file, prefix + "attn_norm.weight", 1, d_).values;
    layer.q = load(file, prefix + "attn_q.weight", heads_ * head_dim_, d_);
    layer.k = load(file, prefix + "attn_k.weight", kv_heads_ * head_dim_, d_);
    layer.v = load(file, prefix + "attn_v.weight", kv_heads_ * head_dim_, d_);
    layer.o = load(file, prefix + "attn_output.weight", d_, heads_ * head_dim_);
    layer.ffn_norm = load(file, prefix + "ffn_norm.weight", 1, d_).values;
    layer.gate = load(file, prefix + "ffn_gate.weight", ffn, d_);
    layer.up = load(file, prefix + "ffn_up.weight", ffn, d_);
    layer.down = load(file, prefix + "ffn_down.weight", d_, ffn);
    layers_.push_back(std::move(layer));
  }
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
    std::vector<std::vector<double>> keys;  // by token, not rotated
    std::vector<std::vector<double>> values;
  };
  std::vector<Cache> caches(layers_.size());
  std::map<double, std::vector<Turn>> turns_by_position;
  const auto turns = [&](double position) -> const std::vector<Turn>& {
    const auto [at, added] = turns_by_position.try_emplace(position);
    if (added) at->second = turns_at(position, frequencies_);
    return at->second;
  };
  std::vector<std::vector<double>> result;

  for (std::size_t t = 0; t < tokens.size(); ++t) {
    KVASIR_CHECK(tokens[t] >= 0 && tokens[t] < vocab_);
    const auto embedded = embedding_.row(static_cast<std::size_t>(tokens[t]));
    std::vector<double> x(embedded.begin(), embedded.end());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      Cache& cache = caches[l];
      const std::vector<double> normed = rms_norm(x, layer.attn_norm, epsilon_);
      std::vector<double> query = layer.q.times(normed);
      cache.keys.push_back(layer.k.times(normed));
      cache.values.push_back(layer.v.times(normed));

      std::vector<double> attended(heads * head_dim, 0.0);
      for (std::size_t kv = 0; kv * group < heads; ++kv) {
        const RowView& view = view_of(static_cast<int>(l), static_cast<int>(t), static_cast<int>(kv));
        KVASIR_CHECK(!view.ids.empty() && view.ids.size() == view.positions.size());
        KVASIR_CHECK(view.ids.front() >= 0 && view.ids.back() == static_cast<int>(t));
        KVASIR_CHECK(std::adjacent_find(view.ids.begin(), view.ids.end(), std::greater_equal<>()) == view.ids.end());
        const std::size_t kv_at = kv * head_dim;
        std::vector<std::vector<double>> keys;
        for (std::size_t j = 0; j < view.ids.size(); ++j) {
          const auto key = std::span(cache.keys[static_cast<std::size_t>(view.ids[j])]).subspan(kv_at, head_dim);
          keys.emplace_back(key.begin(), key.end());
          rotate(keys.back(), turns(view.positions[j]));
        }
        for (std::size_t h = kv * group; h < (kv + 1) * group; ++h) {
          const auto q = std::span(query).subspan(h * head_dim, head_dim);
          rotate(q, turns(view.query_position));
          std::vector<double> weights;
          for (const std::vector<double>& key : keys)
            weights.push_back(dot(q, key) / std::sqrt(static_cast<double>(head_dim)));
          softmax(weights);
          if (observe) observe(static_cast<int>(l), static_cast<int>(t), static_cast<int>(h), weights);
          for (std::size_t j = 0; j < weights.size(); ++j) {
            const std::vector<double>& value = cache.values[static_cast<std::size_t>(view.ids[j])];
            for (std::size_t i = 0; i < head_dim; ++i) attended[h * head_dim + i] += weights[j] * value[kv_at + i];
          }
        }
      }
      add(x, layer.o.times(attended));

      const std::vector<double> ffn_in = rms_norm(x, layer.ffn_norm, epsilon_);
      std::vector<double> hidden = layer.up.times(ffn_in);
      const std::vector<double> gate = layer.gate.times(ffn_in);
      for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] *= gate[i] / (1 + std::exp(-gate[i]));
      add(x, layer.down.times(hidden));
    }
    result.push_back(output_.times(rms_norm(x, output_norm_, epsilon_)));
  }
  return result;
}

}  // namespace kvasir::test
