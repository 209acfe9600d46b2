#include "backend/naive_backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "backend/attention_mass.h"
#include "backend/page_access.h"
#include "base/check.h"
#include "tensor/dequantize.h"

namespace kvasir::test {
namespace {

void rotate_pair(double& a, double& b, double angle) {
  const double x = a, y = b;
  a = x * std::cos(angle) - y * std::sin(angle);
  b = x * std::sin(angle) + y * std::cos(angle);
}

std::vector<double> row_values(DType type, const std::byte* bytes, int count) {
  std::vector<double> values;
  const DTypeTraits& traits = dtype_traits(type);
  std::vector<float> block(traits.block_elements);
  for (int i = 0; i < count; i += static_cast<int>(traits.block_elements), bytes += traits.block_bytes) {
    if (is_quantized(type)) {
      dequantize_block(type, bytes, block.data());
    } else {
      block[0] = read_element(type, bytes);
    }
    values.insert(values.end(), block.begin(), block.end());
  }
  return values;
}

double rounded(KvType type, double value) {
  const auto narrow = static_cast<float>(value);
  if (type == KvType::kF16) return static_cast<double>(f16_to_f32(f32_to_f16(narrow)));
  if (type == KvType::kBF16) return static_cast<double>(bf16_to_f32(f32_to_bf16(narrow)));
  return static_cast<double>(narrow);
}

// In blocks of the largest power of two that divides the size.
void walsh_hadamard(std::span<double> x) {
  const std::size_t block = x.size() & (~x.size() + 1);
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < block; ++j)
      out[i] += x[i / block * block + j] * (std::popcount(i % block & j) % 2 == 0 ? 1 : -1) /
                std::sqrt(static_cast<double>(block));
  std::ranges::copy(out, x.begin());
}

// A token's key or value in i16.
std::vector<double> as_integers(std::span<const double> x) {
  double most = 0;
  for (const double value : x) most = std::max(most, std::abs(value));
  std::vector<double> out(x.begin(), x.end());
  for (double& value : out) value = most > 0 ? std::nearbyint(value * (4095 / most)) * (most / 4095) : 0;
  return out;
}

// An element of a page: the group that it is encoded with, its place among all, what it is and where it goes.
struct Element {
  int group = 0;
  int place = 0;
  double value = 0;
  double* to = nullptr;
};

// Quantises the elements of one side of a page of `count` elements. Dead slots have none.
void quantise(KvType type, int count, std::span<const Element> elements) {
  if (!is_encoded(type)) {
    for (const Element& element : elements) *element.to = element.value;
    return;
  }
  std::map<int, std::vector<const Element*>> groups;
  std::vector<const Element*> kept;  // in 16 bits
  for (const Element& element : elements) groups[element.group].push_back(&element);
  const auto extremes = [](const std::vector<const Element*>& group) {
    const auto [low, high] =
        std::ranges::minmax_element(group, {}, [](const Element* element) { return element->value; });
    return std::pair((*low)->value, (*high)->value);
  };
  if (type == KvType::kQ4O) {
    std::vector<std::pair<double, const Element*>> far;
    for (const auto& [number, group] : groups) {
      const auto [low, high] = extremes(group);
      for (const Element* element : group) far.emplace_back(std::abs(element->value - (low + high) / 2), element);
    }
    std::ranges::stable_sort(far, [](const auto& a, const auto& b) {
      return a.first > b.first || (a.first == b.first && a.second->place < b.second->place);
    });
    far.resize(std::min(far.size(), static_cast<std::size_t>((count + 99) / 100)));
    for (const auto& [distance, element] : far) {
      *element->to = element->value;
      std::erase(groups[element->group], element);
    }
  }
  for (const auto& [number, group] : groups) {
    if (group.empty()) continue;
    if (type == KvType::kQ8) {
      double most = 0;
      for (const Element* element : group) most = std::max(most, std::abs(element->value));
      const double scale = rounded(KvType::kF16, std::max(most / 127, 1e-8));
      for (const Element* element : group)
        *element->to = scale > 0 ? std::clamp(std::nearbyint(element->value / scale), -127.0, 127.0) * scale : 0;
      continue;
    }
    const int top = type == KvType::kQ2 ? 3 : type == KvType::kQ3 ? 7 : 15;
    const auto [low, high] = extremes(group);
    const double least = rounded(KvType::kF16, low);
    const double scale = rounded(KvType::kF16, (high - least) / top);
    for (const Element* element : group) {
      const double code =
          scale > 0 ? std::clamp(std::nearbyint((element->value - least) / scale), 0.0, static_cast<double>(top)) : 0;
      *element->to = least + code * scale;
    }
  }
}

// As segment_scores.h says.
void score_segments(const float* bounds, const float* queries, int group, int head_dim, float* best) {
  for (int i = 0; i < kScoredSegments; ++i) {
    best[i] = -std::numeric_limits<float>::infinity();
    for (int g = 0; g < group; ++g) {
      float sum = 0;
      for (int d = 0; d < head_dim; ++d) {
        const float q = queries[g * head_dim + d];
        sum += q * bounds[(2 * d + (q >= 0 ? 1 : 0)) * kScoredSegments + i];
      }
      if (sum > best[i] || std::isnan(sum)) best[i] = sum;
    }
  }
}

}  // namespace

// -- Pages --

NaivePage NaivePageStore::zeros(const PageFormat& format) {
  const std::vector<double> zero(static_cast<std::size_t>(format.head_dim));
  NaivePage page;
  page.keys.assign(static_cast<std::size_t>(format.slots), zero);
  page.values = page.keys;
  return page;
}

const NaivePage& NaivePageStore::page(PageId id) const {
  const Class& of = classes_.at(page_class(id));
  return of.pages[page_number(id)] != nullptr ? *of.pages[page_number(id)] : of.zeros;
}

NaivePage& NaivePageStore::writable(PageId id) {
  Class& of = classes_.at(page_class(id));
  if (of.pages[page_number(id)] == nullptr) of.pages[page_number(id)] = std::make_unique<NaivePage>(of.zeros);
  return *of.pages[page_number(id)];
}

