// What a batch takes beside page tables.
#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "engine/sequence.h"
#include "kv/describe_table.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

// SnapKV over a prompt of 32,768 tokens of an 8B shape (32 layers of 8 KV heads): 256 page tables, 256 rows a pass.
TEST(BatchMemory, OfSnapKvOverALongPromptIsSmallAndPlanned) {
  const KvCacheShape shape{.layers = 32, .kv_heads = 8, .page = {.head_dim = 128, .slots = 32, .key = KvType::kF16}};
  const auto policy = std::move(*make_policy("snapkv"));
  const SequenceLayout layout = sequence_layout(*policy);
  const auto cache = std::move(*KvCache::create(shape, std::uint64_t{1} << 36));
  KvSequence sequence = cache->new_sequence(layout);
  ASSERT_EQ(sequence.tables(), 256);
  const int rows = prompt_chunk(*policy, 0);
  ASSERT_EQ(rows, 256);
  Batch batch;
  batch.tables.resize(static_cast<std::size_t>(sequence.tables()));
  const std::vector<IndexRange> hidden(static_cast<std::size_t>(rows));
  for (int chunk = 0; chunk < 32768 / rows; ++chunk) {
    ASSERT_TRUE(sequence.append(rows).ok());
    if (chunk % 32 != 31) continue;
    for (int t = 0; t < sequence.tables(); ++t)
      describe_table(sequence.table(t), hidden, 0, &batch.tables[static_cast<std::size_t>(t)]);
    batch.tokens.resize(static_cast<std::size_t>(rows));
    EXPECT_LT(batch.bytes(), std::uint64_t{8} << 20);
    const KvMemory plan = plan_kv_memory(shape, *policy, {32768, 32768, 0, 1});
    EXPECT_LE(batch.bytes(), plan.batch_bytes);
    EXPECT_LT(plan.batch_bytes, std::uint64_t{10} << 20);
  }
}

}  // namespace
}  // namespace kvasir
