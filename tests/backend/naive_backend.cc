#include "backend/naive_backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/attention_mass.h"
#include "base/check.h"
#include "tensor/dequantize.h"

namespace kvasir::test {
namespace {

std::size_t at(PageId page) {
  return static_cast<std::size_t>(page);
}

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

}  // namespace

// -- Pages --

NaivePageStore::NaivePageStore(std::vector<double> inverse_frequencies)
    : inverse_frequencies_(std::move(inverse_frequencies)) {}

const NaivePage& NaivePageStore::page(PageId id) const {
  return pages_[at(id)] != nullptr ? *pages_[at(id)] : zeros_;
}

NaivePage& NaivePageStore::writable(PageId id) {
  if (pages_[at(id)] == nullptr) pages_[at(id)] = std::make_unique<NaivePage>(zeros_);
  return *pages_[at(id)];
}

double NaivePageStore::rounded(KvType type, double value) const {
  const auto narrow = static_cast<float>(value);
  if (type == KvType::kF16) return static_cast<double>(f16_to_f32(f32_to_f16(narrow)));
  if (type == KvType::kBF16) return static_cast<double>(bf16_to_f32(f32_to_bf16(narrow)));
  return static_cast<double>(narrow);
}

std::vector<double> NaivePageStore::rotated(std::span<const double> key, std::int64_t shift) const {
  std::vector<double> out(key.begin(), key.end());
  if (shift == 0) return out;
  for (std::size_t i = 0; i < inverse_frequencies_.size(); ++i)
    rotate_pair(out[2 * i], out[2 * i + 1], static_cast<double>(shift) * inverse_frequencies_[i]);
  return out;
}

void NaivePageStore::set(PageId id, int slot, std::span<const double> key, std::span<const double> value) {
  NaivePage& page = writable(id);
  const auto s = static_cast<std::size_t>(slot);
  for (std::size_t d = 0; d < key.size(); ++d) {
    page.keys[s][d] = rounded(format_.key, key[d]);
    page.values[s][d] = rounded(format_.value, value[d]);
  }
}

Status NaivePageStore::reserve(PageClass of, const PageFormat& format, std::uint64_t count) {
  KVASIR_CHECK(pages_.empty() && of == PageClass{} && !format.encoded());
  format_ = format;
  const std::vector<double> zero(static_cast<std::size_t>(format.head_dim));
  zeros_.keys.assign(static_cast<std::size_t>(format.slots), zero);
  zeros_.values = zeros_.keys;
  pages_.resize(count);
  return {};
}

void NaivePageStore::clear(std::span<const PageId> pages) {
  for (const PageId page : pages) pages_[at(page)].reset();
}

void NaivePageStore::copy(std::span<const PageId> from, std::span<const PageId> to) {
  for (std::size_t i = 0; i < from.size(); ++i) writable(to[i]) = page(from[i]);
}

void NaivePageStore::move(int lanes, std::span<const SlotMove> moves) {
  for (const SlotMove& move : moves)
    for (int lane = 0; lane < lanes; ++lane) {
      const NaivePage from = page(move.from[lane]);
      int to = move.to_slot;
      for (SlotMask left = move.slots; left != 0; left &= left - 1, ++to) {
        const auto slot = static_cast<std::size_t>(std::countr_zero(left));
        set(move.to[lane], to, rotated(from.keys[slot], move.shift), from.values[slot]);
      }
    }
}

void NaivePageStore::repack(int, std::span<const SlotMove>) {
  KVASIR_CHECK(false);  // of encoded pages
}

void NaivePageStore::seal(int, std::span<const PageSeal>) {
  KVASIR_CHECK(false);
}

void NaivePageStore::rotate(int lanes, std::span<const SlotRotation> rotations, std::int64_t shift) {
  for (const SlotRotation& rotation : rotations)
    for (int lane = 0; lane < lanes; ++lane)
      for (SlotMask left = rotation.slots; left != 0; left &= left - 1) {
        const int slot = std::countr_zero(left);
        const NaivePage& own = page(rotation.pages[lane]);
        const auto s = static_cast<std::size_t>(slot);
        set(rotation.pages[lane], slot, rotated(own.keys[s], shift), std::vector(own.values[s]));
      }
}

void NaivePageStore::read_keys(PageId page, float* keys) const {
  for (const std::vector<double>& key : this->page(page).keys)
    for (const double x : key) *keys++ = static_cast<float>(x);
}

void NaivePageStore::read(PageId id, std::span<std::byte> out) const {
  KVASIR_CHECK(out.size() == format_.bytes());
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
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(format_.slots); ++slot) {
    for (const double key : page(id).keys[slot]) put(format_.key, key);
    for (const double value : page(id).values[slot]) put(format_.value, value);
  }
}