std::vector<double> NaivePageStore::rotated(const PageFormat& format, int rotation, std::span<const double> key,
                                            std::int64_t shift) const {
  std::vector<double> out(key.begin(), key.end());
  if (shift == 0) return out;
  if (format.hadamard_keys) walsh_hadamard(out);
  const std::vector<double>& frequencies = rotations_[static_cast<std::size_t>(rotation)].inverse_frequencies;
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    rotate_pair(out[2 * i], out[2 * i + 1], static_cast<double>(shift) * frequencies[i]);
  if (format.hadamard_keys) walsh_hadamard(out);
  return out;
}

void NaivePageStore::set(const PageFormat& format, NaivePage& page, int slot, std::span<const double> key,
                         std::span<const double> value) {
  const auto s = static_cast<std::size_t>(slot);
  const PageFormat open = format.open();
  if (open.key == KvType::kI16) {
    page.keys[s] = as_integers(key);
    page.values[s] = format.latent ? page.keys[s] : as_integers(value);
    return;
  }
  for (std::size_t d = 0; d < key.size(); ++d) {
    page.keys[s][d] = rounded(open.key, key[d]);
    page.values[s][d] = format.latent ? page.keys[s][d] : rounded(open.value, value[d]);
  }
}

void NaivePageStore::encode(const NaivePage& open, SlotMask live, PageId to) {
  NaivePage& page = writable(to);
  const PageFormat& of = format(to);
  page = zeros(of);
  std::vector<Element> keys, values;
  for (std::size_t s = 0; s < static_cast<std::size_t>(of.slots); ++s)
    for (std::size_t d = 0; d < static_cast<std::size_t>(of.head_dim); ++d) {
      if ((live >> s & 1) == 0) continue;
      // A group of keys is one channel of 32 tokens, but under q8; of values 32 channels of one token.
      const auto by_token = static_cast<int>(s * 64 + d / 32);
      const auto by_channel = static_cast<int>(d * 64 + s / 32);
      keys.push_back({of.key == KvType::kQ8 ? by_token : by_channel,
                      static_cast<int>(d) * of.slots + static_cast<int>(s), open.keys[s][d], &page.keys[s][d]});
      values.push_back(
          {by_token, static_cast<int>(s) * of.head_dim + static_cast<int>(d), open.values[s][d], &page.values[s][d]});
    }
  quantise(of.key, of.slots * of.head_dim, keys);
  if (of.latent) {
    page.values = page.keys;
  } else {
    quantise(of.value, of.slots * of.head_dim, values);
  }
}

NaivePage NaivePageStore::opened(PageId id) const {
  NaivePage open = page(id);
  if (!format(id).encoded()) return open;
  for (std::size_t s = 0; s < open.keys.size(); ++s)
    set(format(id), open, static_cast<int>(s), std::vector(open.keys[s]), std::vector(open.values[s]));
  return open;
}

Status NaivePageStore::reserve(PageClass of, const PageFormat& format, std::uint64_t count) {
  KVASIR_CHECK(!classes_.contains(of));
  Class& made = classes_[of];
  made.format = format;
  made.zeros = zeros(format);
  made.pages.resize(count);
  return {};
}

void NaivePageStore::give_back(PageClass of, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t page = first; page < first + count; ++page) classes_.at(of).pages[page].reset();
}

void NaivePageStore::clear(std::span<const PageId> pages) {
  for (const PageId page : pages) classes_.at(page_class(page)).pages[page_number(page)].reset();
}

void NaivePageStore::copy(std::span<const PageId> from, std::span<const PageId> to) {
  for (std::size_t i = 0; i < from.size(); ++i) writable(to[i]) = page(from[i]);
}

void NaivePageStore::move(ColumnLanes lanes, std::span<const SlotMove> moves) {
  for (const SlotMove& move : moves)
    for (int lane = 0; lane < lanes.count; ++lane) {
      const NaivePage from = opened(move.from[lane]);
      int to = move.to_slot;
      for (SlotMask left = move.slots; left != 0; left &= left - 1, ++to) {
        const auto slot = static_cast<std::size_t>(std::countr_zero(left));
        set(move.to[lane], to,
            rotated(format(move.to[lane]), lanes.rotation(lane, format(move.to[lane])), from.keys[slot], move.shift),
            from.values[slot]);
      }
    }
}

void NaivePageStore::repack(ColumnLanes lanes, std::span<const SlotMove> moves) {
  for (int lane = 0; lane < lanes.count; ++lane) {
    std::map<PageId, NaivePage> before, after;
    std::map<PageId, SlotMask> live;
    for (const SlotMove& move : moves) before.try_emplace(move.from[lane], opened(move.from[lane]));
    for (const SlotMove& move : moves) {
      const NaivePage& from = before.at(move.from[lane]);
      const PageId to = move.to[lane];
      int slot = move.to_slot;
      for (SlotMask left = move.slots; left != 0; left &= left - 1, ++slot) {
        const auto s = static_cast<std::size_t>(std::countr_zero(left));
        set(format(to), after.try_emplace(to, zeros(format(to))).first->second, slot,
            rotated(format(to), lanes.rotation(lane, format(to)), from.keys[s], move.shift), from.values[s]);
        live[to] |= SlotMask{1} << slot;
      }
    }
    for (const auto& [to, page] : after) {
      if (format(to).encoded()) {
        encode(page, live[to], to);
      } else {
        writable(to) = page;
      }
    }
  }
}

void NaivePageStore::seal(int lanes, std::span<const PageSeal> seals) {
  for (const PageSeal& seal : seals)
    for (int lane = 0; lane < lanes; ++lane) encode(page(seal.from[lane]), seal.live, seal.to[lane]);
}

void NaivePageStore::rotate(ColumnLanes lanes, std::span<const SlotRotation> rotations, std::int64_t shift) {
  for (const SlotRotation& rotation : rotations)
    for (int lane = 0; lane < lanes.count; ++lane) {
      const PageId id = rotation.pages[lane];
      if (rotations_[static_cast<std::size_t>(lanes.rotation(lane, format(id)))].dims == 0) continue;
      NaivePage own = opened(id);
      for (SlotMask left = rotation.slots; left != 0; left &= left - 1) {
        const auto s = static_cast<std::size_t>(std::countr_zero(left));
        set(format(id), own, static_cast<int>(s),
            rotated(format(id), lanes.rotation(lane, format(id)), own.keys[s], shift), std::vector(own.values[s]));
      }
      if (format(id).encoded()) {
        encode(own, rotation.live, id);
      } else {
        writable(id) = own;
      }
    }
}

