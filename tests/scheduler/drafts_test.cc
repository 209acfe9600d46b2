// Drafts change no bit, whatever comes true of them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "planning/memory_plan.h"
#include "scheduler/batch_runner.h"
#include "sequence/crowd.h"

namespace kvasir::test {
namespace {

// A prompt and its continuation, in passes of up to eight rows.
struct Drafted {
  Drafted(const std::shared_ptr<LoadedModel>& model, const std::string& policy, const std::string& draft,
          float temperature, int tokens = 90)
      : runner(model, *new_cache(model, std::uint64_t{1} << 26)),
        options{.max_tokens = tokens, .ignore_eos = true, .sampling = {.temperature = temperature, .seed = 7}} {
    // Few words, which come again and again, so that what followed before is often right.
    options.allowed_tokens = {20, 21, 22};
    for (int i = 0; i < 66; ++i) prompt.push_back(20 + i % 11 + (i > 40 ? i % 3 : 0));
    options.draft = draft;
    options.logprobs = 1;
    text.chunk = 20;
    text.sequence = std::make_unique<Sequence>(model, runner.cache(), std::move(*make_policy(policy)));
    task.emplace(&text, prompt, Generation(*model->tokenizer, options, {}, prompt));
    while (task->prepare()) {
      const Status status = runner.pass(*task);
      ++passes;
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) return;
      shown += task->take_text();
    }
    EXPECT_TRUE(task->status().ok()) << task->status().message();
  }

  BatchRunner runner;
  GenerateOptions options;
  std::vector<TokenId> prompt;
  TextState text;
  std::optional<Task> task;
  int passes = 0;
  std::string shown;
};

void expect_same(Drafted& drafted, Drafted& plain) {
  EXPECT_EQ(drafted.shown, plain.shown);
  EXPECT_EQ(drafted.text.newest, plain.text.newest);
  EXPECT_TRUE(same_bits(drafted.text.logits, plain.text.logits));
  const GenerateResult a = drafted.task->generation().result(), b = plain.task->generation().result();
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  ASSERT_EQ(a.choices.size(), b.choices.size());
  for (std::size_t i = 0; i < a.choices.size(); ++i) {
    EXPECT_EQ(a.choices[i].token.id, b.choices[i].token.id);
    EXPECT_EQ(a.choices[i].token.log_probability, b.choices[i].token.log_probability);
  }
  EXPECT_EQ(drafted.runner.cache()->budget().used(), plain.runner.cache()->budget().used());
  const std::uint64_t peak = drafted.runner.cache()->budget().peak();
  const RetentionPolicy& policy = drafted.text.sequence->policy();
  if (policy.traits().compacts) {
    // The state of the policy grows some tokens ahead, within what is planned.
    const MemoryRequest request{66 + a.tokens, 66, drafted.text.chunk, 1};
    EXPECT_LE(peak, plan_kv_memory(drafted.text.sequence->shape(), policy, request).bytes);
  } else {
    EXPECT_EQ(peak, plain.runner.cache()->budget().peak());
  }
  SequenceRunner one(std::move(drafted.text.sequence)), other(std::move(plain.text.sequence));
  const KvSequence* all[] = {&one.sequence()};
  drafted.runner.cache()->check_invariants(all, one.whole().state_bytes());
  EXPECT_EQ(kept_by(one.sequence()), kept_by(other.sequence()));
  EXPECT_EQ(one.counters().kept_max, other.counters().kept_max);
  EXPECT_EQ(one.counters().seen_least, other.counters().seen_least);
  EXPECT_EQ(one.counters().first_dropped, other.counters().first_dropped);
  const auto more = random_tokens(25, crowd_spec().vocab, 9);
  EXPECT_TRUE(same_bits(all_logits(one, more, 7), all_logits(other, more, 7)));
}

struct Tally {
  std::int64_t came_true = 0;  // drafts
  std::int64_t wrong = 0;      // drafts
  std::int64_t refused = 0;    // texts
};

// Compares texts with and without drafts under every policy and codec, greedy and sampled. Where drafts are refused,
// the report says why, and none runs.
void expect_no_changed_bit(const std::string& draft, Tally& tally) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const char* type : {"f16", "q4", "k=q8,v=q2,recent=20"}) {
    for (const std::string& policy : all_policies_in_use()) {
      for (const float temperature : {0.0F, 0.3F}) {
        SCOPED_TRACE(fmt::format("{} {} {}", policy, type, temperature));
        const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
        Drafted plain(model, policy, "", temperature), drafted(model, policy, draft, temperature);
        EXPECT_FALSE(plain.task->generation().result().draft.has_value());
        const auto report = drafted.task->generation().result().draft;
        ASSERT_TRUE(report.has_value());
        EXPECT_EQ(report->refused.empty(), report->drafted > 0) << report->refused;
        EXPECT_EQ(plain.passes - drafted.passes, report->came_true);
        tally.came_true += report->came_true;
        tally.wrong += report->drafted - report->came_true;
        tally.refused += report->refused.empty() ? 0 : 1;
        ASSERT_NO_FATAL_FAILURE(expect_same(drafted, plain));
      }
    }
  }
}

