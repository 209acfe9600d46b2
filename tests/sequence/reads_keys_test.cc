// The capability of policies that look at keys: they are shown those that the pages hold, whatever the passes.
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "sequence/policy_cases.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

using Shown = std::map<std::pair<int, TokenIndex>, std::vector<float>>;  // by table and token; all lanes

// Evicts the second token of every eight, so that tables have holes and frames; writes down the keys it is shown.
class KeyReader final : public RetentionPolicy, public ReadsKeys {
 public:
  KeyReader(PolicyScope scope, Shown* shown)
      : RetentionPolicy({.spec = "key_reader",
                         .scope = scope,
                         .positions = PositionMode::kOriginal,
                         .chunk = 24,
                         .compacts = true}),
        shown_(*shown) {}

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<KeyReader>(*this); }
  TokenIndex seen() const override { return seen_; }
  void retained(int, int, std::vector<IndexRange>& ranges) const override {
    for (TokenIndex id = 0; id < seen_; ++id)
      if (id % 8 != 1) add(ranges, id);
  }
  std::int64_t exact_prefix(std::int64_t) const override { return 0; }
  void end_chunk(const PolicyChunk& chunk, int, KeepPlan& plan) override {
    seen_ = chunk.end();
    for (TokenIndex id = chunk.first; id < chunk.end(); ++id)
      if (id % 8 == 1) plan.add_drop({id, id + 1});
  }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }

  const ReadsKeys* reads_keys() const override { return this; }
  void read_keys(const PolicyChunk& chunk, int table, const ChunkKeys& keys) override {
    ASSERT_EQ(keys.rows, chunk.rows);
    for (int row = 0; row < keys.rows; ++row) {
      std::vector<float>& of_token = shown_[{table, chunk.first + row}];
      ASSERT_TRUE(of_token.empty()) << "shown twice";
      for (int lane = 0; lane < keys.lanes; ++lane)
        of_token.insert(of_token.end(), keys.of(lane, row).begin(), keys.of(lane, row).end());
    }
  }

 private:
  static void add(std::vector<IndexRange>& ranges, TokenIndex id) {
    if (!ranges.empty() && ranges.back().end == id)
      ++ranges.back().end;
    else
      ranges.push_back({id, id + 1});
  }
  void save_state(ByteWriter& out) const override { out.put(seen_); }
  bool restore_state(ByteReader& in) override { return in.get(seen_); }

  Shown& shown_;
  TokenIndex seen_ = 0;
};

// Keys are stored rotated by their place in the text, and encoded pages alone change what they hold.
void expect_those_of_pages(const PageStore& store, const KvSequence& sequence, const Shown& shown) {
  std::vector<float> page(64 * 1024);
  std::int64_t compared = 0;
  for (int t = 0; t < sequence.governed_tables(); ++t) {
    const PageTable& table = sequence.table(t);
    const auto lanes = static_cast<std::size_t>(table.pages().lanes());
    for (const auto& frame : table.frames())
      for (const PageEntry& entry : table.entries_of(frame))
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          store.read_keys(table.pages().of(entry.column)[lane], page.data());
          for (SlotMask rest = entry.live; rest != 0; rest &= rest - 1) {
            const int slot = std::countr_zero(rest);
            const std::vector<float>& keys = shown.at({t, table.columns().index(entry.column, slot)});
            const std::size_t dim = keys.size() / lanes;
            const std::vector<float> own(page.begin() + static_cast<std::ptrdiff_t>(dim) * slot,
                                         page.begin() + static_cast<std::ptrdiff_t>(dim) * (slot + 1));
            ASSERT_EQ(own, std::vector<float>(keys.begin() + static_cast<std::ptrdiff_t>(dim * lane),
                                              keys.begin() + static_cast<std::ptrdiff_t>(dim * (lane + 1))));
            ++compared;
          }
        }
  }
  EXPECT_GT(compared, 0);
}

TEST(ReadsKeys, AreThoseOfThePagesWhateverThePasses) {
  const RandomModelSpec spec = family_cases().front().spec;
  const TemporaryFile file(make_random_model(spec));
  const Text text(70, 9, 1);
  for (const char* type : {"f32", "f16", "q8"})
    for (const PolicyScope scope : {PolicyScope::kSequence, PolicyScope::kLayer, PolicyScope::kHead}) {
      SCOPED_TRACE(std::string(type) + " " + std::to_string(static_cast<int>(scope)));
      const auto model = load(file.path(), {.threads = 2, .kv_type = type, .page_slots = 16});
      Shown first;
      for (const int rows : {1000, 5}) {
        Shown shown;
        SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                              std::make_unique<KeyReader>(scope, &shown));
        runner.set_most_rows(rows);
        run_text(runner, text, 0);
        const KvCacheShape& shape = model->kv_shape;
        EXPECT_EQ(std::ssize(shown), (70 + 9) * shape.tables(scope));
        const auto floats = static_cast<std::size_t>(shape.lanes() / shape.tables(scope) * shape.page.head_dim);
        for (const auto& [place, keys] : shown) ASSERT_EQ(keys.size(), floats);
        if (std::string(type) != "q8")
          expect_those_of_pages(*runner.whole().cache()->pool().store(), runner.sequence(), shown);
        if (first.empty()) first = shown;
        EXPECT_EQ(shown, first);
      }
    }
}

}  // namespace
}  // namespace kvasir::test