void NaivePageStore::read_keys(PageId page, float* keys) const {
  for (const std::vector<double>& key : this->page(page).keys)
    for (const double x : key) *keys++ = static_cast<float>(x);
}

void NaivePageStore::read_values(PageId page, float* values) const {
  for (const std::vector<double>& value : this->page(page).values)
    for (const double x : value) *values++ = static_cast<float>(x);
}

void NaivePageStore::read(PageId id, std::span<std::byte> out) const {
  KVASIR_CHECK(out.size() == format(id).bytes() && has_floats(format(id).key));
  std::byte* to = out.data();
  const auto put = [&](KvType type, double value) {
    const auto narrow = static_cast<float>(value);
    const std::uint16_t half = type == KvType::kF16 ? f32_to_f16(narrow) : f32_to_bf16(narrow);
    if (type == KvType::kF32) {
      std::memcpy(to, &narrow, sizeof narrow);
    } else {
      std::memcpy(to, &half, sizeof half);
    }
    to += kv_type_bytes(type);
  };
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(format(id).slots); ++slot) {
    for (const double key : page(id).keys[slot]) put(format(id).key, key);
    if (!format(id).latent)
      for (const double value : page(id).values[slot]) put(format(id).value, value);
  }
}

void NaivePageStore::write(PageId id, std::span<const std::byte> in) {
  KVASIR_CHECK(in.size() == format(id).bytes() && has_floats(format(id).key));
  const std::byte* from = in.data();
  const auto take = [&](KvType codec, std::vector<double>& values) {
    const DType type = codec == KvType::kF32 ? DType::kF32 : codec == KvType::kF16 ? DType::kF16 : DType::kBF16;
    for (double& value : values) {
      value = static_cast<double>(read_element(type, from));
      from += kv_type_bytes(codec);
    }
  };
  NaivePage& page = writable(id);
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(format(id).slots); ++slot) {
    take(format(id).key, page.keys[slot]);
    if (format(id).latent) {
      page.values[slot] = page.keys[slot];
    } else {
      take(format(id).value, page.values[slot]);
    }
  }
}

// -- Weights --

std::uint64_t NaiveBackend::weight_bytes(std::span<const WeightPart> parts) const {
  std::uint64_t values = 0;
  for (const WeightPart& part : parts)
    values += static_cast<std::uint64_t>(part.outputs) * static_cast<std::uint64_t>(part.inputs);
  return values * sizeof(double);
}

Status NaiveBackend::load(std::span<const WeightPart> parts, const LoadOptions& options) {
  KVASIR_CHECK(weights_.empty());
  for (const WeightPart& part : parts) {
    weights_.push_back(read_weight(part));
    if (options.loaded) options.loaded(weight_bytes({&part, 1}));
  }
  return {};
}

NaiveBackend::Weight NaiveBackend::read_weight(const WeightPart& part) {
  const DTypeTraits& traits = dtype_traits(part.type);
  const std::size_t row_bytes = static_cast<std::size_t>(part.inputs) / traits.block_elements * traits.block_bytes;
  Weight weight;
  for (int output = 0; output < part.outputs; ++output)
    weight.rows.push_back(row_values(
        part.type, part.bytes.data() + static_cast<std::size_t>(part.order.row(output)) * row_bytes, part.inputs));
  return weight;
}

std::uint64_t NaiveBackend::adapter_bytes(std::span<const LowRankPart> parts) const {
  std::uint64_t bytes = 0;
  for (const LowRankPart& part : parts) bytes += weight_bytes({&part.a, 1}) + weight_bytes({&part.b, 1});
  return bytes;
}

Status NaiveBackend::load_adapter(std::span<const LowRankPart> parts) {
  auto& adapter = adapters_.emplace_back();
  for (const LowRankPart& part : parts)
    adapter[part.matrix] = {static_cast<double>(part.factor), read_weight(part.a), read_weight(part.b)};
  return {};
}

std::unique_ptr<PageStore> NaiveBackend::new_page_store() {
  return std::make_unique<NaivePageStore>(shape_.rotations);
}

const NaiveBackend::Weight* NaiveBackend::weight(WeightId id) const {
  return id == kNoWeight ? nullptr : &weights_[static_cast<std::size_t>(id)];
}

// -- A pass --

void NaiveBackend::begin(const Pass& pass) {
  pass_ = pass;
  adapters_of_row_.clear();
  for (const BatchSequence& sequence : pass.batch->sequences)
    adapters_of_row_.insert(adapters_of_row_.end(), static_cast<std::size_t>(sequence.rows), sequence.adapters);
  store_ = static_cast<NaivePageStore*>(pass.store);
}

void NaiveBackend::embed(WeightId embedding, float scale, Activation to) {
  rows(to).clear();
  for (const std::int32_t token : pass_.batch->tokens) {
    Row& row = rows(to).emplace_back(weight(embedding)->rows[static_cast<std::size_t>(token)]);
    for (double& x : row) x *= static_cast<double>(scale);
  }
}

void NaiveBackend::add_positions(WeightId positions) {
  const Rows& learned = weight(positions)->rows;
  for (const BatchSequence& sequence : pass_.batch->sequences)
    for (int r = 0; r < sequence.rows; ++r) {
      const Position place = pass_.batch->tables[sequence.first_table].key_positions[static_cast<std::size_t>(r)];
      const Row& added = learned[std::min(static_cast<std::size_t>(place), learned.size() - 1)];
      Row& row = rows(Activation::kResidual)[static_cast<std::size_t>(sequence.first_row + r)];
      for (std::size_t i = 0; i < row.size(); ++i) row[i] += added[i];
    }
}

