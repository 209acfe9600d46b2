#include "backend/cpu/pass_tables.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

PassTables::PassTables(const BackendShape* shape)
    : shape_(*shape),
      rotations_(shape->rotations.begin(), shape->rotations.end()),
      staged_(1),
      stage_of_layer_(shape->layers.size()) {
  for (std::size_t l = 0; l < shape->layers.size(); ++l) {
    if (shape->layers[l].keys_of < 0) continue;
    std::size_t& of_source = stage_of_layer_[static_cast<std::size_t>(shape->layers[l].keys_of)];
    if (of_source == 0) {
      of_source = staged_.size();
      staged_.emplace_back();
    }
    stage_of_layer_[l] = of_source;
  }
}

int PassTables::read_later(const BackendShape& shape, const LayerShape& like) {
  std::vector<bool> read(shape.layers.size());
  for (const LayerShape& layer : shape.layers)
    if (layer.keys_of >= 0 && layer.kv_heads == like.kv_heads && layer.head_dim == like.head_dim &&
        layer.windowed == like.windowed)
      read[static_cast<std::size_t>(layer.keys_of)] = true;
  return static_cast<int>(std::ranges::count(read, true));
}

void PassTables::begin(const Backend::Pass& pass) {
  pass_ = pass;
  tables_.clear();
  partials_.clear();
  layer_tables_.clear();
  PassTable next;
  for (const BatchSequence& sequence : batch().sequences) {
    KVASIR_CHECK(sequence.layers.size() == shape_.layers.size());
    const std::size_t first = tables_.size();
    for (int t = 0; t < sequence.tables; ++t) {
      next.batch = &batch().tables[sequence.first_table + static_cast<std::size_t>(t)];
      KVASIR_CHECK(next.batch->rows == sequence.rows);
      add_partials(next);
      tables_.push_back(next);
    }
    for (std::size_t l = 0; l < sequence.layers.size(); ++l) {
      const LayerLanes& lanes = sequence.layers[l];
      const auto rotation = static_cast<std::size_t>(shape_.layers[l].rotation + sequence.rotation_shift);
      for (int t = 0; t < lanes.tables; ++t) {
        std::size_t& of_table = tables_[first + static_cast<std::size_t>(lanes.first_table + t)].rotation;
        if (of_table == PassTable::kNoRotation || shape_.rotations[rotation].dims > 0) of_table = rotation;
      }
    }
  }
  fill_rotations();
}

void PassTables::add_partials(PassTable& table) {
  table.first_partial = partials_.size();
  table.entries = 0;
  for (std::uint32_t f = 0; f < table.batch->frames.size(); ++f) {
    const std::span<const PageEntry> entries = table.batch->frames[f].entries;
    std::uint64_t group = 0;
    for (std::uint32_t e = 0; e < entries.size(); ++e) {
      const std::uint64_t own_group = entries[e].ordinal / kPartialEntries;
      if (e == 0 || own_group != group) partials_.push_back({f, e, e, table.entries + e});
      group = own_group;
      partials_.back().end = e + 1;
    }
    table.entries += static_cast<std::uint32_t>(entries.size());
  }
  table.partials = partials_.size() - table.first_partial;
}

void PassTables::fill_rotations() {
  std::size_t keys = 0, queries = 0;  // floats
  for (PassTable& table : tables_) {
    table.first_key = keys;
    table.first_query = queries;
    keys += table.batch->key_positions.size() * rotation_floats(table);
    queries += table.batch->query_positions.size() * rotation_floats(table);
  }
  key_rotations_.ensure(keys);
  query_rotations_.ensure(queries);
  for (const PassTable& table : tables_) {
    RotationTable& rotation = rotations_[table.rotation];
    // Stored keys include the magnitude, so rotating them again later is a pure rotation.
    const auto magnitude = static_cast<float>(shape_.rotations[table.rotation].magnitude);
    const auto fill = [&](std::span<const Position> positions, float* at) {
      float* const begin = at;
      for (const Position position : positions) at = std::copy_n(rotation.of(position), rotation.floats(), at);
      if (magnitude == 1) return;
      for (float* value = begin; value != at; ++value) *value *= magnitude;
    };
    fill(table.batch->key_positions, key_rotations_.data() + table.first_key);
    fill(table.batch->query_positions, query_rotations_.data() + table.first_query);
  }
}

void PassTables::set_layer(int layer) {
  layer_ = layer;
  layer_tables_.clear();
  std::size_t table = 0;  // first of the sequence
  LayerTable next;
  for (const BatchSequence& sequence : batch().sequences) {
    const LayerLanes& of = lanes(sequence);
    next.sequence = &sequence;
    next.observed_as = of.observed_as;
    next.selects = sequence.selector != nullptr && of.observed_as >= 0 && sequence.selector->selects(of.observed_as);
    next.heads = this->layer().kv_heads / of.tables;
    next.first_lane = of.first_lane;
    for (int part = 0; part < of.tables; ++part) {
      next.number = part;
      next.table = &tables_[table + static_cast<std::size_t>(of.first_table + part)];
      next.first_head = part * next.heads;
      layer_tables_.push_back(next);
      next.first_query += next.batch().query_positions.size();
      if (next.selects) next.first_read += product(next.heads, sequence.rows) * next.table->entries;
    }
    table += static_cast<std::size_t>(sequence.tables);
  }
  place_staged();
}

void PassTables::place_staged() {
  std::size_t bytes = 0;
  for (LayerTable& table : layer_tables_) {
    table.first_staged = bytes;
    for (const SealedColumn& seal : table.batch().seals)
      if (seal.open == nullptr) bytes += static_cast<std::size_t>(table.heads) * table.batch().format.open().bytes();
  }
  staged().ensure(bytes);
}

std::byte* PassTables::open_page(const LayerTable& table, std::size_t seal, int head) const {
  const std::vector<SealedColumn>& seals = table.batch().seals;
  if (const PageId* open = seals[seal].open) return store().data(open[table.lane(head)]);
  std::size_t number = 0;  // among those without pages
  for (std::size_t s = 0; s < seal; ++s) number += seals[s].open == nullptr;
  return staged().data() + table.first_staged +
         (number * static_cast<std::size_t>(table.heads) + static_cast<std::size_t>(head - table.first_head)) *
             table.batch().format.open().bytes();
}

LaneRow PassTables::lane_row(const LayerTable& table, int head) const {
  return {.layer = table.observed_as,
          .head = head,
          .table = &table.batch(),
          .lane = table.lane(head),
          .store = &store(),
          .group = layer().group(),
          .head_dim = layer().head_dim};
}

std::uint64_t PassTables::allocated_bytes() const {
  std::uint64_t cached = 0;
  for (const RotationTable& rotation : rotations_) cached += RotationTable::bytes(rotation.rotary());
  for (const AlignedBuffer<std::byte>& staged : staged_) cached += staged.bytes();
  return cached + tables_.capacity() * sizeof(PassTable) + partials_.capacity() * sizeof(TablePartial) +
         layer_tables_.capacity() * sizeof(LayerTable) + key_rotations_.bytes() + query_rotations_.bytes();
}

}  // namespace kvasir
