#include "support/random_model.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <random>
#include <span>

#include "base/check.h"
#include "support/gguf_writer.h"
#include "support/random_blocks.h"
#include "tensor/dtype.h"

namespace kvasir::test {
namespace {

struct FileType {
  DType dtype;
  std::uint32_t general_file_type;
};

FileType file_type(const std::string& name) {
  if (name == "f32") return {DType::kF32, 0};
  if (name == "f16") return {DType::kF16, 1};
  if (name == "bf16") return {DType::kBF16, 32};
  if (name == "q8_0") return {DType::kQ8_0, 7};
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const DType type : all_dtypes())
    if (dtype_traits(type).name == upper) return {type, 1024};  // mixed or unknown: of no consequence
  KVASIR_CHECK(false);
}

template <class T>
void append(std::vector<std::byte>& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

void append_q8_0(std::vector<std::byte>& out, std::span<const float> block) {
  float amax = 0;
  for (float x : block) amax = std::max(amax, std::abs(x));
  const float scale = amax / 127;
  append(out, f32_to_f16(scale));
  for (float x : block) append(out, static_cast<std::int8_t>(scale == 0 ? 0 : std::lround(x / scale)));
}

std::vector<std::byte> encode(std::span<const float> values, DType dtype) {
  std::vector<std::byte> out;
  switch (dtype) {
    case DType::kF32:
      for (float x : values) append(out, x);
      break;
    case DType::kF16:
      for (float x : values) append(out, f32_to_f16(x));
      break;
    case DType::kBF16:
      for (float x : values) append(out, f32_to_bf16(x));
      break;
    case DType::kQ8_0:
      for (std::size_t at = 0; at < values.size(); at += 32) append_q8_0(out, values.subspan(at, 32));
      break;
    default: {
      std::mt19937_64 random(static_cast<std::uint64_t>(std::lround(values[0] * 1e6F)));
      double squares = 0;
      for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
      return random_blocks(dtype, values.size(), std::sqrt(squares / static_cast<double>(values.size())), random);
    }
  }
  return out;
}

void set_vocabulary(gguf::Writer& writer, const Vocabulary& vocabulary) {
  std::vector<std::int32_t> kinds;
  for (const TokenKind kind : vocabulary.kinds) kinds.push_back(static_cast<std::int32_t>(kind));
  writer.set_string("tokenizer.ggml.model", "llama");
  writer.set_string("tokenizer.ggml.pre", "default");
  writer.set_strings("tokenizer.ggml.tokens", vocabulary.pieces);
  writer.set_float32s("tokenizer.ggml.scores", vocabulary.scores);
  writer.set_int32s("tokenizer.ggml.token_type", kinds);
  const auto id = [&](const std::string& name, const std::optional<TokenId>& token) {
    if (token) writer.set_uint32("tokenizer.ggml." + name + "_token_id", static_cast<std::uint32_t>(*token));
  };
  id("bos", vocabulary.bos);
  id("eos", vocabulary.eos);
  id("eot", vocabulary.eot);
  id("unknown", vocabulary.unknown);
  writer.set_bool("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
  writer.set_bool("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
  writer.set_bool("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix);
}

// Long wavelengths are stretched by the factor, short ones left alone, those between interpolated.
std::vector<float> llama3_frequency_factors(const RandomModelSpec& spec) {
  const double longest_unscaled = spec.context / 4.0;
  const double shortest_scaled = spec.context / 1.0;
  std::vector<float> factors;
  for (int i = 0; i < spec.head_dim / 2; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(double{spec.rope_base}, 2.0 * i / spec.head_dim);
    double factor = 1;
    if (wavelength > shortest_scaled) {
      factor = double{spec.rope_factor};
    } else if (wavelength >= longest_unscaled) {
      const double smooth = (spec.context / wavelength - 1.0) / (4.0 - 1.0);
      factor = 1 / ((1 - smooth) / double{spec.rope_factor} + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

}  // namespace

Vocabulary invented_vocabulary(int size) {
  Vocabulary vocabulary;
  std::vector<std::string>& pieces = vocabulary.pieces;
  pieces = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    pieces.push_back(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
  }
  // Every longer piece is a shorter one and a letter, so that pairwise merging can reach all of them.
  const std::string letters = "etaoinshrdlucmfwypvbgkjqxz";
  const std::size_t first_invented = pieces.size();
  pieces.emplace_back("\u2581");
  for (char letter : letters) pieces.emplace_back(1, letter);
  for (std::size_t stem = first_invented; pieces.size() < static_cast<std::size_t>(size); ++stem) {
    for (char letter : letters) pieces.push_back(pieces[stem] + letter);
  }
  pieces.resize(static_cast<std::size_t>(size));
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const bool invented = id >= first_invented;
    vocabulary.scores.push_back(invented ? -static_cast<float>(id - first_invented) : 0.0F);
    vocabulary.kinds.push_back(id == 0    ? TokenKind::kUnknown
                               : id <= 2  ? TokenKind::kControl
                               : invented ? TokenKind::kNormal
                                          : TokenKind::kByte);
  }
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.unknown = 0;
  return vocabulary;
}

namespace {

void set_hyper_parameters(gguf::Writer& writer, const RandomModelSpec& spec) {
  const auto key = [&](const char* name) { return spec.architecture + "." + name; };
  const auto count = [&](const char* name, int value) {
    writer.set_uint32(key(name), static_cast<std::uint32_t>(value));
  };
  count("vocab_size", spec.vocab);
  count("context_length", spec.context);
  count("embedding_length", spec.d);
  count("block_count", spec.layers);
  count("feed_forward_length", spec.ffn);
  count("attention.head_count", spec.heads);
  if (spec.architecture == "gptneox") {
    KVASIR_CHECK(spec.kv_heads == spec.heads);
    writer.set_float32(key("attention.layer_norm_epsilon"), spec.rms_epsilon);
    writer.set_bool(key("use_parallel_residual"), spec.parallel_residual);
  } else {
    count("attention.head_count_kv", spec.kv_heads);
    writer.set_float32(key("attention.layer_norm_rms_epsilon"), spec.rms_epsilon);
  }
  if (spec.has_experts()) {
    count("expert_count", spec.experts);
    count("expert_used_count", spec.experts_used);
    count("expert_feed_forward_length", spec.ffn);
  }
  if (spec.head_dim * spec.heads != spec.d || spec.has_head_norms()) {
    count("attention.key_length", spec.head_dim);
    count("attention.value_length", spec.head_dim);
  }
  if (spec.sliding_window > 0) count("attention.sliding_window", spec.sliding_window);
  if (spec.window_pattern > 0) count("attention.sliding_window_pattern", spec.window_pattern);
  for (std::size_t l = 0; l < spec.state_channels.size(); ++l)
    count(("state_channels." + std::to_string(l)).c_str(), spec.state_channels[l]);
  writer.set_float32(key("rope.freq_base"), spec.rope_base);
  count("rope.dimension_count", spec.rotary > 0 ? spec.rotary : spec.head_dim);
  if (spec.rope_scaling == RopeScaling::kLinear || spec.rope_scaling == RopeScaling::kYarn) {
    writer.set_string(key("rope.scaling.type"), spec.rope_scaling == RopeScaling::kYarn ? "yarn" : "linear");
    writer.set_float32(key("rope.scaling.factor"), spec.rope_factor);
  }
  if (spec.rope_scaling == RopeScaling::kYarn) count("rope.scaling.original_context_length", spec.context / 4);
}

// Adds tensors one after the other, as `weights` gives their values.
class TensorWriter {
 public:
  TensorWriter(gguf::Writer& writer, const RandomModelSpec& spec, const WeightSource& weights)
      : writer_(writer), type_(file_type(spec.dtype).dtype), weights_(weights) {}  // no weights: declares them only

  void matrix(const std::string& name, int rows, int columns) {
    KVASIR_CHECK(columns % static_cast<int>(dtype_traits(type_).block_elements) == 0);
    add(name, type_, rows, {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)});
  }
  // A matrix for each of `count` experts, with biases.
  void experts(const std::string& name, int count, int rows, int columns, bool bias) {
    const auto dim = [](int n) { return static_cast<std::uint64_t>(n); };
    add(name + ".weight", type_, count * rows, {dim(columns), dim(rows), dim(count)});
    if (bias) add(name + ".bias", DType::kF32, count, {dim(rows), dim(count)});
  }
  void vector(const std::string& name, int length) { add(name, DType::kF32, 1, {static_cast<std::uint64_t>(length)}); }
  void linear(const std::string& name, int rows, int columns, bool bias) {
    matrix(name + ".weight", rows, columns);
    if (bias) vector(name + ".bias", rows);
  }

 private:
  void add(const std::string& name, DType type, int rows, const std::vector<std::uint64_t>& dims) {
    if (!weights_) return writer_.declare_tensor(name, static_cast<std::uint32_t>(type), dims);
    const std::vector<float> values = weights_(name, rows, static_cast<int>(dims[0]));
    KVASIR_CHECK(values.size() == static_cast<std::size_t>(rows) * dims[0]);
    writer_.add_tensor(name, static_cast<std::uint32_t>(type), dims, encode(values, type));
  }

  gguf::Writer& writer_;
  DType type_;
  const WeightSource& weights_;
};

void add_layer(TensorWriter& tensors, const RandomModelSpec& spec, int layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const int channels = spec.state_channels.empty() ? 0 : spec.state_channels[static_cast<std::size_t>(layer)];
  const bool neox = spec.architecture == "gptneox";
  const bool sinks = spec.architecture == "gpt-oss";
  const bool qkv_bias = neox || sinks || spec.biases || spec.architecture == "qwen2";
  const bool other_biases = neox || sinks || spec.biases;
  const int queries = spec.heads * spec.head_dim;
  const int keys = spec.kv_heads * spec.head_dim;
  const auto norm = [&](const std::string& name) {
    tensors.vector(prefix + name + ".weight", spec.d);
    if (neox) tensors.vector(prefix + name + ".bias", spec.d);
  };
  norm("attn_norm");
  if (channels > 0) {
    for (const char* input : {"mix_input", "mix_gate"}) tensors.linear(prefix + input, channels, spec.d, false);
    tensors.matrix(prefix + "mix_taps", channels, 3);
    tensors.vector(prefix + "mix_decay", channels);
  } else if (neox) {
    tensors.linear(prefix + "attn_qkv", queries + 2 * keys, spec.d, true);
  } else {
    tensors.linear(prefix + "attn_q", queries, spec.d, qkv_bias);
    tensors.linear(prefix + "attn_k", keys, spec.d, qkv_bias);
    tensors.linear(prefix + "attn_v", keys, spec.d, qkv_bias);
  }
  const bool gemma = spec.architecture == "gemma3";
  if (spec.has_head_norms()) {
    tensors.vector(prefix + "attn_q_norm.weight", spec.head_dim);
    tensors.vector(prefix + "attn_k_norm.weight", spec.head_dim);
  }
  if (sinks) tensors.vector(prefix + "attn_sinks.weight", spec.heads);
  if (channels > 0) {
    tensors.linear(prefix + "mix_output", spec.d, channels, false);
  } else {
    tensors.linear(prefix + "attn_output", spec.d, queries, other_biases);
  }
  if (gemma) norm("post_attention_norm");
  norm(sinks ? "post_attention_norm" : "ffn_norm");
  if (spec.has_experts()) {
    tensors.linear(prefix + "ffn_gate_inp", spec.experts, spec.d, sinks);
    tensors.experts(prefix + "ffn_gate_exps", spec.experts, spec.ffn, spec.d, sinks);
    tensors.experts(prefix + "ffn_up_exps", spec.experts, spec.ffn, spec.d, sinks);
    return tensors.experts(prefix + "ffn_down_exps", spec.experts, spec.d, spec.ffn, sinks);
  }
  if (!neox) tensors.linear(prefix + "ffn_gate", spec.ffn, spec.d, other_biases);
  tensors.linear(prefix + "ffn_up", spec.ffn, spec.d, other_biases);
  tensors.linear(prefix + "ffn_down", spec.d, spec.ffn, other_biases);
  if (gemma) norm("post_ffw_norm");
}

gguf::Writer write_model(const RandomModelSpec& spec, const WeightSource& weights) {
  KVASIR_CHECK(spec.heads % spec.kv_heads == 0 && spec.head_dim % 2 == 0);
  const FileType type = file_type(spec.dtype);
  gguf::Writer writer;
  writer.set_string("general.architecture", spec.architecture);
  writer.set_string("general.name", spec.name);
  writer.set_uint32("general.file_type", type.general_file_type);
  if (is_quantized(type.dtype)) writer.set_uint32("general.quantization_version", 2);
  set_hyper_parameters(writer, spec);
  KVASIR_CHECK(!spec.vocabulary || spec.vocabulary->pieces.size() == static_cast<std::size_t>(spec.vocab));
  set_vocabulary(writer, spec.vocabulary ? *spec.vocabulary : invented_vocabulary(spec.vocab));

  TensorWriter tensors(writer, spec, weights);
  tensors.matrix("token_embd.weight", spec.vocab, spec.d);
  for (int layer = 0; layer < spec.layers; ++layer) add_layer(tensors, spec, layer);
  tensors.vector("output_norm.weight", spec.d);
  if (spec.architecture == "gptneox") tensors.vector("output_norm.bias", spec.d);
  if (!spec.tied || spec.architecture == "gptneox") tensors.matrix("output.weight", spec.vocab, spec.d);
  if (spec.rope_scaling == RopeScaling::kLlama3 && weights) {
    writer.add_tensor("rope_freqs.weight", static_cast<std::uint32_t>(DType::kF32),
                      {static_cast<std::uint64_t>(spec.head_dim / 2)},
                      std::as_bytes(std::span<const float>(llama3_frequency_factors(spec))));
  }
  return writer;
}

}  // namespace

std::vector<std::byte> make_model(const RandomModelSpec& spec, const WeightSource& weights) {
  return write_model(spec, weights).finish();
}

void write_hollow_model(const std::string& path, const RandomModelSpec& spec) {
  const gguf::Writer writer = write_model(spec, {});
  write_bytes(path, writer.finish());
  std::filesystem::resize_file(path, writer.file_bytes());
}

std::vector<std::byte> make_random_model(const RandomModelSpec& spec) {
  std::mt19937_64 random(spec.seed);
  // Not std::normal_distribution, whose numbers differ between standard libraries.
  const auto normal = [&random] {
    const double u = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
    const double v = static_cast<double>(random() >> 11) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  };
  return make_model(spec, [&](const std::string& name, int rows, int columns) {
    const bool norm = name.ends_with("norm.weight");
    const double mean = norm ? 1 : 0;
    const double deviation = norm                  ? 0.1
                             : rows == 1           ? 0.2
                             : spec.weight_std > 0 ? double{spec.weight_std}
                                                   : 1 / std::sqrt(static_cast<double>(columns));
    const double gain = name == "output.weight" ? static_cast<double>(spec.output_gain) : 1;
    std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    for (float& value : values) value = static_cast<float>(mean + gain * deviation * normal());
    return values;
  });
}

void write_bytes(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  KVASIR_CHECK(!file.fail());
}

}  // namespace kvasir::test