NaiveBackend::Row NaiveBackend::normalized(const Row& x, const OutputWeights& by) const {
  const auto n = static_cast<double>(x.size());
  double mean = 0;
  if (by.layer_norm)
    for (const double value : x) mean += value / n;
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean) / n;
  Row out;
  for (std::size_t i = 0; i < x.size(); ++i)
    out.push_back((x[i] - mean) / std::sqrt(squares + static_cast<double>(by.eps)) *
                      (by.norm != kNoWeight ? weight(by.norm)->at(i) : 1) +
                  (by.norm_bias != kNoWeight ? weight(by.norm_bias)->at(i) : 0));
  return out;
}

void NaiveBackend::rms_norm(Activation from, WeightId by, float eps, Activation to) {
  Rows out;
  for (const Row& row : rows(from)) out.push_back(normalized(row, {.norm = by, .eps = eps}));
  rows(to) = std::move(out);
}

void NaiveBackend::layer_norm(Activation from, WeightId by, WeightId bias, float eps, Activation to) {
  Rows out;
  for (const Row& row : rows(from))
    out.push_back(normalized(row, {.norm = by, .norm_bias = bias, .layer_norm = true, .eps = eps}));
  rows(to) = std::move(out);
}

void NaiveBackend::rms_norm_heads(Activation x, WeightId by, int heads, float eps) {
  for (Row& row : rows(x))
    for (int head = 0; head < heads; ++head) {
      const auto dim = std::ssize(row) / heads;
      const auto first = row.begin() + head * dim;
      std::ranges::copy(normalized(Row(first, first + dim), {.norm = by, .eps = eps}), first);
    }
}

NaiveBackend::Row NaiveBackend::times(const Weight& matrix, const Row& x) {
  Row out;
  for (const Row& of_output : matrix.rows) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += of_output[i] * x[i];
    out.push_back(sum);
  }
  return out;
}

NaiveBackend::Row NaiveBackend::times(WeightId matrix, WeightId bias, const Row& x) const {
  Row out = times(*weight(matrix), x);
  for (std::size_t i = 0; i < out.size() && bias != kNoWeight; ++i) out[i] += weight(bias)->at(i);
  return out;
}

void NaiveBackend::multiply(Activation from, std::span<const Product> products) {
  const Rows in = rows(from);
  for (const Product& product : products) {
    rows(product.to).clear();
    for (std::size_t r = 0; r < in.size(); ++r) {
      Row out = times(product.matrix, product.bias, in[r]);
      for (const AppliedAdapter& applied : adapters_of_row_[r]) {
        const auto& adapter = adapters_[static_cast<std::size_t>(applied.number)];
        const auto part = adapter.find(product.matrix);
        if (part == adapter.end()) continue;
        const Row added = times(part->second.b, times(part->second.a, in[r]));
        for (std::size_t i = 0; i < out.size(); ++i)
          out[i] += part->second.factor * static_cast<double>(applied.scale) * added[i];
      }
      rows(product.to).push_back(std::move(out));
    }
  }
}

namespace {

double activated(ActivationFunction function, double x) {
  switch (function) {
    case ActivationFunction::kSigmoid: return 1 / (1 + std::exp(-x));
    case ActivationFunction::kClampedSwiglu: break;
    case ActivationFunction::kSilu: return x / (1 + std::exp(-x));
    case ActivationFunction::kGelu: return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
    case ActivationFunction::kGeluTanh:
      return x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))) / 2;
  }
  KVASIR_CHECK(false);
}

double gated(ActivationFunction function, double gate, double up) {
  if (function != ActivationFunction::kClampedSwiglu) return activated(function, gate) * up;
  gate = std::min(gate, 7.0);
  return gate / (1 + std::exp(-1.702 * gate)) * (1 + std::clamp(up, -7.0, 7.0));
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

void NaiveBackend::activate(ActivationFunction function, Activation gate, Activation up) {
  for (std::size_t r = 0; r < rows(up).size(); ++r)
    for (std::size_t i = 0; i < rows(up)[r].size(); ++i)
      rows(up)[r][i] = gated(function, rows(gate)[r][i], rows(up)[r][i]);
}

void NaiveBackend::activate(ActivationFunction function, Activation x) {
  for (Row& row : rows(x))
    for (double& value : row) value = activated(function, value);
}

void NaiveBackend::add(Activation to, Activation x) {
  for (std::size_t r = 0; r < rows(to).size(); ++r)
    for (std::size_t i = 0; i < rows(to)[r].size(); ++i) rows(to)[r][i] += rows(x)[r][i];
}

void NaiveBackend::copy(Activation from, Columns columns, Activation to) {
  Rows copied;
  for (const Row& row : rows(from)) {
    const std::size_t count = columns.count > 0 ? static_cast<std::size_t>(columns.count) : row.size();
    const auto first = row.begin() + columns.first;
    copied.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
  }
  rows(to) = copied;
}

void NaiveBackend::scale(Activation x, float factor, WeightId by) {
  const double all = static_cast<double>(factor) * (by != kNoWeight ? weight(by)->at(0) : 1);
  for (Row& row : rows(x))
    for (double& value : row) value *= all;
}

void NaiveBackend::scale_rows(Activation x, Activation gate, WeightId by) {
  for (std::size_t r = 0; r < rows(x).size(); ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < rows(gate)[r].size(); ++i) sum += rows(gate)[r][i] * weight(by)->at(i);
    for (double& value : rows(x)[r]) value *= sigmoid(sum);
  }
}

void NaiveBackend::multiply_heads(Activation from, const HeadProduct& heads, Activation to) {
  Rows out;
  for (const Row& row : rows(from)) {
    Row& products = out.emplace_back();
    const std::size_t part = row.size() / static_cast<std::size_t>(heads.heads);
    for (int head = 0; head < heads.heads; ++head) {
      const auto begin = row.begin() + static_cast<std::ptrdiff_t>(part) * head;
      const Row own(begin + heads.skipped, begin + static_cast<std::ptrdiff_t>(part));
      const auto id = static_cast<std::uint32_t>(heads.first) + static_cast<std::uint32_t>(head);
      std::ranges::copy(times(static_cast<WeightId>(id), kNoWeight, own), std::back_inserter(products));
    }
  }
  rows(to) = out;
}

