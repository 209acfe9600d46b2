// The page tables of a pass as attention reads them: cut into partials, and joined to the lanes of one layer.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/cpu_page_store.h"
#include "backend/page_access.h"
#include "base/aligned_buffer.h"

namespace kvasir {

inline std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

// A run of at most kPartialEntries entries of one frame. Its bounds depend on the ordinals of the columns alone, so a
// row's sums are taken in the same order whatever the chunk it came in.
struct TablePartial {
  std::uint32_t frame = 0;
  std::uint32_t begin = 0;  // entries [begin, end) of the frame
  std::uint32_t end = 0;
  std::uint32_t first = 0;  // number of entry `begin` among those of all frames
};

// What a pass derives from one page table, whatever the layer.
struct PassTable {
  static constexpr std::size_t kNoRotation = ~std::size_t{0};  // not known yet

  const BatchTable* batch = nullptr;
  std::size_t first_partial = 0;
  std::size_t partials = 0;
  std::uint32_t entries = 0;           // of all frames
  std::size_t rotation = kNoRotation;  // index in BackendShape::rotations; of the layers that rotate
  std::size_t first_key = 0;           // where its keys' rotations begin, in floats
  std::size_t first_query = 0;         // where its queries' rotations begin, in floats
};

// The lanes that one layer has in one table.
struct LayerTable {
  const BatchSequence* sequence = nullptr;
  const PassTable* table = nullptr;
  int observed_as = -1;  // LayerLanes::observed_as
  int number = 0;        // among the tables of this sequence in this layer
  int first_head = 0;    // KV heads [first_head, first_head + heads)
  int heads = 0;
  int first_lane = 0;            // lane of first_head
  std::size_t first_query = 0;   // of its rotated queries, in units of one row's
  bool selects = false;          // a selector chooses what its rows read
  std::size_t first_read = 0;    // of the selector's choices: [head][row][entries]
  std::size_t first_staged = 0;  // of its staged columns: [column][head]

  const BatchTable& batch() const { return *table->batch; }
  int lane(int head) const { return first_lane + head - first_head; }
  PageId page(std::uint32_t column, int head) const { return batch().page(column, lane(head)); }
};

// A tile of rows of one lane.
struct AttentionTask {
  const LayerTable* table = nullptr;
  int head = 0;  // KV head
  int row = 0;   // rows [row, row + rows) of the sequence
  int rows = 0;
  std::size_t state = 0;           // of its total, in queries; those of its partials follow
  float* weights = nullptr;        // [rows * group][entries * slots], if observed
  float* weight_maxima = nullptr;  // [rows * group][entries]
  SlotMask* retained = nullptr;    // scratch for the retained tokens of one row: [entries], if observed
  std::size_t observed = 0;        // index of its first row's observed weights: [rows][heads]

  // Returns whether the last row attends to pages beside its table's.
  bool recalls() const {
    const BatchSequence& sequence = *table->sequence;
    return sequence.offloaded != nullptr && sequence.offloaded->recalls() && table->observed_as >= 0 &&
           row + rows == sequence.rows;
  }
};

class PassTables {
 public:
  // `shape` must outlive the tables.
  explicit PassTables(const BackendShape* shape);

  // Takes the tables of a pass. Its batch and store must outlive the calls for its layers.
  void begin(const Backend::Pass& pass);
  // Sets the layer that the functions below are about.
  void set_layer(int layer);

  const Batch& batch() const { return *pass_.batch; }
  const CpuPageStore& store() const { return *static_cast<const CpuPageStore*>(pass_.store); }
  const LayerShape& layer() const { return shape_.layers[static_cast<std::size_t>(layer_)]; }
  const LayerLanes& lanes(const BatchSequence& sequence) const {
    return sequence.layers[static_cast<std::size_t>(layer_)];
  }
  std::span<const LayerTable> of_layer() const { return layer_tables_; }
  const TablePartial& partial(const PassTable& table, std::size_t number) const {
    return partials_[table.first_partial + number];
  }
  // Rotated dimensions of the layer's heads: rotation_floats of its tables, or 0.
  int rotary() const { return shape_.rotations[static_cast<std::size_t>(layer().rotation)].dims; }
  // Floats of one position's rotation: cosines, then sines.
  std::size_t rotation_floats(const PassTable& table) const { return rotations_[table.rotation].floats(); }
  // [rows][rotation_floats].
  const float* key_rotations(const PassTable& table) const { return key_rotations_.data() + table.first_key; }
  // [frames][rows][rotation_floats].
  const float* query_rotations(const PassTable& table) const { return query_rotations_.data() + table.first_query; }
  // Returns what selectors and offloaded pages are told of a lane, without the row.
  LaneRow lane_row(const LayerTable& table, int head) const;
  // Returns the 16-bit page of a column that this pass encodes: BatchTable::seals[seal].
  std::byte* open_page(const LayerTable& table, std::size_t seal, int head) const;
  std::uint64_t allocated_bytes() const;

  // Returns how many layers that agree with a layer in what their pages hold are read by later layers too.
  static int read_later(const BackendShape& shape, const LayerShape& like);

 private:
  AlignedBuffer<std::byte>& staged() { return staged_[stage_of_layer_[static_cast<std::size_t>(layer_)]]; }
  const AlignedBuffer<std::byte>& staged() const { return staged_[stage_of_layer_[static_cast<std::size_t>(layer_)]]; }
  void add_partials(PassTable& table);
  void fill_rotations();
  void place_staged();

  const BackendShape& shape_;
  std::vector<RotationTable> rotations_;  // of shape_.rotations
  Backend::Pass pass_;
  int layer_ = 0;
  std::vector<PassTable> tables_;  // of the batch
  std::vector<TablePartial> partials_;
  std::vector<LayerTable> layer_tables_;
  AlignedBuffer<float> key_rotations_;
  AlignedBuffer<float> query_rotations_;
  // Columns that the pass writes whole and encodes: of the current layer, and of each layer that later ones read.
  std::vector<AlignedBuffer<std::byte>> staged_;
  std::vector<std::size_t> stage_of_layer_;
};

}  // namespace kvasir
