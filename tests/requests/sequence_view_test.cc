// Views of requests: what they say is what the page tables hold, and they are made in bounded time.
#include "requests/sequence_view.h"

#include <gtest/gtest.h>

#include <set>

#include "kv/table.h"
#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "sequence/crowd.h"
#include "sequence/kv_report.h"
#include "support/scaling.h"

namespace kvasir::test {
namespace {

class SequenceViewTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = new TemporaryFile(make_random_model(small_spec()));
    model_ = new std::shared_ptr<LoadedModel>(load(file_->path(), {.threads = 1}));
  }
  static void TearDownTestSuite() {
    delete model_;
    delete file_;
  }

  static const std::shared_ptr<LoadedModel>& model() { return *model_; }

  static RequestOptions request(const std::string& label, const std::string& policy, int tenant = 0) {
    RequestOptions options;
    for (const TokenId token : random_tokens(150, small_spec().vocab, 5)) options.tokens.push_back(token);
    options.policy = policy;
    options.generate.max_tokens = 40;
    options.generate.ignore_eos = true;
    options.label = label;
    options.tenant = tenant;
    return options;
  }
  RequestId add(const RequestOptions& options) {
    auto text = encode_request(*model(), options);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return queue_.add(options, std::move(*text), std::move(*make_policy(options.policy)));
  }
  Result<TokenView> view(const TokenQuery& query) { return view_tokens(queue_, *model()->tokenizer, query); }
  void poll() { ASSERT_TRUE(queue_.poll().ok()); }

  std::shared_ptr<BatchRunner> runner_ =
      std::make_shared<BatchRunner>(model(), *new_cache(model(), std::uint64_t{1} << 28));
  RequestQueue queue_{runner_};

 private:
  static inline TemporaryFile* file_ = nullptr;
  static inline std::shared_ptr<LoadedModel>* model_ = nullptr;
};

// How many tables keep each token.
std::vector<int> kept_by_tables(const KvSequence& tables) {
  std::vector<int> kept(static_cast<std::size_t>(tables.next_index()));
  for (int t = 0; t < tables.tables(); ++t)
    for (const TokenIndex token : retained_ids(tables.table(t))) ++kept[static_cast<std::size_t>(token)];
  return kept;
}

std::vector<int> levels_of(const TokenView& view) {
  std::vector<int> levels;
  for (const TokenView::Kept& run : view.kept)
    levels.insert(levels.end(), static_cast<std::size_t>(run.buckets), run.level);
  return levels;
}

TEST_F(SequenceViewTest, SaysWhatPageTablesHold) {
  int evicted = 0;
  int partly = 0;
  for (const std::string& policy : all_policies_in_use()) {
    SCOPED_TRACE(policy);
    const RequestId id = add(request("a", policy));
    for (int pass = 0; queue_.unfinished() > 0; ++pass) {
      poll();
      const Sequence* sequence = queue_.sequence_of(id, 0);
      if (sequence == nullptr || pass % 7 != 0) continue;
      const KvSequence& tables = sequence->tables();
      const Result<TokenView> seen = view({.label = "a"});
      ASSERT_TRUE(seen.ok());
      ASSERT_EQ(seen->bucket, 1);
      ASSERT_EQ(seen->tables_shown, tables.tables());
      const std::vector<int> kept = kept_by_tables(tables);
      const std::vector<int> levels = levels_of(*seen);
      ASSERT_EQ(levels.size(), kept.size());
      for (std::size_t token = 0; token < kept.size(); ++token) {
        ASSERT_EQ(levels[token] == 0, kept[token] == 0) << token;
        ASSERT_EQ(levels[token] == TokenView::kLevels, kept[token] == tables.tables()) << token;
        evicted += kept[token] == 0 ? 1 : 0;
        partly += kept[token] > 0 && kept[token] < tables.tables() ? 1 : 0;
      }
      for (int t = 0; t < tables.tables(); ++t) {
        std::int64_t live = 0;
        for (const TokenView::Pages& run : seen->pages[static_cast<std::size_t>(t)]) live += run.pages * run.live;
        ASSERT_EQ(live, tables.table(t).tokens().stored());
      }
      const KvReport report = kv_report(*sequence);
      EXPECT_EQ(seen->sequence.seen, report.seen);
      EXPECT_EQ(seen->sequence.kept, report.kept);
      EXPECT_EQ(seen->sequence.bytes, report.bytes);
      EXPECT_EQ(seen->sequence.policy, report.policy);
      EXPECT_EQ(seen->sequence.state, SequenceView::State::kRunning);
    }
  }
  EXPECT_GT(evicted, 0);
  EXPECT_GT(partly, 0);
}

