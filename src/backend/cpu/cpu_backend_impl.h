// The parts of the CPU backend. Internal to src/backend/cpu.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "backend/attention_listener.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/cpu_weights.h"
#include "base/aligned_buffer.h"

namespace kvasir {

// Queries of a task: at most, or one row's. Wide tiles share the work of opening a page among more queries; narrow ones
// give few rows to more threads.
inline constexpr int kWideTile = 128;
inline constexpr int kNarrowTile = 32;

inline std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

// Attention over paged lanes: splits a pass into tiles of rows and partials of entries, and tells listeners.
class CpuAttention {
 public:
  CpuAttention(const BackendShape* shape, const KernelTable* kernels, ThreadPool* threads)
      : shape_(*shape),
        kernels_(*kernels),
        threads_(*threads),
        rotations_(shape->rotations.begin(), shape->rotations.end()) {}

  void begin(const Backend::Pass& pass);
  void store(int layer, const float* keys, const float* values);
  // query, out: [rows][heads * head_dim].
  void attend(int layer, const float* query, float* out);

  // Backend::workspace_bytes, as far as attention goes (cpu_workspace.cc).
  static std::uint64_t workspace_bytes(const BackendShape& shape, const Backend::WorkspaceRequest& request,
                                       int threads);
  std::uint64_t allocated_bytes() const;

 private:
  // A run of at most kPartialEntries entries of one frame. Its bounds depend on the ordinals of the columns alone, so a
  // row's sums are taken in the same order whatever the chunk it came in.
  struct Partial {
    std::uint32_t frame = 0;
    std::uint32_t begin = 0;  // entries [begin, end) of the frame
    std::uint32_t end = 0;
    std::uint32_t first = 0;  // number of entry `begin` among those of all frames
  };
  // What a pass derives from one page table, whatever the layer.
  struct Table {
    const BatchTable* batch = nullptr;
    std::size_t first_partial = 0;
    std::size_t partials = 0;
    std::uint32_t entries = 0;    // of all frames
    std::size_t rotation = 0;     // index in rotations_, of the layers that rotate
    std::size_t first_key = 0;    // of its keys' rotations, in floats
    std::size_t first_query = 0;  // of its queries' rotations, in floats
  };
  // One table's lanes in one layer.
  struct LayerTable {
    const BatchSequence* sequence = nullptr;
    const Table* table = nullptr;
    int observed_as = -1;  // LayerLanes::observed_as
    int number = 0;        // of the tables of this sequence in this layer
    int first_head = 0;    // KV heads [first_head, first_head + heads)
    int heads = 0;
    int first_lane = 0;            // of these heads in the table
    std::size_t first_query = 0;   // of its rotated queries, in units of one row's
    bool selects = false;          // its rows choose what they read
    std::size_t first_read = 0;    // of what they choose: [head][row][entries], if they do
    std::size_t first_staged = 0;  // of its staged columns: [column][head]
  };
  // A tile of rows of one lane.
  struct Task {
    const LayerTable* table = nullptr;
    int head = 0;  // KV head
    int row = 0;   // rows [row, row + rows) of the sequence
    int rows = 0;
    std::size_t state = 0;           // of its total, in queries; those of partials follow
    float* weights = nullptr;        // [rows * group][entries * slots], if observed
    float* weight_maxima = nullptr;  // [rows * group][entries]
    SlotMask* retained = nullptr;    // room for the retained tokens of one row: [entries], if observed
    std::size_t observed = 0;        // place of its first row's spans: [rows][heads]
  };

  // Some rows of a sequence whose weights are observed together, in all its tables of the layer or in some.
  struct Unit {
    const BatchSequence* sequence = nullptr;
    std::size_t first_table = 0;  // layer tables [first_table, last_table)
    std::size_t last_table = 0;
    int begin = 0;  // rows
    int end = 0;

    int rows() const { return end - begin; }
  };

  // The weights of one call of observe_units: at most this many floats, unless the smallest unit has more: one row of
  // one table, or of all tables of a layer where a listener wants raw weights.
  static constexpr std::size_t kMostWeights = std::size_t{4} << 20;

