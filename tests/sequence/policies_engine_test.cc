// Every policy that decides by table, through the engine: what a covering budget gives, what forks and chunks do to
// memory, and what must not matter.
#include <bit>
#include <map>

#include "kv/table.h"
#include "planning/memory_plan.h"
#include "sequence/policy_cases.h"

namespace kvasir::test {
namespace {

class PoliciesEngine : public ::testing::TestWithParam<std::string> {};

TEST_P(PoliciesEngine, ABudgetThatCoversEverythingGivesTheBitsOfFull) {
  const PolicyCases cases = cases_of(GetParam());
  const TemporaryFile file(make_random_model(small_spec()));  // 256 tokens of trained context
  const Text text(kCoveredTokens - 30, 30, 1);
  for (const char* type : {"f32", "f16", "q8", "k=q2,v=q4o", "q4,recent=20,rotate=kv"}) {
    for (const int slots : {16, 32, 64}) {
      // Tokens that move on are decoded, and encoded again.
      if (cases.name == "cascade" && parse_codec(type).codec.key >= KvType::kQ8) continue;
      std::vector<float> full;
      for (const int threads : {1, 3}) {
        const auto model = load(file.path(), {.threads = threads, .kv_type = type, .page_slots = slots});
        if (full.empty()) full = run_text(*new_runner(model, "full"), text, 0);
        for (const std::string& spec : cases.covering) {
          for (const int chunk : {0, 1}) {
            const auto runner = new_runner(model, spec);
            const std::vector<float> got = run_text(*runner, text, chunk);
            EXPECT_FALSE(runner->counters().first_dropped.has_value()) << spec << " does not cover the text";
            EXPECT_TRUE(same_bits(got, full))
                << spec << ' ' << type << " slots " << slots << " threads " << threads << " chunk " << chunk;
          }
        }
      }
    }
  }
}

// What a sequence's tables must be like after every pass.
void check_tables(const KvSequence& sequence, int slots) {
  for (int t = 0; t < sequence.tables(); ++t) {
    const PageTable& table = sequence.table(t);
    std::int64_t written = 0, columns = 0;
    for (int run = 0; run < table.layout().runs(); ++run)
      for (const std::uint32_t column : columns_of(table, run)) {
        written += table.columns()[column].used;
        ++columns;
        ASSERT_NE(table.columns()[column].live, 0u) << "a column that holds nothing";
      }
    ASSERT_EQ(table.tokens().dead_slots(), written - table.length());
    if (table.layout().runs() == 1) {
      // Encoded columns are padded, where there are no more of them than their tokens need beside the open ones.
      std::int64_t sealed = 0, in_sealed = 0;
      for (const std::uint32_t column : columns_of(table, 0)) {
        if (!table.columns()[column].sealed) continue;
        ++sealed;
        in_sealed += std::popcount(table.columns()[column].live);
      }
      const bool least = table.pages().format().encoded() && sealed == (in_sealed + slots - 1) / slots;
      ASSERT_TRUE(least || table.tokens().dead_slots() * 4 <= written)
          << table.tokens().dead_slots() << " of " << written;
      ASSERT_EQ(columns, (written + slots - 1) / slots);
      ASSERT_EQ(columns, table.columns().count());
    } else {
      // The end of the sinks' last page, and the start of each ring.
      ASSERT_LE(table.tokens().dead_slots(), (table.layout().runs() + 1) * (slots - 1));
    }
  }
}

// A cache of exactly the bytes that the plan promises for as many sequences as ever live: nothing is refused.
class Household {
 public:
  static constexpr int kMost = 3;         // sequences
  static constexpr int kTokens = 260;     // of one
  static constexpr int kMostPrompt = 90;  // of one feed