void NaivePageStore::write(PageId id, std::span<const std::byte> in) {
  KVASIR_CHECK(in.size() == format_.bytes());
  const std::byte* from = in.data();
  const auto take = [&](KvType codec, std::vector<double>& values) {
    const DType type = codec == KvType::kF32 ? DType::kF32 : codec == KvType::kF16 ? DType::kF16 : DType::kBF16;
    for (double& value : values) {
      value = static_cast<double>(read_element(type, from));
      from += kv_type_bytes(codec);
    }
  };
  NaivePage& page = writable(id);
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(format_.slots); ++slot) {
    take(format_.key, page.keys[slot]);
    take(format_.value, page.values[slot]);
  }
}

// -- Weights --

std::uint64_t NaiveBackend::weight_bytes(std::span<const WeightPart> parts) const {
  std::uint64_t values = 0;
  for (const WeightPart& part : parts)
    values += static_cast<std::uint64_t>(part.outputs) * static_cast<std::uint64_t>(part.inputs);
  return values * sizeof(double);
}

Status NaiveBackend::load(std::span<const WeightPart> parts, const LoadProgress& progress) {
  KVASIR_CHECK(weights_.empty());
  for (const WeightPart& part : parts) {
    const DTypeTraits& traits = dtype_traits(part.type);
    const std::size_t row_bytes = static_cast<std::size_t>(part.inputs) / traits.block_elements * traits.block_bytes;
    Weight& weight = weights_.emplace_back();
    for (int output = 0; output < part.outputs; ++output)
      weight.rows.push_back(row_values(
          part.type, part.bytes.data() + static_cast<std::size_t>(part.order.row(output)) * row_bytes, part.inputs));
    if (progress.loaded) progress.loaded(weight_bytes({&part, 1}));
  }
  return {};
}

std::unique_ptr<PageStore> NaiveBackend::new_page_store() {
  return std::make_unique<NaivePageStore>(shape_.inverse_frequencies);
}

const NaiveBackend::Weight* NaiveBackend::weight(WeightId id) const {
  return id == kNoWeight ? nullptr : &weights_[static_cast<std::size_t>(id)];
}

// -- A pass --

void NaiveBackend::begin(const Pass& pass) {
  pass_ = pass;
  store_ = static_cast<NaivePageStore*>(pass.store);
}

void NaiveBackend::embed(WeightId embedding) {
  rows(Activation::kResidual).clear();
  for (const std::int32_t token : pass_.batch->tokens)
    rows(Activation::kResidual).push_back(weight(embedding)->rows[static_cast<std::size_t>(token)]);
}

// RMSNorm, or with a bias LayerNorm.
NaiveBackend::Row NaiveBackend::normalized(const Row& x, WeightId by, WeightId bias, float eps) const {
  const auto n = static_cast<double>(x.size());
  double mean = 0;
  if (bias != kNoWeight)
    for (const double value : x) mean += value / n;
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean) / n;
  Row out;
  for (std::size_t i = 0; i < x.size(); ++i)
    out.push_back((x[i] - mean) / std::sqrt(squares + static_cast<double>(eps)) * weight(by)->at(i) +
                  (bias != kNoWeight ? weight(bias)->at(i) : 0));
  return out;
}

