// Drafts change no bit, whatever comes true of them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "scheduler/drafted.h"

namespace kvasir::test {
namespace {

struct Tally {
  std::int64_t came_true = 0;  // drafts
  std::int64_t wrong = 0;      // drafts
  std::int64_t refused = 0;    // texts
};

// Compares texts with and without drafts under every policy and codec, greedy and sampled. Where drafts are refused,
// the report says why, and none runs.
void expect_no_changed_bit(const std::string& draft, Tally& tally, const std::string& draft_model = "") {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const char* type : {"f16", "q4", "k=q8,v=q2,recent=20"}) {
    for (const std::string& policy : all_policies_in_use()) {
      for (const float temperature : {0.0F, 0.3F}) {
        SCOPED_TRACE(fmt::format("{} {} {}", policy, type, temperature));
        const auto model =
            load(file.path(), {.draft_model = draft_model, .threads = 1, .kv_type = type, .page_slots = 16});
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
    EXPECT_TRUE(check_draft(spec, false).ok()) << spec << check_draft(spec, false).message();
  for (const char* spec :
       {"policy", "policy:", "policy:full", "policy:h2o:budget=64", "policy:snapkv:budget=64", "policy:streaming:cap=x",
        "policy:nothing", "policy:streaming:cap=64,realign=rotate,demote=q8"}) {
    const Status status = check_draft(spec, false);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_NE(status.message(), "") << spec;
  }
}

// A smaller model with the tokens of crowd_spec(). Its context is shorter than the texts, so that it drops tokens too.
RandomModelSpec draft_spec() {
  RandomModelSpec spec = crowd_spec();
  spec.layers = 1;
  spec.d = 32;
  spec.heads = 2;
  spec.kv_heads = 1;
  spec.ffn = 64;
  spec.context = 80;
  spec.seed = 5;
  return spec;
}

TEST(Drafts, OfADraftModelChangeNoBit) {
  const TemporaryFile draft(make_random_model(draft_spec()));
  Tally tally;
  ASSERT_NO_FATAL_FAILURE(expect_no_changed_bit("model", tally, draft.path()));
  EXPECT_GT(tally.came_true, 50);
  EXPECT_GT(tally.wrong, 50);
  EXPECT_GT(tally.refused, 20);
}

// A draft model that is the model itself is always right, as it follows the text to the bit.
TEST(Drafts, OfTheSameModelAllComeTrue) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.draft_model = file.path(), .threads = 1, .kv_type = "f16"});
  for (const float temperature : {0.0F, 0.8F}) {
    Drafted plain(model, "full", "", temperature, 80), drafted(model, "full", "model", temperature, 80);
    const auto report = drafted.task->generation().result().draft;
    EXPECT_GT(report->drafted, 20);
    EXPECT_EQ(report->came_true, report->drafted);
    ASSERT_NO_FATAL_FAILURE(expect_same(drafted, plain));
  }
}

// The draft model's cache takes what was planned, to the byte, once it has read as much of the text.
TEST(Drafts, OfADraftModelTakeWhatIsPlanned) {
  const TemporaryFile file(make_random_model(crowd_spec())), small(make_random_model(draft_spec()));
  for (const std::string& path : {file.path(), small.path()}) {
    const auto model = load(file.path(), {.draft_model = path, .threads = 1, .page_slots = 16});
    Drafted drafted(model, "full", "model:most=2", 0, 10);
    DraftText& text = *drafted.text.draft;
    const std::int64_t tokens = text.sequence()->tables().next_index();
    EXPECT_GT(tokens, 66);
    EXPECT_EQ(drafted.runner.draft_bytes(),
              plan_draft_texts(model->draft->kv_shape, model->draft->config.context, tokens, 1).bytes);
    const KvCache& cache = drafted.runner.draft_model()->cache();
    const KvSequence* all[] = {&text.sequence()->tables()};
    cache.check_invariants(
        all, drafted.runner.cache()->budget().used() - drafted.runner.draft_bytes() + text.sequence()->state_bytes());
  }
}

// Where texts need the memory, the draft model gives it back, and the text is the same.
TEST(Drafts, OfADraftModelGiveWay) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.draft_model = file.path(), .threads = 1, .kv_type = "f16", .page_slots = 16});
  Drafted plain(model, "full", "", 0);
  const std::uint64_t needed = plain.runner.cache()->budget().peak();
  std::int64_t drafted_in_all = 0;
  for (int part = 0; part <= 4; ++part) {
    const std::uint64_t memory = needed + needed * static_cast<std::uint64_t>(part) / 4;
    Drafted tight(model, "full", "model", 0, 90, "", memory);
    EXPECT_EQ(tight.shown, plain.shown);
    EXPECT_EQ(tight.text.newest, plain.text.newest);
    EXPECT_TRUE(same_bits(tight.text.logits, plain.text.logits));
    EXPECT_LE(tight.runner.cache()->budget().peak(), memory);
    drafted_in_all += tight.task->generation().result().draft->drafted;
  }
  EXPECT_GT(drafted_in_all, 20);
}

// A model of other tokens is refused when it is opened, in one line that names what differs.
TEST(Drafts, OfADraftModelNeedTheSameVocabulary) {
  const auto refusal = [](const RandomModelSpec& spec) {
    const TemporaryFile file(make_random_model(crowd_spec())), draft(make_random_model(spec));
    const auto loaded = load_model({.model = file.path(), .draft_model = draft.path(), .threads = 1}, {});
    EXPECT_FALSE(loaded.ok());
    return loaded.status();
  };
  RandomModelSpec spec = draft_spec();
  spec.vocab = 330;
  EXPECT_EQ(refusal(spec).message(),
            "the draft model has 330 tokens, the model 300, and they must have one vocabulary; take a smaller model of "
            "the same family");
  spec = draft_spec();
  spec.vocabulary = invented_vocabulary(spec.vocab);
  spec.vocabulary->pieces[290] = "other";
  EXPECT_EQ(refusal(spec).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(refusal(spec).message().starts_with("token 290 is 'other' in the draft model and '"));
  const TemporaryFile file(make_random_model(crowd_spec()));
  EXPECT_EQ(load_model({.model = file.path(), .draft_model = "missing.gguf", .threads = 1}, {}).status().code(),
            StatusCode::kNotFound);
}

// Drafts of each kind under a grammar, which some of them break.
TEST(Drafts, UnderAGrammarChangeNoBit) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.draft_model = file.path(), .threads = 1, .page_slots = 16});
  for (const char* draft : {"ngram:match=1", "policy:streaming:sinks=2,window=20", "model"}) {
    std::int64_t came_true = 0, wrong = 0;
    for (const char* policy : {"full", "streaming:sinks=4,window=40"}) {
      for (const char* regex : {"(ab|ba|cab){40}", "[a-d]{70}", "(the fox and the well: [a-z]{3}, ){6}"}) {
        for (const float temperature : {0.0F, 0.9F}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", draft, policy, regex, temperature));
          Drafted plain(model, policy, "", temperature, 90, regex),
              drafted(model, policy, draft, temperature, 90, regex);
          const auto report = drafted.task->generation().result().draft;
          EXPECT_EQ(report->refused, "");
          EXPECT_EQ(plain.passes - drafted.passes, report->came_true);
          came_true += report->came_true;
          wrong += report->drafted - report->came_true;
          ASSERT_NO_FATAL_FAILURE(expect_same(drafted, plain));
        }
      }
    }
    EXPECT_GT(came_true, 50) << draft;
    EXPECT_GT(wrong, 10) << draft;
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