  void add_partials(Table& table);
  void fill_rotations();
  const LayerShape& layer_shape() const { return shape_.layers[static_cast<std::size_t>(layer_)]; }
  // Rotated dimensions of the layer's heads: those of its tables' rotation, or 0.
  int rotary() const { return rotations_[static_cast<std::size_t>(layer_shape().rotation)].rotary(); }
  const RotationTable& rotation_of(const Table& table) const { return rotations_[table.rotation]; }
  void set_layer(int layer);
  void rotate_queries(const float* query);
  void select_slots();
  void attend_unobserved();
  void attend_observed();
  void observe_units(std::span<const Unit> units);
  // Floats for the weights of one row in layer tables [first, last).
  std::size_t weights_of_row(std::size_t first, std::size_t last) const;
  void tell_queries(const float* query) const;
  void tell(const Unit& unit, std::size_t observed);
  void tell_masses(const Unit& unit, std::size_t observed);
  // Adds tasks of tiles of at most `queries` queries.
  void add_tasks(const LayerTable& table, int begin_row, int end_row, int queries);
  // Returns whether several threads compute the partials of one task: there are fewer than four tasks a thread.
  bool splits_partials() const;
  void run_tasks();
  // `next`: see AttentionPartial::next_page.
  void run_partial(const Task& task, std::size_t partial, int state, const std::byte* next);
  // Returns the first page of a partial; null where it is not known to be in memory.
  const std::byte* first_page(const Task& task, std::size_t partial) const;
  // Returns the page that an entry of the task's table has for its lane.
  PageId page_of(const Task& task, const PageEntry& entry) const;
  // Attends to the entries of a partial that have biases with the generic kernel, which gives every kernel table the
  // same sums, and to the others as ever.
  void attend_weighed(const Task& task, const Partial& part, AttentionPartial run, const AttentionState& into) const;
  void attend_gathered(const BatchTable& batch, const Partial& part, int gathered, const AttentionPartial& run,
                       const AttentionState& into) const;
  void ensure_staged();
  void store_head(const LayerTable& table, int head, const float* keys, const float* values);
  std::byte* open_page(const LayerTable& table, std::size_t seal, int head) const;
  void use_open_pages(const Task& task, const Partial& part, const PageFormat* open, const std::byte** pages,
                      const PageFormat** formats) const;
  bool fill_masks(const Task& task, const Partial& part, SlotMask* masks) const;
  void retained_row(const BatchTable& table, int row, SlotMask* masks) const;
  // Whether the task's last row attends to pages beside its table's.
  bool recalls(const Task& task) const {
    const BatchSequence& sequence = *task.table->sequence;
    return sequence.offloaded != nullptr && sequence.offloaded->recalls() && task.table->observed_as >= 0 &&
           task.row + task.rows == sequence.rows;
  }
  void end_task(const Task& task);
  // The queries [group][head_dim] of the task's last row, rotated to the newest frame.
  const float* newest_query(const Task& task) const;
  void choose_recalled(const Task& task);
  void add_recalled(const Task& task);
  void finish_recalling();
  void finish_task(const Task& task);
  void note_weights(const Task& task);
  AttentionState state(const Task& task, int index) const;
  void clear(const AttentionState& state, int queries) const;
  // Rows of a unit, at most.
  static int most_unit_rows(const LayerShape& shape, int threads);

  const BackendShape& shape_;
  const KernelTable& kernels_;
  ThreadPool& threads_;
  std::vector<RotationTable> rotations_;  // of shape_.rotations
  Backend::Pass pass_;
  const CpuPageStore* store_ = nullptr;
  const float* query_ = nullptr;
  float* out_ = nullptr;
  int layer_ = 0;