  Household(std::shared_ptr<LoadedModel> model, const std::string& spec, int chunk, std::uint64_t seed)
      : model_(std::move(model)), spec_(spec), chunk_(chunk), random_(seed) {
    for (int sequences = 1; sequences <= kMost; ++sequences)
      promised_.push_back(plan_kv_memory(model_->kv_shape, **make_policy(spec),
                                         {.tokens = kTokens, .prompt = kTokens, .chunk = chunk, .sequences = sequences})
                              .bytes);
    cache_ = *new_cache(model_, promised_.back());
    begin();
  }

  void step() {
    const int choice = draw(0, 99);
    if (choice < 50) return feed(pick(), draw(1, 12), SequenceRunner::Source::kGenerated);
    if (choice < 75) return feed(pick(), draw(1, kMostPrompt), SequenceRunner::Source::kPrompt);
    if (choice < 87) return fork(pick());
    if (choice < 97 && alive_.size() > 1) {
      alive_.erase(alive_.begin() + draw(0, static_cast<int>(alive_.size()) - 1));
      return check();
    }
    if (alive_.size() < kMost) begin();
  }

  int passes() const { return passes_; }
  int forks() const { return forks_; }
  bool dropped() const { return dropped_; }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::unique_ptr<SequenceRunner>& pick() {
    return alive_[static_cast<std::size_t>(draw(0, static_cast<int>(alive_.size()) - 1))];
  }
  void begin() { alive_.push_back(std::make_unique<SequenceRunner>(model_, cache_, std::move(*make_policy(spec_)))); }

  void feed(std::unique_ptr<SequenceRunner>& runner, int tokens, SequenceRunner::Source source) {
    const auto left = static_cast<int>(kTokens - runner->sequence().next_index());
    if (left == 0) {  // it has come to its end, and another begins
      runner = std::make_unique<SequenceRunner>(model_, cache_, std::move(*make_policy(spec_)));
      return check();
    }
    const auto text = random_tokens(std::min(tokens, left), small_spec().vocab, random_());
    const Status status = runner->feed(
        text, chunk_, SequenceRunner::Logits::kNone,
        [&](std::int64_t, int, std::span<const float>) {
          ++passes_;
          check();
          return !::testing::Test::HasFatalFailure();
        },
        source);
    ASSERT_TRUE(status.ok()) << status.message();
    dropped_ = dropped_ || runner->counters().first_dropped.has_value();
  }

  void fork(std::unique_ptr<SequenceRunner>& runner) {
    if (alive_.size() >= kMost) return;
    auto copy = runner->fork();
    ASSERT_TRUE(copy.ok()) << copy.status().message();
    ++forks_;
    alive_.push_back(std::move(*copy));
    check();
  }

  void check() {
    std::vector<const KvSequence*> sequences;
    for (const auto& runner : alive_) {
      sequences.push_back(&runner->sequence());
      check_tables(runner->sequence(), model_->kv_shape.page.slots);
    }
    std::uint64_t states = 0;
    for (const auto& runner : alive_) {
      if (!runner->whole().in_chunk() && runner->sequence().next_index() > 0) {
        EXPECT_EQ(runner->whole().state_bytes(), runner->policy().state_bytes());
      }
      states += runner->whole().state_bytes();
    }
    cache_->check_invariants(sequences, states);
    ASSERT_LE(cache_->budget().used(), promised_[alive_.size() - 1]) << "more than was promised";
  }