void NaiveBackend::product_norms(WeightId matrix, const HeadColumns& columns, std::span<const float> vectors,
                                 std::span<double> norms) {
  std::ranges::fill(norms, 0.0);
  for (std::size_t i = 0; i < norms.size(); ++i)
    for (int head = 0; head < columns.heads; ++head)
      for (const Row& weights : weight(matrix)->rows) {
        double sum = 0;
        for (int c = 0; c < columns.count; ++c)
          sum += weights[static_cast<std::size_t>(columns.first + head * columns.count + c)] *
                 double{vectors[i * static_cast<std::size_t>(columns.count) + static_cast<std::size_t>(c)]};
        norms[i] += std::abs(sum) / columns.heads;
      }
}

void NaiveBackend::join_heads(Activation a, Activation b, int heads, Activation to) {
  Rows out;
  for (std::size_t r = 0; r < rows(a).size(); ++r) {
    Row& joined = out.emplace_back();
    for (int head = 0; head < heads; ++head)
      for (const Activation part : {a, b}) {
        const Row& row = rows(part)[r];
        const auto size = static_cast<std::ptrdiff_t>(row.size()) / heads;
        std::copy_n(row.begin() + size * head, size, std::back_inserter(joined));
      }
  }
  rows(to) = out;
}

void NaiveBackend::run_experts(const Experts& experts) {
  const auto slice = [](const Experts::Matrix& matrix, int expert, const auto& times) {
    const auto number = static_cast<std::uint32_t>(expert);
    const auto of = [&](WeightId first) {
      return first == kNoWeight ? first : static_cast<WeightId>(static_cast<std::uint32_t>(first) + number);
    };
    return times(of(matrix.first), of(matrix.bias));
  };
  Rows& out = rows(Activation::kProjected);
  if (!experts.adds) out.assign(rows(Activation::kNormalized).size(), Row(static_cast<std::size_t>(shape_.width)));
  for (std::size_t r = 0; r < out.size(); ++r) {
    const Row& x = rows(Activation::kNormalized)[r];
    const Row& router = rows(Activation::kRouter)[r];
    Row scores = router;
    double sum = 0;
    for (const double value : router) sum += std::exp(value);
    for (double& value : scores) {
      if (experts.choice.scores == ExpertScores::kSoftmax) value = std::exp(value) / sum;
      if (experts.choice.scores == ExpertScores::kSigmoid) value = sigmoid(value);
      if (experts.choice.scores == ExpertScores::kSoftmaxOfChosen) value = std::exp(value);
    }
    std::vector<std::pair<double, int>> order;
    for (int e = 0; e < experts.count; ++e) {
      const auto at = static_cast<std::size_t>(e);
      order.emplace_back(
          -scores[at] - (experts.selection_bias != kNoWeight ? weight(experts.selection_bias)->at(at) : 0), e);
    }
    std::ranges::sort(order);
    order.resize(static_cast<std::size_t>(experts.choice.used));
    double chosen = 0;
    for (const auto& [rank, e] : order) chosen += scores[static_cast<std::size_t>(e)];
    const bool divides = experts.choice.normalized || experts.choice.scores == ExpertScores::kSoftmaxOfChosen;
    for (const auto& [rank, e] : order) {
      const auto product = [&](const Row& from) {
        return [&](WeightId matrix, WeightId bias) { return times(matrix, bias, from); };
      };
      const Row gate = slice(experts.gate, e, product(x));
      Row hidden = slice(experts.up, e, product(x));
      for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = gated(experts.function, gate[i], hidden[i]);
      const Row down = slice(experts.down, e, product(hidden));
      const auto at = static_cast<std::size_t>(e);
      const double by = scores[at] / (divides ? chosen : 1) * static_cast<double>(experts.choice.scale) *
                        (experts.scales != kNoWeight ? weight(experts.scales)->at(at) : 1);
      for (std::size_t i = 0; i < down.size(); ++i) out[r][i] += by * down[i];
    }
  }
}

// The mixer is the model's, so its own sums are in floats.
void NaiveBackend::mix(int layer, std::span<const WeightId> parameters) {
  const StateMixer& mixer = *shape_.layers[static_cast<std::size_t>(layer)].mixer;
  const auto width = static_cast<std::size_t>(mixer.output());
  std::vector<std::vector<float>> vectors;
  std::vector<const float*> pointers;
  for (const WeightId id : parameters) {
    std::vector<float>& values = vectors.emplace_back();
    for (const Row& row : weight(id)->rows) values.push_back(static_cast<float>(row[0]));
    pointers.push_back(values.data());
  }
  rows(Activation::kAttention).assign(pass_.batch->tokens.size(), Row(width));
  for (const BatchSequence& sequence : pass_.batch->sequences)
    for (int row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
      std::vector<std::vector<float>> inputs;
      StateMixer::Rows one{.count = 1, .parameters = pointers};
      for (std::size_t i = 0; i < mixer.inputs().size(); ++i) {
        const Row& input = rows(kMixerInputs[i])[static_cast<std::size_t>(row)];
        one.inputs[i] = inputs.emplace_back(input.begin(), input.end()).data();
      }
      std::vector<float> output(width);
      one.output = output.data();
      std::byte* const state = sequence.states + sequence.layers[static_cast<std::size_t>(layer)].state;
      for (int step = 0; step < mixer.steps(); ++step)
        for (int part = 0; part < mixer.parts(step); ++part) mixer.advance(step, part, one, state);
      rows(Activation::kAttention)[static_cast<std::size_t>(row)].assign(output.begin(), output.end());
    }
}

Backend::Outputs NaiveBackend::outputs(const OutputWeights& weights) {
  Rows wanted;
  hidden_.clear();
  adapters_of_row_.clear();
  const auto state = [&](const BatchSequence& sequence, int row) {
    return normalized(rows(Activation::kResidual)[static_cast<std::size_t>(sequence.first_row + row)], weights);
  };
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    for (int row = sequence.rows - sequence.logits; row < sequence.rows; ++row) {
      wanted.push_back(state(sequence, row));
      adapters_of_row_.push_back(sequence.adapters);
    }
    for (int row = sequence.rows - sequence.hidden; row < sequence.rows; ++row)
      for (const double value : state(sequence, row)) hidden_.push_back(static_cast<float>(value));
  }
  rows(Activation::kNormalized) = std::move(wanted);
  const Product product{weights.matrix, kNoWeight, Activation::kProjected};
  multiply(Activation::kNormalized, {&product, 1});
  logits_.clear();
  for (const Row& row : rows(Activation::kProjected))
    for (double logit : row) {
      logit *= static_cast<double>(weights.scale);
      const auto cap = static_cast<double>(weights.softcap);
      logits_.push_back(static_cast<float>(cap != 0 ? cap * std::tanh(logit / cap) : logit));
    }
  return {logits_, hidden_};
}