void NaiveBackend::rms_norm(Activation from, WeightId by, float eps, Activation to) {
  layer_norm(from, by, kNoWeight, eps, to);
}

void NaiveBackend::layer_norm(Activation from, WeightId by, WeightId bias, float eps, Activation to) {
  Rows out;
  for (const Row& row : rows(from)) out.push_back(normalized(row, by, bias, eps));
  rows(to) = std::move(out);
}

void NaiveBackend::rms_norm_heads(Activation x, WeightId by, int heads, float eps) {
  for (Row& row : rows(x))
    for (int head = 0; head < heads; ++head) {
      const auto first = row.begin() + head * shape_.head_dim;
      std::ranges::copy(normalized(Row(first, first + shape_.head_dim), by, kNoWeight, eps), first);
    }
}

void NaiveBackend::multiply(Activation from, std::span<const Product> products) {
  const Rows in = rows(from);
  for (const Product& product : products) {
    rows(product.to).clear();
    for (const Row& x : in) {
      Row& out = rows(product.to).emplace_back();
      for (const Row& of_output : weight(product.matrix)->rows) {
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i) sum += of_output[i] * x[i];
        out.push_back(sum + (product.bias != kNoWeight ? weight(product.bias)->at(out.size()) : 0));
      }
    }
  }
}

void NaiveBackend::swiglu(Activation gate, Activation up) {
  for (std::size_t r = 0; r < rows(up).size(); ++r)
    for (std::size_t i = 0; i < rows(up)[r].size(); ++i) {
      const double x = rows(gate)[r][i];
      rows(up)[r][i] *= x / (1 + std::exp(-x));
    }
}

void NaiveBackend::gelu(Activation x) {
  for (Row& row : rows(x))
    for (double& value : row) value *= (1 + std::erf(value / std::sqrt(2.0))) / 2;
}

void NaiveBackend::add(Activation to, Activation x) {
  for (std::size_t r = 0; r < rows(to).size(); ++r)
    for (std::size_t i = 0; i < rows(to)[r].size(); ++i) rows(to)[r][i] += rows(x)[r][i];
}

std::span<const float> NaiveBackend::logits(WeightId output, WeightId norm, WeightId norm_bias, float eps) {
  Rows wanted;
  for (const BatchSequence& sequence : pass_.batch->sequences)
    for (int row = sequence.rows - sequence.logits; row < sequence.rows; ++row)
      wanted.push_back(normalized(rows(Activation::kResidual)[static_cast<std::size_t>(sequence.first_row + row)], norm,
                                  norm_bias, eps));
  rows(Activation::kNormalized) = std::move(wanted);
  const Product product{output, kNoWeight, Activation::kProjected};
  multiply(Activation::kNormalized, {&product, 1});
  logits_.clear();
  for (const Row& row : rows(Activation::kProjected))
    for (const double logit : row) logits_.push_back(static_cast<float>(logit));
  return logits_;
}

std::uint64_t NaiveBackend::workspace_bytes(const WorkspaceRequest& request) const {
  const int width =
      3 * shape_.width + 2 * shape_.heads * shape_.head_dim + 2 * shape_.kv_heads * shape_.head_dim + 2 * shape_.ffn;
  return sizeof(double) * (static_cast<std::uint64_t>(request.rows) * static_cast<std::uint64_t>(width) +
                           static_cast<std::uint64_t>(request.logits) * static_cast<std::uint64_t>(shape_.vocabulary));
}

// -- Attention --

NaiveBackend::Row NaiveBackend::rotated(std::span<const double> head, Position position) const {
  Row out(head.begin(), head.end());
  for (std::size_t i = 0; i < shape_.inverse_frequencies.size(); ++i) {
    rotate_pair(out[2 * i], out[2 * i + 1], static_cast<double>(position) * shape_.inverse_frequencies[i]);
    out[2 * i] *= shape_.rotary_magnitude;
    out[2 * i + 1] *= shape_.rotary_magnitude;
  }
  return out;
}