TEST_F(SequenceViewTest, GivesTheTextsInParts) {
  RequestOptions options = request("a", "full");
  options.tokens.clear();
  options.prompt = "The old man went down to the river, caf\u00e9 \u6771\u4eac \U0001F600 and on.";
  add(options);
  std::string text;
  std::int64_t next = 0;
  while (queue_.unfinished() > 0) {
    poll();
    const Result<TokenView> seen = view({.label = "a", .first = next, .most = 6});
    if (!seen.ok()) break;
    ASSERT_EQ(seen->first, next);
    ASSERT_LE(seen->texts.size(), 6u);
    std::set<std::int64_t> controls(seen->controls.begin(), seen->controls.end());
    for (std::size_t i = 0; i < seen->texts.size(); ++i)
      if (controls.count(next + static_cast<std::int64_t>(i)) == 0) text += seen->texts[i];
    next = seen->next();
  }
  EXPECT_EQ(text.substr(0, options.prompt.size()), options.prompt);
}

TEST_F(SequenceViewTest, ShowsATenantItsOwn) {
  add(request("a", "full", 1));
  add(request("b", "full", 2));
  poll();
  const SequenceList list = list_sequences(queue_, 2, 10);
  ASSERT_EQ(list.sequences.size(), 1u);
  EXPECT_EQ(list.sequences[0].label, "b");
  EXPECT_TRUE(view({.label = "b", .tenant = 2}).ok());
  EXPECT_EQ(view({.label = "a", .tenant = 2}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(list_sequences(queue_, 1, 0).left_out, 1);
}

TEST_F(SequenceViewTest, KeepsTheViewOfWhatHasEnded) {
  RequestOptions options = request("a", "streaming:window=20", 3);
  options.inspect = true;
  add(options);
  options.inspect = false;
  options.label = "b";
  add(options);
  while (queue_.unfinished() > 0) poll();
  const Result<TokenView> seen = view({.label = "a", .tenant = 3, .most = 1000});
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ(seen->sequence.state, SequenceView::State::kEnded);
  EXPECT_EQ(seen->sequence.kept, 24);
  EXPECT_EQ(levels_of(*seen).size(), static_cast<std::size_t>(seen->sequence.seen));
  EXPECT_EQ(seen->next(), seen->sequence.tokens);
  EXPECT_FALSE(view({.label = "a", .tenant = 2}).ok());
  EXPECT_FALSE(view({.label = "b", .tenant = 3}).ok());
  for (std::size_t i = 0; i < EndedViews::kMost; ++i) {
    options.inspect = true;
    options.label = "c";
    options.tokens.resize(1);
    options.generate.max_tokens = 1;
    add(options);
  }
  while (queue_.unfinished() > 0) poll();
  EXPECT_FALSE(view({.label = "a", .tenant = 3}).ok()) << "too many views are kept";
}

// Tokens in each of 32 layers and 8 heads, of which every fourth of the older half was evicted: the slowest kind.
class ManyTables {
 public:
  explicit ManyTables(TokenIndex tokens) {
    EXPECT_TRUE(tables_.append(static_cast<int>(tokens)).ok());
    KeepPlan plan;
    for (TokenIndex token = 0; token < tokens / 2; token += 4) plan.add_drop({token, token + 1});
    for (int t = 0; t < tables_.tables(); ++t) EXPECT_TRUE(tables_.table(t).apply(plan).ok());
  }
  TokenView view() const {
    TokenView view;
    view_tables(tables_, view);
    return view;
  }

 private:
  static KvCacheShape shape() {
    KvCacheShape shape;
    shape.layers = 32;
    shape.kv_heads = 8;
    shape.page.head_dim = 64;
    return shape;
  }
  std::unique_ptr<KvCache> cache_ = *KvCache::create(shape(), std::uint64_t{1} << 40);
  KvSequence tables_ = cache_->new_sequence({PolicyScope::kHead, {.lists = true, .original_positions = true}});
};

TEST_F(SequenceViewTest, TakesBoundedTime) {
  const ManyTables few(12'500);
  const ManyTables many(100'000);
  const TokenView view = many.view();
  std::int64_t buckets = 0;
  for (const TokenView::Kept& run : view.kept) buckets += run.buckets;
  EXPECT_LE(buckets, 8192);
  EXPECT_GE(buckets * view.bucket, 100'000);
  EXPECT_EQ(view.tables, 256);
  EXPECT_GE(view.tables_shown, 1);
  const auto seconds = [](const ManyTables& tables) {
    double least = 1;
    for (int i = 0; i < 20; ++i) least = std::min(least, cpu_seconds_of([&] { static_cast<void>(tables.view()); }));
    return least;
  };
  const double small = seconds(few);
  const double large = seconds(many);
  std::printf("processor time of a view: %.0f us of 12,500 tokens, %.0f us of 100,000\n", small * 1e6, large * 1e6);
  EXPECT_LT(large, 4 * small) << "eight times the size";
}

}  // namespace
}  // namespace kvasir::test
