#include "backend/page_format.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "backend/page_sizes.h"

namespace kvasir {
namespace {

constexpr std::array kTypes = {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kI16, KvType::kQ8,
                               KvType::kQ4,  KvType::kQ4O, KvType::kQ3,   KvType::kQ2};

// Whether a codec is better with a Walsh-Hadamard rotation (docs/operations/codecs.md has the measurement).
constexpr bool rotates(KvType type) {
  return type == KvType::kQ4 || type == KvType::kQ3 || type == KvType::kQ2;
}

constexpr std::string_view kLongRotation = ",rope=long";

std::string rotation_name(const KvCodec& codec) {
  if (codec.hadamard_keys) return codec.hadamard_values ? "kv" : "k";
  return codec.hadamard_values ? "v" : "off";
}

}  // namespace

std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::kF32: return "f32";
    case KvType::kF16: return "f16";
    case KvType::kBF16: return "bf16";
    case KvType::kI16: return "i16";
    case KvType::kQ8: return "q8";
    case KvType::kQ4: return "q4";
    case KvType::kQ4O: return "q4o";
    case KvType::kQ3: return "q3";
    case KvType::kQ2: return "q2";
  }
  return "?";
}

std::optional<KvType> kv_type_from_name(std::string_view name) {
  for (const KvType type : kTypes)
    if (name == kv_type_name(type)) return type;
  return std::nullopt;
}

std::vector<std::string_view> kv_type_names() {
  std::vector<std::string_view> names;
  for (const KvType type : kTypes) names.push_back(kv_type_name(type));
  return names;
}

std::size_t PageFormat::key_bytes() const {
  return key_side_bytes(*this);
}
std::size_t PageFormat::value_bytes() const {
  return value_side_bytes(*this);
}

namespace {

// `by_default`: sides that are better with a rotation get one where the text names none.
ParsedCodec read_codec(std::string_view text, bool by_default) {
  const auto fail = [&](const std::string& what) {
    return ParsedCodec{{},
                       fmt::format("KV type '{}': {}; write for example q8, or k=q8,v=q4 for keys and values, or "
                                   "q4,recent=64,rotate=k",
                                   text, what)};
  };
  const auto unknown = [](std::string_view type) {
    return ParsedCodec{{},
                       fmt::format("unknown KV type '{}'; the types are: {}", type, fmt::join(kv_type_names(), ", "))};
  };
  std::optional<KvType> key;
  std::optional<KvType> value;
  std::optional<int> recent;
  std::optional<std::string_view> rotate;
  bool long_rotation = false;
  for (std::string_view rest = text; !rest.empty() || rest.data() == text.data();) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    if (comma != std::string_view::npos && rest.empty()) return fail("it ends with a comma");
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const std::string_view what = equals == std::string_view::npos ? name : part.substr(equals + 1);
    const bool both = equals == std::string_view::npos;
    if (both || name == "k" || name == "v") {
      const auto type = kv_type_from_name(what);
      if (!type) return unknown(what);
      if (((both || name == "k") && key) || ((both || name == "v") && value)) return fail("it names a type twice");
      if (both || name == "k") key = type;
      if (both || name == "v") value = type;
    } else if (name == "recent") {
      int number = 0;
      const auto [end, error] = std::from_chars(what.data(), what.data() + what.size(), number);
      if (error != std::errc() || end != what.data() + what.size() || number < 0 || number > kMaxRecent)
        return fail(fmt::format("recent takes 0 to {} tokens", kMaxRecent));
      if (recent) return fail("it says 'recent' twice");
      recent = number;
    } else if (name == "rotate") {
      if (what != "k" && what != "v" && what != "kv" && what != "off") return fail("rotate takes k, v, kv or off");
      if (rotate) return fail("it says 'rotate' twice");
      rotate = what;
    } else if (name == "rope") {
      if (what != "long") return fail("rope takes long");
      if (long_rotation) return fail("it says 'rope' twice");
      long_rotation = true;
    } else {
      return fail(fmt::format("there is no option '{}'", name));
    }
  }
  if (!key || !value) return fail(key ? "it names no type for values" : "it names no type for keys");
  if (*key != *value && (*key == KvType::kI16 || *value == KvType::kI16))
    return fail("i16 is for keys and values alike");
  KvCodec codec{*key, *value, recent.value_or(0), by_default && rotates(*key), by_default && rotates(*value)};
  if (rotate) {
    codec.hadamard_keys = *rotate == "k" || *rotate == "kv";
    codec.hadamard_values = *rotate == "v" || *rotate == "kv";
    if ((codec.hadamard_keys && !is_encoded(*key)) || (codec.hadamard_values && !is_encoded(*value)))
      return fail("rotate is for the codecs that lose bits");
  }
  codec.long_rotation = long_rotation;
  if (codec.recent > 0 && !is_encoded(*key) && !is_encoded(*value))
    return fail("recent is for the codecs that lose bits");
  return {codec, {}};
}

std::string name_without_rotation(const KvCodec& codec) {
  std::string name = codec.key == codec.value
                         ? std::string(kv_type_name(codec.key))
                         : fmt::format("k={},v={}", kv_type_name(codec.key), kv_type_name(codec.value));
  if (codec.recent > 0) name += fmt::format(",recent={}", codec.recent);
  return name;
}

KvCodec codec_of(const PageFormat& format) {
  return {format.key, format.value, 0, format.hadamard_keys, format.hadamard_values};
}

}  // namespace

ParsedCodec parse_codec(std::string_view text) {
  return read_codec(text, true);
}

ParsedCodec parse_stored_codec(std::string_view text) {
  return read_codec(text, false);
}

std::vector<std::string> split_codecs(std::string_view list) {
  std::vector<std::string> codecs;
  bool keys = false, values = false;  // that the newest codec names
  for (bool more = true; more;) {
    const std::size_t comma = list.find(',');
    const std::string_view part = list.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) list.remove_prefix(comma + 1);
    const bool both = part.find('=') == std::string_view::npos;
    const bool key = both || part.starts_with("k=");
    const bool value = both || part.starts_with("v=");
    if (codecs.empty() || (keys && key) || (values && value)) {
      codecs.emplace_back(part);
      keys = values = false;
    } else {
      codecs.back() += ',';
      codecs.back() += part;
    }
    keys = keys || key;
    values = values || value;
  }
  return codecs;
}

std::string codec_name(const KvCodec& codec) {
  std::string name = name_without_rotation(codec);
  if (codec.hadamard_keys != rotates(codec.key) || codec.hadamard_values != rotates(codec.value))
    name += ",rotate=" + rotation_name(codec);
  return codec.long_rotation ? name + std::string(kLongRotation) : name;
}

std::string stored_codec_name(const KvCodec& codec) {
  std::string name = name_without_rotation(codec);
  if (codec.hadamard_keys || codec.hadamard_values) name += ",rotate=" + rotation_name(codec);
  return codec.long_rotation ? name + std::string(kLongRotation) : name;
}

std::string codec_name(const PageFormat& format) {
  return codec_name(codec_of(format));
}
std::string stored_codec_name(const PageFormat& format) {
  return stored_codec_name(codec_of(format));
}

}  // namespace kvasir