  std::shared_ptr<LoadedModel> model_;
  std::string spec_;
  int chunk_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> promised_;  // [sequences - 1]
  std::shared_ptr<KvCache> cache_;
  std::vector<std::unique_ptr<SequenceRunner>> alive_;
  int passes_ = 0;
  int forks_ = 0;
  bool dropped_ = false;
};

TEST_P(PoliciesEngine, RandomOperationsStayWithinThePlan) {
  const PolicyCases cases = cases_of(GetParam());
  RandomModelSpec spec = small_spec();
  spec.context = 100;
  const TemporaryFile file(make_random_model(spec));
  for (const auto& [type, slots] :
       {std::pair("f16", 16), std::pair("f16", 64), std::pair("q4", 16), std::pair("k=q8,v=q2,recent=24", 16)}) {
    const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = slots});
    for (const std::string& policy : cases.evicting) {
      for (const int chunk : {1, 16, 70}) {
        SCOPED_TRACE(fmt::format("{} {} slots {} chunk {}", policy, type, slots, chunk));
        Household household(model, policy, chunk, static_cast<std::uint64_t>(slots + chunk));
        for (int step = 0; step < 90; ++step) ASSERT_NO_FATAL_FAILURE(household.step());
        EXPECT_GT(household.passes(), 100);
        EXPECT_GT(household.forks(), 2);
        EXPECT_TRUE(household.dropped());
      }
    }
  }
}

// Hears the attention and does nothing with it.
class Deaf final : public ::kvasir::AttentionObserver {
 public:
  void observe(const ObservedAttention& attention) override { rows += attention.rows; }
  int rows = 0;
};

struct RunOutcome {
  std::vector<float> logits;
  std::vector<std::vector<TokenIndex>> kept;  // [tables]

  bool operator==(const RunOutcome& other) const { return same_bits(logits, other.logits) && kept == other.kept; }
};

RunOutcome outcome_of(SequenceRunner& runner, const Text& text, int chunk) {
  RunOutcome outcome{run_text(runner, text, chunk), {}};
  for (int t = 0; t < runner.sequence().tables(); ++t) outcome.kept.push_back(retained_ids(runner.sequence().table(t)));
  return outcome;
}

TEST_P(PoliciesEngine, ThreadsAndListenersChangeNoBits) {
  const PolicyCases cases = cases_of(GetParam());
  RandomModelSpec spec = small_spec();
  spec.context = 100;
  const TemporaryFile file(make_random_model(spec));
  const Text text(130, 60, 2);
  std::map<std::pair<std::string, std::size_t>, RunOutcome> first;
  for (const int threads : {1, 2, 5})
    for (const std::string type : {"f16", "q4"}) {
      const auto model = load(file.path(), {.threads = threads, .kv_type = type, .page_slots = 16});
      for (std::size_t i = 0; i < cases.evicting.size(); ++i) {
        const std::string& policy = cases.evicting[i];
        SCOPED_TRACE(fmt::format("{} {} threads {}", policy, type, threads));
        const auto runner = new_runner(model, policy);
        RunOutcome outcome = outcome_of(*runner, text, 32);
        EXPECT_TRUE(runner->counters().first_dropped.has_value()) << "nothing was dropped";
        const auto heard = new_runner(model, policy);
        Deaf tap;
        heard->listener().set_tap(&tap);
        EXPECT_TRUE(outcome_of(*heard, text, 32) == outcome) << "a listener changed something";
        EXPECT_EQ(tap.rows, 190 * spec.layers);
        if (threads == 1) {
          first[{type, i}] = std::move(outcome);
        } else {
          EXPECT_TRUE((outcome == first.at({type, i})));
        }
      }
    }
}

// Branches share pages until one of them writes; then each goes on as if it were alone.
TEST_P(PoliciesEngine, ForksContinueAsIfTheyWereAlone) {
  const PolicyCases cases = cases_of(GetParam());
  RandomModelSpec spec = small_spec();
  spec.context = 100;
  const TemporaryFile file(make_random_model(spec));
  const Text one(40, 50, 4), other(7, 80, 5);
  for (const char* type : {"f16", "q4", "q8,recent=20"})
    for (const std::string& policy : cases.evicting) {
      const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
      for (const int before : {20, 90, 96}) {
        SCOPED_TRACE(fmt::format("{} {} forked at {}", policy, type, before));
        const Text trunk(before, 13, 3);
        const auto alone = [&](const Text& text) {
          const auto runner = new_runner(model, policy);
          run_text(*runner, trunk, 32);
          return outcome_of(*runner, text, 32);
        };
        const auto runner = new_runner(model, policy);
        run_text(*runner, trunk, 32);
        auto branch = runner->fork();
        ASSERT_TRUE(branch.ok());
        EXPECT_TRUE(outcome_of(**branch, one, 32) == alone(one)) << "the branch";
        EXPECT_TRUE(outcome_of(*runner, other, 32) == alone(other)) << "the trunk";
      }
    }
}

