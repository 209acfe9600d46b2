// A second backend, written for clarity from the contracts in src/backend alone: double precision, one thread, one row
// after the other, and pages of another layout than the CPU's. What runs above it knows no layout.
// Thread-safety: as Backend and PageStore.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/attention_listener.h"
#include "backend/backend.h"

namespace kvasir::test {

// The tokens of one lane, [slot][head_dim]. Every value is one that the format's element type can hold; of an encoded
// page, what it decodes to.
struct NaivePage {
  std::vector<std::vector<double>> keys, values;
};

class NaivePageStore final : public PageStore {
 public:
  explicit NaivePageStore(std::vector<Rotation> rotations) : rotations_(std::move(rotations)) {}

  const PageFormat& format() const { return classes_.begin()->second.format; }
  const PageFormat& format(PageId id) const { return classes_.at(page_class(id)).format; }
  const NaivePage& page(PageId id) const;
  static NaivePage zeros(const PageFormat& format);
  // Rounds both to the element types of the format's open form.
  static void set(const PageFormat& format, NaivePage& page, int slot, std::span<const double> key,
                  std::span<const double> value);
  void set(PageId id, int slot, std::span<const double> key, std::span<const double> value) {
    set(format(id), writable(id), slot, key, value);
  }
  // Encodes a page that is not encoded, by the definitions of the codecs.
  void encode(const NaivePage& open, SlotMask live, PageId to);

  Status reserve(PageClass of, const PageFormat& format, std::uint64_t count) override;
  void give_back(PageClass of, std::uint64_t first, std::uint64_t count) override;
  void clear(std::span<const PageId> pages) override;
  void copy(std::span<const PageId> from, std::span<const PageId> to) override;
  void move(ColumnLanes lanes, std::span<const SlotMove> moves) override;
  void repack(ColumnLanes lanes, std::span<const SlotMove> moves) override;
  void seal(int lanes, std::span<const PageSeal> seals) override;
  void rotate(ColumnLanes lanes, std::span<const SlotRotation> rotations, std::int64_t shift) override;
  void read_keys(PageId page, float* keys) const override;
  void read_values(PageId page, float* values) const override;
  // No table of the naive backend has offloaded entries.
  void read_rows(PageId, int, int, std::byte*) const override { std::abort(); }
  void write_rows(PageId, int, int, const std::byte*) override { std::abort(); }
  void put_row(PageId, int, const std::byte*) override { std::abort(); }
  // Bytes of a page: elements [slot][key, then value]. REQUIRES: not encoded.
  void read(PageId page, std::span<std::byte> out) const override;
  void write(PageId page, std::span<const std::byte> in) override;

 private:
  struct Class {
    PageFormat format;
    NaivePage zeros;
    std::vector<std::unique_ptr<NaivePage>> pages;  // null: all zeros
  };
  NaivePage& writable(PageId id);
  // In 16 bits, where it is encoded.
  NaivePage opened(PageId id) const;
  std::vector<double> rotated(const PageFormat& format, int rotation, std::span<const double> key,
                              std::int64_t shift) const;

  std::vector<Rotation> rotations_;
  std::map<PageClass, Class> classes_;
};

class NaiveBackend final : public Backend {
 public:
  explicit NaiveBackend(BackendShape shape) : shape_(std::move(shape)) {}