TEST(Drafts, ChangeNoBit) {
  Tally tally;
  ASSERT_NO_FATAL_FAILURE(expect_no_changed_bit("ngram:match=1", tally));
  EXPECT_GT(tally.came_true, 500);
  EXPECT_GT(tally.wrong, 500);
  EXPECT_GT(tally.refused, 20);
}

// Policies by range and those that act when a prompt ends have drafts; the others say why not.
TEST(Drafts, AreForPoliciesThatRest) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1});
  for (const char* policy :
       {"full", "window:size=30", "streaming:sinks=4,window=20", "streaming:sinks=2,window=20,every=7",
        "snapkv:budget=24,window=8", "pyramidkv:budget=24,window=8"}) {
    const auto report = Drafted(model, policy, "ngram:match=1", 0).task->generation().result().draft;
    EXPECT_GT(report->came_true, 0) << policy << ", " << report->drafted << " drafted, " << report->refused;
  }
  for (const char* policy : {"h2o:budget=24", "tova:budget=24", "cascade:size=24,n=2", "lethe:start=24",
                             "quest:budget=32", "streaming:sinks=4,window=20,realign=rotate", "full:thoughts=drop",
                             "snapkv:budget=24,window=8+h2o:budget=16,recent=4"}) {
    const auto report = Drafted(model, policy, "ngram:match=1", 0).task->generation().result().draft;
    EXPECT_EQ(report->drafted, 0) << policy;
    EXPECT_FALSE(report->refused.empty()) << policy;
  }
}

// The model drafts under a view of its own: mostly of fewer tokens than the text's policy keeps.
TEST(Drafts, OfTheModelChangeNoBit) {
  Tally tally;
  ASSERT_NO_FATAL_FAILURE(expect_no_changed_bit("policy:streaming:sinks=2,window=20", tally));
  EXPECT_GT(tally.came_true, 300);
  EXPECT_GT(tally.wrong, 30);
  EXPECT_GT(tally.refused, 40);
}

// Drafts are drawn as the text is, so that most come true where the view lacks little, sampled too. A view that holds
// the whole text makes none.
TEST(Drafts, OfTheModelSeeWhatTheViewHolds) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1});
  const auto most =
      Drafted(model, "full", "policy:streaming:sinks=40,window=26", 0.8F, 24).task->generation().result().draft;
  EXPECT_GT(most->drafted, 8);
  EXPECT_GT(2 * most->came_true, most->drafted) << most->drafted;
  const auto none = Drafted(model, "full", "policy:window:size=200", 0).task->generation().result().draft;
  EXPECT_EQ(none->drafted, 0);
  EXPECT_EQ(none->refused, "the view of the drafts held the whole text");
}

TEST(Drafts, OfTheModelNameAPolicyByRange) {
  for (const char* spec : {"", "off", "ngram", "policy:streaming:cap=512", "policy:window:size=64"})
    EXPECT_TRUE(check_draft(spec).ok()) << spec << check_draft(spec).message();
  for (const char* spec :
       {"policy", "policy:", "policy:full", "policy:h2o:budget=64", "policy:snapkv:budget=64", "policy:streaming:cap=x",
        "policy:nothing", "policy:streaming:cap=64,realign=rotate,demote=q8"}) {
    const Status status = check_draft(spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_NE(status.message(), "") << spec;
  }
}

// A stop string within drafts ends the text where it would end it alone.
TEST(Drafts, EndWhereTheTextEnds) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1});
  for (int tokens = 1; tokens < 40; ++tokens) {
    Drafted plain(model, "full", "", 0, tokens), drafted(model, "full", "ngram:match=1", 0, tokens);
    EXPECT_EQ(drafted.task->generation().tokens(), tokens);
    ASSERT_NO_FATAL_FAILURE(expect_same(drafted, plain));
  }
}

}  // namespace
}  // namespace kvasir::test
