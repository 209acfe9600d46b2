#include "golden/golden_run.h"

#include <xxhash.h>

#include <algorithm>

#include "kv/table.h"
#include "sequence/policy_cases.h"
#include "support/engine_fixture.h"

namespace kvasir::test {

namespace {

std::vector<TokenIndex> retained_by_policy(const RetentionPolicy& policy, int table, int runs) {
  std::vector<IndexRange> ranges;
  for (int run = 0; run < runs; ++run) policy.retained(table, run, ranges);
  std::vector<TokenIndex> ids;
  for (const IndexRange& range : ranges)
    for (TokenIndex id = range.begin; id < range.end; ++id) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

GoldenResult run_golden(const std::shared_ptr<LoadedModel>& model, const std::string& policy,
                        std::span<const TokenId> tokens, std::size_t prompt, int chunk, std::optional<KvCodec> codec) {
  GoldenResult result;
  const auto runner = new_runner(model, policy, std::uint64_t{1} << 28, codec);
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  std::size_t rows_seen = 0;
  const auto on_pass = [&](std::int64_t, int rows, std::span<const float> logits) {
    XXH3_64bits_update(state, logits.data(), logits.size_bytes());
    rows_seen += static_cast<std::size_t>(rows);
    return true;
  };
  for (const bool read : {true, false}) {
    const auto part = read ? tokens.first(prompt) : tokens.subspan(prompt);
    const auto source = read ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated;
    const Status status = runner->feed(part, chunk, SequenceRunner::Logits::kAll, on_pass, source);
    EXPECT_TRUE(status.ok()) << policy << ": " << status.message();
  }
  EXPECT_EQ(rows_seen, tokens.size());
  result.logits = XXH3_64bits_digest(state);
  XXH3_64bits_reset(state);
  for (int t = 0; t < runner->sequence().governed_tables(); ++t) {
    const PageTable& table = runner->sequence().table(t);
    const std::vector<TokenIndex> ids = retained_by_policy(runner->policy(), t, table.layout().runs());
    // The table has pages of all of them, but those behind a sliding window.
    std::vector<TokenIndex> stored = ids;
    std::erase_if(stored, [given_back = table.tokens().given_back](TokenIndex id) {
      return id >= given_back.begin && id < given_back.end;
    });
    EXPECT_EQ(retained_ids(table), stored) << policy;
    const auto count = static_cast<std::int64_t>(ids.size());
    XXH3_64bits_update(state, &count, sizeof count);
    XXH3_64bits_update(state, ids.data(), ids.size() * sizeof ids[0]);
    result.retained += count;
  }
  result.kept = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return result;
}

std::vector<std::string> one_policy_of_each_kind() {
  std::vector<std::string> policies = {"full", "window:size=40", "streaming:sinks=4,window=36",
                                       "streaming:sinks=4,window=44,every=16,realign=rotate"};
  for (const PolicyCases& of_policy : all_policy_cases()) policies.push_back(of_policy.evicting.front());
  return policies;
}

}  // namespace kvasir::test