  std::string_view name() const override { return "naive"; }
  std::string arithmetic_id(const PageFormat& format) const override {
    return "naive/1/" + std::to_string(format.slots) + "/16";
  }
  std::uint64_t weight_bytes(std::span<const WeightPart> parts) const override;
  Status load(std::span<const WeightPart> parts, const LoadOptions& options) override;
  std::uint64_t adapter_bytes(std::span<const LowRankPart> parts) const override;
  Status load_adapter(std::span<const LowRankPart> parts) override;
  std::unique_ptr<PageStore> new_page_store() override;
  void begin(const Pass& pass) override;
  void embed(WeightId embedding, float scale, Activation to) override;
  void add_positions(WeightId positions) override;
  void rms_norm(Activation from, WeightId weight, float eps, Activation to) override;
  void layer_norm(Activation from, WeightId weight, WeightId bias, float eps, Activation to) override;
  void rms_norm_heads(Activation x, WeightId weight, int heads, float eps) override;
  void multiply(Activation from, std::span<const Product> products) override;
  void multiply_heads(Activation from, const HeadProduct& product, Activation to) override;
  void product_norms(WeightId matrix, const HeadColumns& columns, std::span<const float> vectors,
                     std::span<double> norms) override;
  void join_heads(Activation a, Activation b, int heads, Activation to) override;
  void activate(ActivationFunction function, Activation gate, Activation up) override;
  void activate(ActivationFunction function, Activation x) override;
  void add(Activation to, Activation x) override;
  void copy(Activation from, Columns columns, Activation to) override;
  void scale(Activation x, float factor, WeightId by) override;
  void scale_rows(Activation x, Activation gate, WeightId weights) override;
  void run_experts(const Experts& experts) override;
  void store(int layer) override;
  void attend(int layer, const AttentionWeights& weights) override;
  void mix(int layer, std::span<const WeightId> parameters) override;
  Outputs outputs(const OutputWeights& weights) override;
  std::uint64_t workspace_bytes(const WorkspaceRequest& request) const override;

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;  // [rows of the batch][width]
  struct Weight {
    Rows rows;                                             // [outputs][inputs]
    double at(std::size_t i) const { return rows[i][0]; }  // of a vector
  };
  // What an adapter adds to products with one matrix.
  struct LowRank {
    double factor = 1;
    Weight a, b;
  };
  // A lane of one sequence in one layer.
  struct Lane {
    const BatchTable* table = nullptr;
    int number = 0;              // of the table's lanes
    std::vector<SlotMask> read;  // of the row at hand: [entries of all frames]; empty: all that it sees
  };
  // Places of one row's retained tokens in one lane, in order of token.
  struct Place {
    std::size_t frame = 0;
    const NaivePage* page = nullptr;
    int slot = 0;
    bool visible = false;
    double bias = 0;
  };

  Rows& rows(Activation activation) { return activations_[static_cast<std::size_t>(activation)]; }
  const Weight* weight(WeightId id) const;
  static Weight read_weight(const WeightPart& part);
  Row normalized(const Row& x, const OutputWeights& by) const;
  Row times(WeightId matrix, WeightId bias, const Row& x) const;
  static Row times(const Weight& matrix, const Row& x);
  double capped(double score) const;
  double temperature(Position position) const;
  Row rotated(std::span<const double> head, Position position) const;
  Row rotated_query(std::span<const double> head, const BatchTable& table, std::size_t frame, int row) const;
  Lane lane_of(const BatchSequence& sequence, int head) const;
  const LayerShape& layer_shape() const { return shape_.layers[static_cast<std::size_t>(layer_)]; }
  const LayerLanes& lanes_of(const BatchSequence& sequence) const {
    return sequence.layers[static_cast<std::size_t>(layer_)];
  }
  // The factor of queries.
  double scale() const;
  static PageId page_of(const Lane& lane, std::uint32_t column);
  NaivePage& staged(const Lane& lane, const SealedColumn& seal);
  std::vector<Place> places(const Lane& lane, int row) const;
  void select(const BatchSequence& sequence, int head, int row, Lane* lane);
  void recall(const BatchSequence& sequence, std::span<const Lane> lanes);
  std::vector<std::vector<float>> attend_row(const BatchSequence& sequence, int row, std::span<const Lane> lanes);
  void tell(const BatchSequence& sequence, int row, const std::vector<std::vector<float>>& weights) const;

  BackendShape shape_;
  std::vector<Weight> weights_;
  std::vector<std::map<WeightId, LowRank>> adapters_;
  std::vector<std::span<const AppliedAdapter>> adapters_of_row_;  // of what is multiplied next
  Pass pass_;
  NaivePageStore* store_ = nullptr;
  int layer_ = 0;           // at hand
  int rotation_shift_ = 0;  // of the sequence at hand
  AttentionWeights attention_;
  // The 16-bit form of columns that the pass seals: {table, lane, column}.
  std::map<std::tuple<const BatchTable*, int, std::uint32_t>, NaivePage> staged_;
  Rows activations_[kActivations];
  std::vector<float> logits_;
  std::vector<float> hidden_;
};

}  // namespace kvasir::test
