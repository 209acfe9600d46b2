// Tasks that give up their pages and are recomputed.
#include "engine/task.h"

#include <gtest/gtest.h>

#include "engine/crowd.h"
#include "engine/driver.h"

namespace kvasir::test {
namespace {

// A prompt and its continuation, run to their end in passes of up to 7 rows.
struct Continued {
  explicit Continued(const LoadedModel& model)
      : task(&text, prompt, Generation(*model.tokenizer, options, {}, prompt)) {
    text.chunk = 20;
  }

  // Gives up the sequence each time it has come to hold as many tokens as `releases` says.
  void run(const std::shared_ptr<LoadedModel>& model, const std::string& policy, std::span<const TokenIndex> releases) {
    Driver driver(model, *new_cache(model, std::uint64_t{1} << 26));
    const auto start = [&] {
      text.sequence = std::make_unique<Sequence>(model, driver.cache(), std::move(*make_policy(policy)));
    };
    start();
    while (task.prepare()) {
      if (released < releases.size() && text.sequence->tables().next_index() >= releases[released]) {
        in_chunk += text.sequence->in_chunk() ? 1 : 0;
        task.release();
        ++released;
        EXPECT_EQ(driver.cache()->budget().used(), 0u);
        EXPECT_TRUE(task.prepare());
        start();
      }
      const kvasir::Turn turn{&task, 7};
      rows += driver.plan(turn).rows;
      const Status status = driver.pass({&turn, 1});
      ASSERT_TRUE(status.ok()) << status.message();
      shown += task.take_text();
    }
    ASSERT_TRUE(task.status().ok()) << task.status().message();
  }

  const std::vector<TokenId> prompt = random_tokens(105, crowd_spec().vocab, 1);
  const GenerateOptions options{.max_tokens = 82, .ignore_eos = true, .sampling = {.temperature = 1.2F, .seed = 7}};
  TextState text;
  Task task;
  std::size_t released = 0;
  int in_chunk = 0;  // of these, in the middle of a chunk
  int rows = 0;      // of all passes
  std::string shown;
};

// The bits of a sequence that was never given up, and so of what follows; nothing is drawn or shown again.
TEST(Task, RecomputedAfterGivingUpItsPages) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  constexpr TokenIndex kReleases[] = {30, 90, 105, 106, 130, 147};
  for (const char* type : {"f16", "q4", "k=q8,v=q2,recent=20"})
    for (const std::string& policy : all_policies_in_use()) {
      SCOPED_TRACE(policy + " " + type);
      const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
      Continued kept(*model), released(*model);
      ASSERT_NO_FATAL_FAILURE(kept.run(model, policy, {}));
      ASSERT_NO_FATAL_FAILURE(released.run(model, policy, kReleases));
      ASSERT_EQ(released.released, std::size(kReleases));
      EXPECT_GT(released.in_chunk, 0);
      EXPECT_GE(released.rows, kept.rows + 30 + 90 + 105 + 106 + 130 + 147) << "nothing was run again";
      EXPECT_EQ(released.task.generation().text(), kept.task.generation().text());
      EXPECT_EQ(released.shown, kept.shown);
      EXPECT_EQ(released.text.newest, kept.text.newest);
      EXPECT_TRUE(same_bits(released.text.logits, kept.text.logits));
      SequenceRunner again(std::move(released.text.sequence)), runner(std::move(kept.text.sequence));
      EXPECT_EQ(kept_by(again.sequence()), kept_by(runner.sequence()));
      EXPECT_EQ(again.kept_max(), runner.kept_max());
      if (policy != "full") {
        EXPECT_TRUE(again.first_dropped().has_value()) << "nothing was dropped";
      }
      EXPECT_EQ(again.first_dropped(), runner.first_dropped());
      const auto more = random_tokens(30, crowd_spec().vocab, 9);
      EXPECT_TRUE(same_bits(all_logits(again, more, 7), all_logits(runner, more, 7)));
    }
}

}  // namespace
}  // namespace kvasir::test