std::uint64_t NaiveBackend::workspace_bytes(const WorkspaceRequest& request) const {
  int widest = 0;
  for (const LayerShape& layer : shape_.layers)
    widest = std::max(widest, 2 * (layer.heads + layer.kv_heads) * layer.head_dim + 2 * layer.hidden);
  const int width = 3 * shape_.width + widest;
  return sizeof(double) * (static_cast<std::uint64_t>(request.rows) * static_cast<std::uint64_t>(width) +
                           static_cast<std::uint64_t>(request.logits) * static_cast<std::uint64_t>(shape_.vocabulary));
}

// -- Attention --

NaiveBackend::Row NaiveBackend::rotated_query(std::span<const double> head, const BatchTable& table, std::size_t frame,
                                              int row) const {
  Row out = rotated(head, table.query_position(frame, row));
  for (std::size_t d = 0; d < out.size(); ++d) {
    out[d] *= temperature(table.key_positions[static_cast<std::size_t>(row)]);
    for (const WeightId factors : attention_.query_scales)
      if (factors != kNoWeight) out[d] *= weight(factors)->at(d);
  }
  return out;
}

NaiveBackend::Row NaiveBackend::rotated(std::span<const double> head, Position position) const {
  Row out(head.begin(), head.end());
  const Rotation& rotation = shape_.rotations[static_cast<std::size_t>(layer_shape().rotation + rotation_shift_)];
  for (std::size_t i = 0; i < rotation.inverse_frequencies.size(); ++i) {
    rotate_pair(out[2 * i], out[2 * i + 1], static_cast<double>(position) * rotation.inverse_frequencies[i]);
    out[2 * i] *= rotation.magnitude;
    out[2 * i + 1] *= rotation.magnitude;
  }
  return out;
}

double NaiveBackend::scale() const {
  return layer_shape().scale != 0 ? static_cast<double>(layer_shape().scale)
                                  : 1 / std::sqrt(static_cast<double>(layer_shape().head_dim));
}

double NaiveBackend::temperature(Position position) const {
  const LayerShape& shape = layer_shape();
  if (shape.temperature == 0) return 1;
  const double spans = std::floor(static_cast<double>(position) / static_cast<double>(shape.temperature_span));
  return 1 + static_cast<double>(shape.temperature) * std::log(1 + spans);
}

double NaiveBackend::capped(double score) const {
  const auto cap = static_cast<double>(layer_shape().softcap);
  return cap != 0 ? cap * std::tanh(score / cap) : score;
}

NaiveBackend::Lane NaiveBackend::lane_of(const BatchSequence& sequence, int head) const {
  const LayerLanes& lanes = lanes_of(sequence);
  Lane lane;
  lane.table =
      &pass_.batch
           ->tables[sequence.first_table + static_cast<std::size_t>(lanes.first_table + (lanes.tables > 1 ? head : 0))];
  lane.number = lanes.first_lane + (lanes.tables > 1 ? 0 : head);
  KVASIR_CHECK(lane.number < lane.table->lanes && lane.table->rows == sequence.rows);
  return lane;
}

void NaiveBackend::store(int layer) {
  layer_ = layer;
  staged_.clear();
  const auto dim = static_cast<std::size_t>(layer_shape().head_dim);
  for (const BatchSequence& sequence : pass_.batch->sequences)
    for (int row = 0; row < sequence.rows; ++row)
      for (int head = 0; head < layer_shape().kv_heads; ++head) {
        rotation_shift_ = sequence.rotation_shift;
        const Lane lane = lane_of(sequence, head);
        const auto r = static_cast<std::size_t>(row);
        const auto in_batch = static_cast<std::size_t>(sequence.first_row + row);
        const WriteSlot place = lane.table->slots[r];
        const std::size_t first = static_cast<std::size_t>(head) * dim;
        Row key =
            rotated(std::span(rows(Activation::kKey)[in_batch]).subspan(first, dim), lane.table->key_positions[r]);
        const Activation values = lane.table->format.latent ? Activation::kKey : Activation::kValue;
        const auto in = std::span(rows(values)[in_batch]).subspan(first, dim);
        const PageFormat& format = lane.table->format;
        if (format.hadamard_keys) walsh_hadamard(key);
        Row value = format.latent ? key : Row(in.begin(), in.end());
        if (format.hadamard_values && !format.latent) walsh_hadamard(value);
        const auto seal = std::ranges::find(lane.table->seals, place.column, &SealedColumn::column);
        if (seal == lane.table->seals.end()) {
          store_->set(page_of(lane, place.column), place.slot, key, value);
        } else {
          NaivePageStore::set(format, staged(lane, *seal), place.slot, key, value);
        }
      }
  for (const BatchSequence& sequence : pass_.batch->sequences)
    for (int head = 0; head < layer_shape().kv_heads; ++head) {
      const Lane lane = lane_of(sequence, head);
      for (const SealedColumn& seal : lane.table->seals)
        store_->encode(staged(lane, seal), seal.live, page_of(lane, seal.column));
    }
}

PageId NaiveBackend::page_of(const Lane& lane, std::uint32_t column) {
  return lane.table->pages[std::size_t{column} * static_cast<std::size_t>(lane.table->lanes) +
                           static_cast<std::size_t>(lane.number)];
}

NaivePage& NaiveBackend::staged(const Lane& lane, const SealedColumn& seal) {
  const auto [at, fresh] = staged_.try_emplace({lane.table, lane.number, seal.column});
  if (fresh)
    at->second =
        seal.open != nullptr ? store_->page(seal.open[lane.number]) : NaivePageStore::zeros(lane.table->format);
  return at->second;
}

