#include "support/random_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numbers>
#include <random>
#include <span>

#include "base/check.h"
#include "gguf/writer.h"
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
  KVASIR_CHECK(name == "q8_0");
  return {DType::kQ8_0, 7};
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
  const auto id = [&](const std::string& name, const std::optional<TokenValue>& token) {
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

std::vector<std::byte> make_model(const RandomModelSpec& spec, const WeightSource& weights) {
  KVASIR_CHECK(spec.heads % spec.kv_heads == 0 && spec.head_dim % 2 == 0);
  const FileType type = file_type(spec.dtype);
  const auto u32 = [](int value) { return static_cast<std::uint32_t>(value); };
  gguf::Writer writer;
  writer.set_string("general.architecture", "llama");
  writer.set_string("general.name", spec.name);
  writer.set_uint32("general.file_type", type.general_file_type);
  if (type.dtype == DType::kQ8_0) writer.set_uint32("general.quantization_version", 2);
  writer.set_uint32("llama.vocab_size", u32(spec.vocab));
  writer.set_uint32("llama.context_length", u32(spec.context));
  writer.set_uint32("llama.embedding_length", u32(spec.d));
  writer.set_uint32("llama.block_count", u32(spec.layers));
  writer.set_uint32("llama.feed_forward_length", u32(spec.ffn));
  writer.set_uint32("llama.attention.head_count", u32(spec.heads));
  writer.set_uint32("llama.attention.head_count_kv", u32(spec.kv_heads));
  writer.set_float32("llama.attention.layer_norm_rms_epsilon", spec.rms_epsilon);
  writer.set_float32("llama.rope.freq_base", spec.rope_base);
  writer.set_uint32("llama.rope.dimension_count", u32(spec.rotary > 0 ? spec.rotary : spec.head_dim));
  if (spec.head_dim * spec.heads != spec.d) {
    writer.set_uint32("llama.attention.key_length", u32(spec.head_dim));
    writer.set_uint32("llama.attention.value_length", u32(spec.head_dim));
  }
  if (spec.rope_scaling == RopeScaling::kLinear) {
    writer.set_string("llama.rope.scaling.type", "linear");
    writer.set_float32("llama.rope.scaling.factor", spec.rope_factor);
  }
  KVASIR_CHECK(!spec.vocabulary || spec.vocabulary->pieces.size() == static_cast<std::size_t>(spec.vocab));
  set_vocabulary(writer, spec.vocabulary ? *spec.vocabulary : invented_vocabulary(spec.vocab));

  const auto add = [&](const std::string& name, DType dtype, int rows, int columns, bool vector) {
    const std::vector<float> values = weights(name, rows, columns);
    KVASIR_CHECK(values.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    std::vector<std::uint64_t> dims = {static_cast<std::uint64_t>(columns)};
    if (!vector) dims.push_back(static_cast<std::uint64_t>(rows));
    writer.add_tensor(name, static_cast<std::uint32_t>(dtype), dims, encode(values, dtype));
  };
  const auto matrix = [&](const std::string& name, int rows, int columns) {
    KVASIR_CHECK(columns % static_cast<int>(dtype_traits(type.dtype).block_elements) == 0);
    add(name, type.dtype, rows, columns, false);
  };
  const auto norm = [&](const std::string& name) { add(name, DType::kF32, 1, spec.d, true); };

  matrix("token_embd.weight", spec.vocab, spec.d);
  for (int layer = 0; layer < spec.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm.weight");
    matrix(prefix + "attn_q.weight", spec.heads * spec.head_dim, spec.d);
    matrix(prefix + "attn_k.weight", spec.kv_heads * spec.head_dim, spec.d);
    matrix(prefix + "attn_v.weight", spec.kv_heads * spec.head_dim, spec.d);
    matrix(prefix + "attn_output.weight", spec.d, spec.heads * spec.head_dim);
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "ffn_gate.weight", spec.ffn, spec.d);
    matrix(prefix + "ffn_up.weight", spec.ffn, spec.d);
    matrix(prefix + "ffn_down.weight", spec.d, spec.ffn);
  }
  norm("output_norm.weight");
  if (!spec.tied) matrix("output.weight", spec.vocab, spec.d);
  if (spec.rope_scaling == RopeScaling::kLlama3) {
    writer.add_tensor("rope_freqs.weight", static_cast<std::uint32_t>(DType::kF32),
                      {static_cast<std::uint64_t>(spec.head_dim / 2)},
                      std::as_bytes(std::span<const float>(llama3_frequency_factors(spec))));
  }
  return writer.finish();
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
                             : spec.weight_std > 0 ? double{spec.weight_std}
                                                   : 1 / std::sqrt(static_cast<double>(columns));
    std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    for (float& value : values) value = static_cast<float>(mean + deviation * normal());
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
