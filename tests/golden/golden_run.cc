#include "golden/golden_run.h"

#include <xxhash.h>

#include "kv/table.h"
#include "support/engine_fixture.h"

namespace kvasir::test {

GoldenResult run_golden(const std::shared_ptr<LoadedModel>& model, const std::string& policy,
                        std::span<const TokenId> tokens, std::size_t prompt, int chunk) {
  GoldenResult result;
  const auto runner = new_runner(model, policy);
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
  for (int t = 0; t < runner->sequence().tables(); ++t) {
    const std::vector<TokenIndex> ids = retained_ids(runner->sequence().table(t));
    const auto count = static_cast<std::int64_t>(ids.size());
    XXH3_64bits_update(state, &count, sizeof count);
    XXH3_64bits_update(state, ids.data(), ids.size() * sizeof ids[0]);
    result.retained += count;
  }
  result.kept = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return result;
}

}  // namespace kvasir::test