std::vector<NaiveBackend::Place> NaiveBackend::places(const Lane& lane, int row) const {
  const BatchTable& table = *lane.table;
  std::vector<Place> places;
  std::size_t number = 0;  // among the entries of all frames
  for (std::size_t f = 0; f < table.frames.size(); ++f) {
    const BatchFrame& frame = table.frames[f];
    for (std::size_t e = 0; e < frame.entries.size(); ++e, ++number) {
      const PageEntry& entry = frame.entries[e];
      SlotMask retained = entry.live;
      SlotMask visible = e >= frame.visible_from ? entry.live : 0;
      for (const MaskBlock& block : table.blocks) {
        if (block.frame != f || e < block.begin || e >= block.end) continue;
        const std::size_t mask =
            block.masks + static_cast<std::size_t>(row) * (block.end - block.begin) + e - block.begin;
        visible = table.masks[mask];
        retained = table.retained_masks.empty() ? visible : table.retained_masks[mask];
      }
      for (const HiddenBlock& block : table.hidden)
        if (block.frame == f && e >= block.begin && e < block.end && row >= block.first_row && row < block.end_row)
          visible = retained = 0;
      if (!lane.read.empty()) visible &= lane.read[number];
      const auto bias = [&, of_lanes = table.biases.empty() ? nullptr : table.biases[number]](int slot) {
        return of_lanes != nullptr ? of_lanes[lane.number * table.format.slots + slot] : 0.0;
      };
      const NaivePage* page = &store_->page(page_of(lane, entry.column));
      for (const SealedColumn& seal : table.seals)
        if (seal.column == entry.column && row < seal.first_row) page = &staged_.at({&table, lane.number, seal.column});
      for (int slot = 0; slot < lane.table->format.slots; ++slot)
        if ((retained >> slot & 1) != 0) places.push_back({f, page, slot, (visible >> slot & 1) != 0, bias(slot)});
    }
  }
  return places;
}

// Writes the attention of one row, and returns its weights: [query heads][retained tokens].
std::vector<std::vector<float>> NaiveBackend::attend_row(const BatchSequence& sequence, int row,
                                                         std::span<const Lane> lanes) {
  const auto dim = static_cast<std::size_t>(layer_shape().head_dim);
  const auto in_batch = static_cast<std::size_t>(sequence.first_row + row);
  std::vector<std::vector<float>> weights;
  Row& out = rows(Activation::kAttention)[in_batch];
  const bool recalls = sequence.offloaded != nullptr && sequence.offloaded->recalls() &&
                       lanes_of(sequence).observed_as >= 0 && row + 1 == sequence.rows;
  for (int head = 0; head < layer_shape().heads; ++head) {
    const Lane& lane = lanes[static_cast<std::size_t>(head / layer_shape().group())];
    const std::vector<Place> tokens = places(lane, row);
    const auto query = std::span(rows(Activation::kQuery)[in_batch]).subspan(static_cast<std::size_t>(head) * dim, dim);
    Rows by_frame;
    for (std::size_t f = 0; f < lane.table->frames.size(); ++f) {
      by_frame.push_back(rotated_query(query, *lane.table, f, row));
      if (lane.table->format.hadamard_keys) walsh_hadamard(by_frame.back());
    }
    Row scores;
    double highest = -std::numeric_limits<double>::infinity();
    for (const Place& token : tokens) {
      double score = -std::numeric_limits<double>::infinity();
      if (token.visible) {
        const Row& key = token.page->keys[static_cast<std::size_t>(token.slot)];
        score = 0;
        for (std::size_t d = 0; d < dim; ++d) score += by_frame[token.frame][d] * key[d];
        score = capped(score * scale()) + token.bias;
      }
      scores.push_back(score);
      highest = std::max(highest, score);
    }
    double sum = 0;
    if (attention_.sinks != kNoWeight) {
      const double sink = weight(attention_.sinks)->at(static_cast<std::size_t>(head));
      highest = std::max(highest, sink);
      sum = std::exp(sink - highest);
    }
    for (std::size_t t = 0; t < tokens.size(); ++t) sum += tokens[t].visible ? std::exp(scores[t] - highest) : 0;
    // What is recalled takes part in the output, and not in the weights that are told.
    std::vector<std::pair<double, const Row*>> recalled;  // exp(score - highest), value
    double sum_of_all = sum;
    const auto chosen =
        recalls ? sequence.offloaded->chosen(head / layer_shape().group()) : std::span<const RecalledPage>();
    for (const RecalledPage& page : chosen)
      for (int slot = 0; slot < lane.table->format.slots; ++slot) {
        if ((page.live >> slot & 1) == 0) continue;
        const Row& key = store_->page(page.page).keys[static_cast<std::size_t>(slot)];
        double score = 0;
        for (std::size_t d = 0; d < dim; ++d) score += by_frame.back()[d] * key[d];
        score = capped(score * scale());
        recalled.emplace_back(std::exp(score - highest),
                              &store_->page(page.page).values[static_cast<std::size_t>(slot)]);
        sum_of_all += recalled.back().first;
      }
    Row attention(dim);
    std::vector<float>& of_head = weights.emplace_back();
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const double weight = tokens[t].visible ? std::exp(scores[t] - highest) / sum : 0;
      of_head.push_back(static_cast<float>(weight));
      if (!tokens[t].visible) continue;
      const Row& value = tokens[t].page->values[static_cast<std::size_t>(tokens[t].slot)];
      for (std::size_t d = 0; d < dim; ++d) attention[d] += weight * sum / sum_of_all * value[d];
    }
    for (const auto& [weight, value] : recalled)
      for (std::size_t d = 0; d < dim; ++d) attention[d] += weight / sum_of_all * (*value)[d];
    if (lane.table->format.transforms_values()) walsh_hadamard(attention);
    out.insert(out.end(), attention.begin(), attention.end());
  }
  return weights;
}