// A pass that finds no room is as if it had never been asked for.
TEST_P(PoliciesEngine, RefusedPassesLeaveNoTrace) {
  const PolicyCases cases = cases_of(GetParam());
  RandomModelSpec spec = small_spec();
  spec.context = 100;
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto prompt = random_tokens(64, spec.vocab, 7);
  const Text rest(0, 50, 8);
  for (const std::string& policy : cases.evicting) {
    int refused = 0;
    for (const int before : {9, 30, 70, 90, 96, 120}) {
      SCOPED_TRACE(fmt::format("{} after {}", policy, before));
      const Text start(before - 8, 8, 6);
      const std::shared_ptr<KvCache> cache = *new_cache(model, std::uint64_t{1} << 20);
      SequenceRunner runner(model, cache, std::move(*make_policy(policy)));
      run_text(runner, start, 32);
      TokenIndex reached = 0;
      {
        KvSequence hog = cache->new_sequence();
        while (hog.append(16).ok()) {
        }
        const Status status = runner.feed(prompt, 32, SequenceRunner::Logits::kNone, {});
        if (!status.ok()) ++refused;
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::kResourceExhausted);
        reached = runner.sequence().next_index();
      }
      const auto fresh = new_runner(model, policy);
      run_text(*fresh, start, 32);
      if (reached > before)
        (void)fresh->feed(prompt, 32, SequenceRunner::Logits::kNone, [&](std::int64_t, int, std::span<const float>) {
          return fresh->sequence().next_index() < reached;
        });
      ASSERT_EQ(fresh->sequence().next_index(), reached);
      EXPECT_TRUE(outcome_of(runner, rest, 32) == outcome_of(*fresh, rest, 32));
    }
    EXPECT_GT(refused, 2) << policy;
  }
}

// A fork copies its pages at its next pass; where that is refused it has copied none.
TEST_P(PoliciesEngine, RefusedForksTakeNoMemory) {
  const TemporaryFile file(make_random_model(small_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto next = random_tokens(1, small_spec().vocab, 7);
  const Text start(60, 8, 6);
  for (const std::string& policy : cases_of(GetParam()).evicting) {
    SCOPED_TRACE(policy);
    const std::shared_ptr<KvCache> cache = *new_cache(model, std::uint64_t{1} << 20);
    SequenceRunner runner(model, cache, std::move(*make_policy(policy)));
    run_text(runner, start, 32);
    auto fork = runner.fork();
    ASSERT_TRUE(fork.ok());
    const auto feed = [&] {
      return (*fork)->feed(next, 1, SequenceRunner::Logits::kLast, {}, SequenceRunner::Source::kGenerated);
    };
    {
      KvSequence hog = cache->new_sequence();
      while (hog.append(16).ok()) {
      }
      const std::uint64_t before = cache->budget().used();
      EXPECT_EQ(feed().code(), StatusCode::kResourceExhausted);
      EXPECT_EQ(cache->budget().used(), before);
    }
    EXPECT_TRUE(feed().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(All, PoliciesEngine, ::testing::ValuesIn(table_policies()), policy_name);

// The suite above runs what is registered; this one notices cases of policies that are not.
TEST(PolicyCasesTest, AllOfThemAreOfRegisteredPolicies) {
  const std::vector<std::string> names = table_policies();
  EXPECT_GE(names.size(), 5u);
  for (const PolicyCases& cases : all_policy_cases())
    EXPECT_NE(std::ranges::find(names, cases.name), names.end()) << cases.name;
}

}  // namespace
}  // namespace kvasir::test
