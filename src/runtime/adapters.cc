#include "runtime/adapters.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/read_block.h"

namespace kvasir {
namespace {

constexpr float kMostAdapterScale = 1000;

Status check_scale(float scale) {
  if (std::abs(scale) <= kMostAdapterScale) return {};  // false for NaN
  return invalid_argument("an adapter's scale is {}, outside -{} to {}", scale, kMostAdapterScale, kMostAdapterScale)
      .about({"lora"});
}

Hash128 fingerprint_of_adapter(const gguf::File& file) {
  Hasher hasher;
  hasher.add(file.header_bytes());
  for (const gguf::Tensor& tensor : file.tensors()) hasher.add(tensor.bytes);
  return hasher.digest();
}

// Errors: kDataLoss for a value that is NaN or infinite.
Status check_finite(const gguf::File& file) {
  std::vector<float> block;
  for (const gguf::Tensor& tensor : file.tensors()) {
    const DType type = *dtype_from_gguf(tensor.type);
    const DTypeTraits& traits = dtype_traits(type);
    block.resize(traits.block_elements);
    for (std::size_t at = 0; at < tensor.bytes.size(); at += traits.block_bytes) {
      read_block(type, tensor.bytes.data() + at, block.data());
      if (!std::ranges::all_of(block, [](float value) { return std::isfinite(value); }))
        return data_loss("tensor {} has values that are NaN or infinite; the file is damaged, convert it again",
                         tensor.name.substr(0, 96));
    }
  }
  return {};
}

Status in_file(const Status& status, const std::string& path) {
  const std::string_view message = status.message();
  if (message.find(path) != std::string_view::npos) return Status(status).about({"lora"});
  return Status(status.code(), fmt::format("adapter '{}': {}", path, message)).about({"lora"});
}

Result<std::size_t> number_of(std::span<const Adapter> adapters, const AdapterScale& asked) {
  if (asked.name.empty()) {
    if (asked.id >= 0 && static_cast<std::size_t>(asked.id) < adapters.size())
      return static_cast<std::size_t>(asked.id);
    if (adapters.empty()) return invalid_argument("there is no adapter {}; none is loaded", asked.id).about({"lora"});
    return invalid_argument("there is no adapter {}; their ids are 0 to {}", asked.id, adapters.size() - 1)
        .about({"lora"});
  }
  const auto found = std::ranges::find(adapters, asked.name, &Adapter::name);
  if (found == adapters.end())
    return invalid_argument("there is no adapter '{}'; GET /lora-adapters lists those that are loaded",
                            asked.name.substr(0, 64))
        .about({"lora"});
  if (std::ranges::count(adapters, asked.name, &Adapter::name) > 1)
    return invalid_argument("several adapters have the name '{}'; give the id of one", asked.name.substr(0, 64))
        .about({"lora"});
  return static_cast<std::size_t>(found - adapters.begin());
}

}  // namespace

std::vector<AdapterSummary> summaries_of(std::span<const Adapter> adapters) {
  std::vector<AdapterSummary> summaries;
  for (const Adapter& adapter : adapters)
    summaries.push_back(
        {adapter.name, adapter.path, adapter.task, adapter.prompt_prefix, adapter.scale, adapter.rank, adapter.bytes});
  return summaries;
}

int AdapterFiles::ranks() const {
  int sum = 0;
  for (const AdapterMap& map : maps) sum += map.rank;
  return sum;
}

std::uint64_t AdapterFiles::bytes() const {
  std::uint64_t sum = 0;
  for (const Adapter& adapter : adapters) sum += adapter.bytes;
  return sum;
}

Result<AdapterFiles> open_adapters(std::span<const AdapterFile> files, const ModelConfig& config,
                                   const WeightMap& model, AdapterReading reading) {
  if (files.size() > kMostAdapters)
    return invalid_argument("there are {} adapters, and at most {} can be loaded", files.size(), kMostAdapters)
        .about({"lora"});
  AdapterFiles opened;
  for (const AdapterFile& asked : files) {
    KVASIR_RETURN_IF_ERROR(check_scale(asked.scale));
    Result<gguf::File> file = gguf::File::open(asked.path, {.header_only = reading == AdapterReading::kHeaders});
    if (!file.ok()) return in_file(file.status(), asked.path);
    Result<AdapterMap> map = map_adapter(*file, config, model);
    if (!map.ok()) return in_file(map.status(), asked.path);
    Adapter adapter;
    adapter.name = map->name.empty() ? std::filesystem::path(asked.path).stem().string() : map->name;
    adapter.path = asked.path;
    adapter.task = map->task;
    adapter.prompt_prefix = map->prompt_prefix;
    adapter.scale = asked.scale;
    adapter.rank = map->rank;
    adapter.bytes = cpu_adapter_bytes(map->parts);
    if (reading == AdapterReading::kData) {
      if (const Status finite = check_finite(*file); !finite.ok()) return in_file(finite, asked.path);
      adapter.fingerprint = fingerprint_of_adapter(*file);
    }
    opened.files.push_back(std::move(*file));
    opened.maps.push_back(std::move(*map));
    opened.adapters.push_back(std::move(adapter));
  }
  return opened;
}

Result<std::vector<AppliedAdapter>> apply_adapters(std::span<const Adapter> adapters,
                                                   const std::optional<std::vector<AdapterScale>>& asked) {
  std::vector<std::optional<float>> scales(adapters.size());
  if (!asked)
    for (std::size_t i = 0; i < adapters.size(); ++i) scales[i] = adapters[i].scale;
  for (const AdapterScale& each : asked.value_or(std::vector<AdapterScale>())) {
    KVASIR_ASSIGN_OR_RETURN(const std::size_t number, number_of(adapters, each));
    std::optional<float>& scale = scales[number];
    if (scale) return invalid_argument("adapter {} is named twice; name it once", number).about({"lora"});
    KVASIR_RETURN_IF_ERROR(check_scale(each.scale));
    scale = each.scale;
  }
  std::vector<AppliedAdapter> applied;
  for (std::size_t i = 0; i < scales.size(); ++i)
    if (scales[i].value_or(0) != 0) applied.push_back({static_cast<int>(i), *scales[i]});
  return applied;
}

std::vector<AppliedAdapter> default_adapters(std::span<const Adapter> adapters) {
  return *apply_adapters(adapters, {});
}

std::string adapter_key(std::span<const Adapter> adapters, std::span<const AppliedAdapter> applied) {
  std::string key;
  for (const AppliedAdapter& each : applied)
    key += fmt::format("{}{}*{:08x}", key.empty() ? fmt::format("lora-{}:", kAdapterVersion) : "+",
                       adapters[static_cast<std::size_t>(each.number)].fingerprint.hex(),
                       std::bit_cast<std::uint32_t>(each.scale));
  return key;
}

}  // namespace kvasir