void NaiveBackend::tell(const BatchSequence& sequence, int row, const std::vector<std::vector<float>>& weights) const {
  AttentionListener& listener = *sequence.listener;
  if (listener.wants_weights()) {
    const std::vector<std::span<const float>> of_heads(weights.begin(), weights.end());
    listener.hear_weights({lanes_of(sequence).observed_as, row, 1, layer_shape().heads, of_heads});
  }
  const std::span<const MassReduction> reductions = listener.reductions();
  if (listener.wants_queries()) {
    const Row& of_row =
        activations_[static_cast<std::size_t>(Activation::kQuery)][static_cast<std::size_t>(sequence.first_row + row)];
    const std::vector<float> queries(of_row.begin(), of_row.end());
    const auto dim = static_cast<std::size_t>(layer_shape().head_dim);
    for (int head = 0; head < layer_shape().heads; ++head)
      listener.hear_queries({lanes_of(sequence).observed_as, head, row, 1, dim, dim,
                             queries.data() + static_cast<std::size_t>(head) * dim});
  }
  if (reductions.empty() || !listener.wants_row(row)) return;
  const int tables = lanes_of(sequence).tables;
  const auto heads = static_cast<std::size_t>(layer_shape().heads / tables);
  for (int table = 0; table < tables; ++table) {
    std::vector<const float*> of_heads;
    for (std::size_t h = 0; h < heads; ++h)
      of_heads.push_back(weights[static_cast<std::size_t>(table) * heads + h].data());
    const std::size_t tokens = weights[static_cast<std::size_t>(table) * heads].size();
    std::vector<std::vector<double>> masses;
    for (const MassReduction reduction : reductions)
      reduce_mass(of_heads, static_cast<int>(tokens), reduction, masses.emplace_back(tokens));
    const std::vector<std::span<const double>> spans(masses.begin(), masses.end());
    listener.hear_masses({lanes_of(sequence).observed_as, table, row, spans});
  }
}

// Asks the sequence's selector what a row reads of a lane.
void NaiveBackend::select(const BatchSequence& sequence, int head, int row, Lane* lane) {
  const auto dim = static_cast<std::size_t>(layer_shape().head_dim);
  const auto group = static_cast<std::size_t>(layer_shape().group());
  const Row& of_row = rows(Activation::kQuery)[static_cast<std::size_t>(sequence.first_row + row)];
  std::vector<float> queries;
  std::size_t entries = 0;
  for (std::size_t f = 0; f < lane->table->frames.size(); ++f) {
    entries += lane->table->frames[f].entries.size();
    for (std::size_t g = 0; g < group; ++g) {
      const auto query = std::span(of_row).subspan((static_cast<std::size_t>(head) * group + g) * dim, dim);
      for (const double x : rotated_query(query, *lane->table, f, row))
        queries.push_back(static_cast<float>(x * scale()));
    }
  }
  lane->read.assign(entries, ~SlotMask{0});
  const LaneRow shown{lanes_of(sequence).observed_as,
                      head,
                      row,
                      lane->table,
                      lane->number,
                      store_,
                      layer_shape().group(),
                      layer_shape().head_dim,
                      queries.data(),
                      group * dim,
                      score_segments};
  sequence.selector->select(shown, lane->read);
}

// Has the sequence's recall choose for its last row.
void NaiveBackend::recall(const BatchSequence& sequence, std::span<const Lane> lanes) {
  const auto dim = static_cast<std::size_t>(layer_shape().head_dim);
  const int row = sequence.rows - 1;
  const Row& of_row = rows(Activation::kQuery)[static_cast<std::size_t>(sequence.first_row + row)];
  for (int head = 0; head < layer_shape().kv_heads; ++head) {
    const Lane& lane = lanes[static_cast<std::size_t>(head)];
    std::vector<float> queries, highest;
    for (int g = 0; g < layer_shape().group(); ++g) {
      const auto query =
          std::span(of_row).subspan(static_cast<std::size_t>(head * layer_shape().group() + g) * dim, dim);
      double most = -std::numeric_limits<double>::infinity();
      if (attention_.sinks != kNoWeight)
        most = weight(attention_.sinks)->at(static_cast<std::size_t>(head * layer_shape().group() + g));
      for (const Place& token : places(lane, row)) {
        if (!token.visible) continue;
        Row turned = rotated_query(query, *lane.table, token.frame, row);
        if (lane.table->format.hadamard_keys) walsh_hadamard(turned);
        double score = 0;
        for (std::size_t d = 0; d < dim; ++d)
          score += turned[d] * token.page->keys[static_cast<std::size_t>(token.slot)][d];
        most = std::max(most, capped(score * scale()));
      }
      highest.push_back(static_cast<float>(most));
      for (const double x : rotated_query(query, *lane.table, lane.table->frames.size() - 1, row))
        queries.push_back(static_cast<float>(x * scale()));
    }
    const LaneRow shown{
        lanes_of(sequence).observed_as, head,           row, lane.table, lane.number, store_, layer_shape().group(),
        layer_shape().head_dim,         queries.data(), 0};
    sequence.offloaded->choose(shown, highest);
  }
  sequence.offloaded->fetch_chosen(lanes_of(sequence).observed_as);
}

void NaiveBackend::attend(int layer, const AttentionWeights& weights) {
  layer_ = layer;
  attention_ = weights;
  rows(Activation::kAttention).assign(static_cast<std::size_t>(pass_.batch->rows()), {});
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    rotation_shift_ = sequence.rotation_shift;
    std::vector<Lane> lanes;
    for (int head = 0; head < layer_shape().kv_heads; ++head) lanes.push_back(lane_of(sequence, head));
    const int number = lanes_of(sequence).observed_as;
    const bool selects = sequence.selector != nullptr && number >= 0 && sequence.selector->selects(number);
    for (int row = 0; row < sequence.rows; ++row) {
      for (int head = 0; selects && head < layer_shape().kv_heads; ++head)
        select(sequence, head, row, &lanes[static_cast<std::size_t>(head)]);
      if (sequence.offloaded != nullptr && sequence.offloaded->recalls() && number >= 0 && row + 1 == sequence.rows)
        recall(sequence, lanes);
      const auto of_row = attend_row(sequence, row, lanes);
      if (sequence.listener != nullptr && number >= 0) tell(sequence, row, of_row);
    }
  }
}

}  // namespace kvasir::test