// A table has the lanes of all layers, of one layer, or one lane.
NaiveBackend::Lane NaiveBackend::lane_of(const BatchSequence& sequence, int layer, int head) const {
  const int per_layer = std::max(1, sequence.tables / shape_.layers);
  const int table = sequence.tables == 1 ? 0 : layer * per_layer + (per_layer > 1 ? head : 0);
  Lane lane;
  lane.table = &pass_.batch->tables[sequence.first_table + static_cast<std::size_t>(table)];
  lane.number = (sequence.tables == 1 ? layer * shape_.kv_heads : 0) + (per_layer > 1 ? 0 : head);
  KVASIR_CHECK(lane.number < lane.table->lanes && lane.table->rows == sequence.rows);
  return lane;
}

void NaiveBackend::store(int layer) {
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  for (const BatchSequence& sequence : pass_.batch->sequences)
    for (int row = 0; row < sequence.rows; ++row)
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const Lane lane = lane_of(sequence, layer, head);
        const auto r = static_cast<std::size_t>(row);
        const auto in_batch = static_cast<std::size_t>(sequence.first_row + row);
        const WriteSlot place = lane.table->slots[r];
        const std::size_t first = static_cast<std::size_t>(head) * dim;
        const PageId page = lane.table->pages[std::size_t{place.column} * static_cast<std::size_t>(lane.table->lanes) +
                                              static_cast<std::size_t>(lane.number)];
        store_->set(
            page, place.slot,
            rotated(std::span(rows(Activation::kKey)[in_batch]).subspan(first, dim), lane.table->key_positions[r]),
            std::span(rows(Activation::kValue)[in_batch]).subspan(first, dim));
      }
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
      const PageId page = table.pages[std::size_t{entry.column} * static_cast<std::size_t>(table.lanes) +
                                      static_cast<std::size_t>(lane.number)];
      for (int slot = 0; slot < store_->format().slots; ++slot)
        if ((retained >> slot & 1) != 0) places.push_back({f, page, slot, (visible >> slot & 1) != 0});
    }
  }
  return places;
}

// Writes the attention of one row, and returns its weights: [query heads][retained tokens].
std::vector<std::vector<float>> NaiveBackend::attend_row(const BatchSequence& sequence, int row,
                                                         std::span<const Lane> lanes) {
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  const auto in_batch = static_cast<std::size_t>(sequence.first_row + row);
  std::vector<std::vector<float>> weights;
  Row& out = rows(Activation::kAttention)[in_batch];
  for (int head = 0; head < shape_.heads; ++head) {
    const Lane& lane = lanes[static_cast<std::size_t>(head / shape_.group())];
    const std::vector<Place> tokens = places(lane, row);
    const auto query = std::span(rows(Activation::kQuery)[in_batch]).subspan(static_cast<std::size_t>(head) * dim, dim);
    Rows by_frame;
    for (std::size_t f = 0; f < lane.table->frames.size(); ++f)
      by_frame.push_back(rotated(query, lane.table->query_position(f, row)));
    Row scores;
    double highest = -std::numeric_limits<double>::infinity();
    for (const Place& token : tokens) {
      double score = -std::numeric_limits<double>::infinity();
      if (token.visible) {
        const Row& key = store_->page(token.page).keys[static_cast<std::size_t>(token.slot)];
        score = 0;
        for (std::size_t d = 0; d < dim; ++d) score += by_frame[token.frame][d] * key[d];
        score /= std::sqrt(static_cast<double>(shape_.head_dim));
      }
      scores.push_back(score);
      highest = std::max(highest, score);
    }
    double sum = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) sum += tokens[t].visible ? std::exp(scores[t] - highest) : 0;
    Row attention(dim);
    std::vector<float>& of_head = weights.emplace_back();
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const double weight = tokens[t].visible ? std::exp(scores[t] - highest) / sum : 0;
      of_head.push_back(static_cast<float>(weight));
      if (!tokens[t].visible) continue;
      const Row& value = store_->page(tokens[t].page).values[static_cast<std::size_t>(tokens[t].slot)];
      for (std::size_t d = 0; d < dim; ++d) attention[d] += weight * value[d];
    }
    out.insert(out.end(), attention.begin(), attention.end());
  }
  return weights;
}