  std::vector<Table> tables_;  // of the batch
  std::vector<Partial> partials_;
  std::vector<LayerTable> layer_tables_;
  std::vector<Task> tasks_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> shares_;  // task, partial
  std::vector<std::uint32_t> recalling_;                         // tasks
  AlignedBuffer<std::byte> staged_;                              // columns that a pass writes whole and encodes
  AlignedBuffer<SlotMask> read_;         // per layer table whose rows choose: [heads][rows][entries]
  AlignedBuffer<float> key_rotation_;    // per table [rows][its rotation's floats]
  AlignedBuffer<float> query_rotation_;  // per table [frames][rows][its rotation's floats]
  AlignedBuffer<float> rotated_;         // per layer table [frames][rows][its query heads * head_dim]
  AlignedBuffer<float> state_weighted_;  // attention states: totals, then partials
  AlignedBuffer<float> state_scalars_;   // maximum and sum of each
  AlignedBuffer<float> weights_;         // observed
  AlignedBuffer<float> weight_maxima_;
  AlignedBuffer<SlotMask> retained_;  // per observed task [entries]
  std::vector<std::span<const float>> observed_;
  AlignedBuffer<double> masses_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendShape& shape, const KernelTable* kernels, ThreadPool* threads)
      : shape_(shape), kernels_(*kernels), threads_(*threads), attention_(&shape_, kernels, threads) {}
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  std::string_view name() const override { return kernels_.name; }
  std::string arithmetic_id(const PageFormat& format) const override;
  std::uint64_t weight_bytes(std::span<const WeightPart> parts) const override {
    return CpuWeights::bytes_of(*kernels_.packing, parts);
  }
  Status load(std::span<const WeightPart> parts, const LoadOptions& options) override {
    return weights_.load(*kernels_.packing, parts, threads_, options);
  }
  Status lock_weights() override { return weights_.lock(); }
  std::unique_ptr<PageStore> new_page_store() override {
    return std::make_unique<CpuPageStore>(&kernels_, &threads_, shape_.rotations);
  }
  void begin(const Pass& pass) override;
  void embed(WeightId embedding, float scale) override;
  void rms_norm(Activation from, WeightId weight, float eps, Activation to) override;
  void layer_norm(Activation from, WeightId weight, WeightId bias, float eps, Activation to) override;
  void rms_norm_heads(Activation x, WeightId weight, int heads, float eps) override;
  void multiply(Activation from, std::span<const Product> products) override;
  void activate(ActivationFunction function, Activation gate, Activation up) override;
  void activate(ActivationFunction function, Activation x) override;
  void add(Activation to, Activation x) override;
  void store(int layer) override;
  void attend(int layer) override;
  void mix(int layer, std::span<const WeightId> parameters) override;
  std::span<const float> logits(WeightId output, WeightId norm, WeightId norm_bias, float eps) override;
  std::uint64_t workspace_bytes(const WorkspaceRequest& request) const override;
  // Bytes of all buffers that workspace_bytes plans, as they stand.
  std::uint64_t allocated_workspace() const;

 private:
  struct Job {
    const PackedMatrix* weights;
    const float* bias;  // [outputs], or none
    float* out;         // [rows, outputs]
  };
  struct Tensor {
    AlignedBuffer<float> data;
    int width = 0;
  };
  Tensor& tensor(Activation activation) { return tensors_[static_cast<std::size_t>(activation)]; }
  float* ensure(Activation activation, int width);
  void quantize(const float* x, int inputs, int rows);
  void multiply_rows(const float* x, int inputs, int rows, std::span<const Job> jobs);
  void normalize(const float* x, const float* weight, const float* bias, float eps, int rows, float* out);

  BackendShape shape_;
  const KernelTable& kernels_;
  ThreadPool& threads_;
  CpuWeights weights_;
  CpuAttention attention_;
  Pass pass_;
  int rows_ = 0;
  Tensor tensors_[kActivations];
  AlignedBuffer<float> logits_;           // [rows wanted][vocabulary]
  AlignedBuffer<std::int8_t> q8_quants_;  // rows as Q8Rows
  AlignedBuffer<float> q8_scale_;
  AlignedBuffer<float> q8_scaled_sum_;
  AlignedBuffer<std::int32_t> q8_sum_;
  AlignedBuffer<std::int32_t> q8_half_sum_;
};

}  // namespace kvasir