void NaiveBackend::tell(const BatchSequence& sequence, int layer, int row,
                        const std::vector<std::vector<float>>& weights) const {
  AttentionListener& listener = *sequence.listener;
  if (listener.wants_weights()) {
    const std::vector<std::span<const float>> of_heads(weights.begin(), weights.end());
    listener.hear_weights({layer, row, 1, shape_.heads, of_heads});
  }
  const std::span<const MassReduction> reductions = listener.reductions();
  if (reductions.empty() || !listener.wants_row(row)) return;
  const int tables = std::max(1, sequence.tables / shape_.layers);
  const auto heads = static_cast<std::size_t>(shape_.heads / tables);
  for (int table = 0; table < tables; ++table) {
    std::vector<const float*> of_heads;
    for (std::size_t h = 0; h < heads; ++h)
      of_heads.push_back(weights[static_cast<std::size_t>(table) * heads + h].data());
    const std::size_t tokens = weights[static_cast<std::size_t>(table) * heads].size();
    std::vector<std::vector<double>> masses;
    for (const MassReduction reduction : reductions)
      reduce_mass(of_heads, static_cast<int>(tokens), reduction, masses.emplace_back(tokens));
    const std::vector<std::span<const double>> spans(masses.begin(), masses.end());
    listener.hear_masses({layer, table, row, spans});
  }
}

// Asks the sequence's selector what a row reads of a lane.
void NaiveBackend::select(const BatchSequence& sequence, int layer, int head, int row, Lane* lane) {
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  const auto group = static_cast<std::size_t>(shape_.group());
  const Row& of_row = rows(Activation::kQuery)[static_cast<std::size_t>(sequence.first_row + row)];
  std::vector<float> queries;
  std::size_t entries = 0;
  for (std::size_t f = 0; f < lane->table->frames.size(); ++f) {
    entries += lane->table->frames[f].entries.size();
    for (std::size_t g = 0; g < group; ++g) {
      const auto query = std::span(of_row).subspan((static_cast<std::size_t>(head) * group + g) * dim, dim);
      for (const double x : rotated(query, lane->table->query_position(f, row)))
        queries.push_back(static_cast<float>(x / std::sqrt(static_cast<double>(shape_.head_dim))));
    }
  }
  lane->read.assign(entries, ~SlotMask{0});
  const LaneRow shown{layer,           head,           row,        lane->table, lane->number, store_, shape_.group(),
                      shape_.head_dim, queries.data(), group * dim};
  sequence.selector->select(shown, lane->read);
}

void NaiveBackend::attend(int layer) {
  const std::unique_ptr<PageLease> lease = pass_.source != nullptr ? pass_.source->lease(layer, *pass_.batch) : nullptr;
  if (lease != nullptr) lease->wait();
  rows(Activation::kAttention).assign(static_cast<std::size_t>(pass_.batch->rows()), {});
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    std::vector<Lane> lanes;
    for (int head = 0; head < shape_.kv_heads; ++head) lanes.push_back(lane_of(sequence, layer, head));
    const bool selects = sequence.selector != nullptr && sequence.selector->selects(layer);
    for (int row = 0; row < sequence.rows; ++row) {
      for (int head = 0; selects && head < shape_.kv_heads; ++head)
        select(sequence, layer, head, row, &lanes[static_cast<std::size_t>(head)]);
      const auto weights = attend_row(sequence, row, lanes);
      if (sequence.listener != nullptr) tell(sequence, layer, row, weights);
    }
  }
}

}  // namespace kvasir::test
