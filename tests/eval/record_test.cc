// Recordings are compared with the reference model's attention, and with replay: the same policy on the recording keeps
// the tokens that the engine held.
#include "eval/record.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "replay/replay.h"
#include "support/engine_fixture.h"
#include "support/file_size_limit.h"

namespace kvasir::test {
namespace {

constexpr int kTokens = 120;
const RandomModelSpec kRecordedModel{.layers = 3, .heads = 4, .kv_heads = 2, .context = 64};

struct Recorded {
  ObservedText result;
  std::shared_ptr<AttentionTrace> trace;
};

// Every policy of the registry that decides by table, small enough to drop tokens of a text this short.
const std::map<std::string_view, std::vector<std::string>> kSmall = {
    {"cascade", {"size=16,n=4,sinks=2", "size=24,n=3,sinks=0,accept=3,reduce=max,gamma=0.5", "size=12,n=2,select=off"}},
    {"h2o", {"budget=20,recent=6,sinks=2", "budget=20,recent=0,every=7", "budget=30%,recent=4,heads=independent"}},
    {"tova", {"budget=20", "budget=15,every=4,pos=compact", "budget=20,heads=independent,pos=original"}},
    {"lethe", {"tau=1.5,start=16,recent=0.2,max=40", "tau=3,start=24,segments=5,max=44"}},
    {"random", {"budget=20,sinks=2,recent=3,seed=7", "budget=20,heads=independent"}}};

// These drop tokens of a prompt alone, so that their texts have to fit the context.
const std::map<std::string_view, std::vector<std::string>> kSmallOfPrompts = {
    {"snapkv",
     {"budget=20,window=6", "budget=30%,window=8,kernel=3,pool=max", "budget=20,window=6+h2o:budget=16,recent=4"}},
    {"pyramidkv", {"budget=24,window=6,beta=4"}},
    {"cake", {"budget=24,window=8", "budget=24,window=8+lethe:tau=1.5,start=16"}},
    {"keydiff", {"budget=20", "budget=20,measure=distance+h2o:budget=16,recent=4"}},
    {"expected", {"budget=20,sinks=2", "budget=24,spread=off,norm=off+h2o:budget=16,recent=4"}},
    {"triattention", {"budget=20,recent=4,every=5", "budget=20,recent=4,sinks=2,prompt=blocks"}},
    {"rkv", {"budget=20,window=4,every=5", "budget=24,window=6,alike=0.2,every=0+h2o:budget=16,recent=4"}},
    {"matching", {"budget=20,recent=4,every=5", "budget=20,recent=4,fit=off+h2o:budget=16,recent=4"}},
    {"vase", {"budget=20,recent=4,every=5", "budget=20,recent=4,wide=50%,draw=off+h2o:budget=16,recent=4"}},
    {"lagkv", {"budget=24,lag=6", "budget=30%,lag=8,rank=all"}}};

bool reads_kv(const RetentionPolicy& policy) {
  return policy.as<ReadsKv>() != nullptr || policy.as<ReadsHeldKv>() != nullptr;
}

class Record : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = std::make_unique<TemporaryFile>(make_random_model(kRecordedModel));
    model_ = load(file_->path(), {.threads = 2, .kv_type = "f32"});
    ASSERT_NE(model_, nullptr);
  }
  static void TearDownTestSuite() {
    model_.reset();
    file_.reset();
  }

  static Result<AttentionTraceWriter> writer(std::int64_t tokens, bool with_keys = false) {
    return AttentionTraceWriter::open(path(), trace_shape(*model_, tokens, with_keys));
  }
  static std::string path() { return file_->path() + ".npy"; }

  static Recorded record(int tokens, const ObservedTextOptions& options, bool with_keys = false) {
    Recorded recorded;
    auto out = writer(tokens, with_keys);
    EXPECT_TRUE(out.ok()) << out.status().message();
    auto result = record_attention(model_, random_tokens(tokens, kRecordedModel.vocab, 11), options, *out, {});
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(out->finish().ok());
    auto trace = AttentionTrace::open(path());
    EXPECT_TRUE(trace.ok()) << trace.status().message();
    std::filesystem::remove(path());  // stays mapped
    if (!result.ok() || !trace.ok()) return recorded;
    const Status sound = trace->check({});
    EXPECT_TRUE(sound.ok()) << sound.message();
    recorded.result = std::move(*result);
    recorded.trace = std::make_shared<AttentionTrace>(std::move(*trace));
    return recorded;
  }

  static std::unique_ptr<TemporaryFile> file_;
  static std::shared_ptr<LoadedModel> model_;
};
std::unique_ptr<TemporaryFile> Record::file_;
std::shared_ptr<LoadedModel> Record::model_;

// The largest difference from the reference's weights; both zero where the reference sees nothing (checked).
double difference(const AttentionTrace& trace, const std::vector<RowView>& views, const std::string& model) {
  const auto file = gguf::File::open(model);
  EXPECT_TRUE(file.ok());
  const std::vector<TokenId> tokens = random_tokens(static_cast<int>(views.size()), kRecordedModel.vocab, 11);
  double most = 0;
  std::vector<float> got;
  ReferenceModel(*file).logits(tokens, views, [&](int layer, int row, int head, std::span<const double> weights) {
    std::vector<double> want(static_cast<std::size_t>(row) + 1);
    const std::vector<int>& ids = views[static_cast<std::size_t>(row)].ids;
    for (std::size_t i = 0; i < ids.size(); ++i) want[static_cast<std::size_t>(ids[i])] = weights[i];
    got.resize(want.size());
    trace.read(layer, head, row, got);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i] == 0, want[i] == 0) << "layer " << layer << " row " << row << " token " << i;
      most = std::max(most, std::abs(static_cast<double>(got[i]) - want[i]));
    }
  });
  return most;
}

TEST_F(Record, HoldsTheWeightsOfTheReference) {
  for (const auto& [prefill, chunk] : std::vector<std::pair<int, int>>{{0, 0}, {40, 0}, {40, 7}, {60, 16}}) {
    SCOPED_TRACE(fmt::format("prefill {} chunk {}", prefill, chunk));
    EXPECT_LT(difference(*record(60, {"full", prefill, chunk}).trace, full_views(60), file_->path()), 2e-6);
    // Chunks change nothing where the policy decides by range.
    const Recorded window = record(60, {"window:size=20", prefill, chunk});
    EXPECT_LT(difference(*window.trace, window_views(60, 20), file_->path()), 2e-6);
    const Recorded streaming = record(60, {"streaming:sinks=2,window=10,every=3", prefill, chunk});
    EXPECT_LT(difference(*streaming.trace, streaming_views(60, 2, 10, 3), file_->path()), 2e-6);
    EXPECT_EQ(streaming.result.chunk, prefill == 0 ? 0 : chunk == 0 ? kDefaultChunk : chunk);
  }
}

std::vector<std::vector<std::vector<TokenIndex>>> replayed(const AttentionTrace& trace, const std::string& policy,
                                                           const ObservedTextOptions& options) {
  auto made = make_policy(policy);
  EXPECT_TRUE(made.ok());
  const auto result =
      replay(trace, **made, {options.prefill, options.prefill > 0 ? options.chunk : 0, kRecordedModel.kv_heads}, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  std::vector<std::vector<std::vector<TokenIndex>>> final;
  for (const ReplayedLayer& layer : result->layers)
    for (auto* tables = &final.emplace_back(); const ReplayedTable& table : layer.tables)
      tables->push_back(table.final);
  return final;
}

TEST_F(Record, ReplayKeepsWhatTheEngineHeld) {
  int by_table = 0;
  for (const PolicyInfo* info : all_policies()) {
    if (info->evaluation_only) continue;
    const auto made = make_policy(info->name);
    ASSERT_TRUE(made.ok());
    if (!(*made)->traits().compacts) continue;
    if ((*made)->as<RepeatsText>() != nullptr) continue;  // it is not replayed
    ++by_table;
    if (kSmallOfPrompts.contains(info->name)) continue;
    ASSERT_TRUE(kSmall.contains(info->name)) << "no small '" << info->name << "' to test with";
    for (const std::string& small : kSmall.at(info->name)) {
      const std::string policy = std::string(info->name) + ":" + small;
      for (const auto& [prefill, chunk] :
           std::vector<std::pair<int, int>>{{0, 0}, {20, 20}, {70, 16}, {50, 1}, {kTokens, 13}}) {
        SCOPED_TRACE(fmt::format("{} prefill {} chunk {}", policy, prefill, chunk));
        const ObservedTextOptions options{policy, prefill, chunk};
        const auto [result, trace] = record(kTokens, options);
        ASSERT_NE(trace, nullptr);
        EXPECT_EQ(replayed(*trace, policy, options), result.final);
        EXPECT_EQ(result.by_head, (*make_policy(policy))->traits().scope == PolicyScope::kHead);
        ASSERT_EQ(result.final.size(), static_cast<std::size_t>(kRecordedModel.layers));
        for (const auto& tables : result.final) {
          ASSERT_EQ(tables.size(), static_cast<std::size_t>(result.by_head ? kRecordedModel.kv_heads : 1));
          for (const std::vector<TokenIndex>& ids : tables) EXPECT_LT(ids.size(), kTokens) << "nothing was dropped";
        }
      }
    }
  }
  EXPECT_EQ(by_table, static_cast<int>(kSmall.size() + kSmallOfPrompts.size()));
}

TEST_F(Record, WhatNeedsTheModelIsNotReplayed) {
  const auto [result, trace] = record(40, {"full", 0, 0});
  ASSERT_NE(trace, nullptr);
  for (const char* policy : {"quest", "kvzip"})
    EXPECT_EQ(check_replayable(*trace, **make_policy(policy), {}).code(), StatusCode::kUnsupported) << policy;
}

// Parts that evict ranges evict single tokens in a composition: what a row sees is what the tables held before it.
TEST_F(Record, CompositionsOfRangesAreReplayedAsTheyRan) {
  for (const std::string policy : {"full+streaming:sinks=2,window=18", "window:size=30+streaming:sinks=2,window=18"})
    for (const auto& [prefill, chunk] : std::vector<std::pair<int, int>>{{50, 13}, {50, 50}, {20, 1}}) {
      SCOPED_TRACE(fmt::format("{} prefill {} chunk {}", policy, prefill, chunk));
      const ObservedTextOptions options{policy, prefill, chunk};
      const auto [result, trace] = record(60, options);  // the context has 64
      ASSERT_NE(trace, nullptr);
      EXPECT_EQ(replayed(*trace, policy, options), result.final);
      EXPECT_EQ(result.final.front().front().size(), 20u);
    }
}

// Once a prompt has ended, keeps the tokens of each KV head whose keys and values are the largest in the directions of
// its queries' mean and covariance: whatever it is shown takes part.
class JudgeAtEnd final : public RetentionPolicy, public ReadsKv, public SumsQueries {
 public:
  JudgeAtEnd()
      : RetentionPolicy({.spec = "judge",
                         .scope = PolicyScope::kHead,
                         .positions = PositionMode::kOriginal,
                         .compacts = true,
                         .holds_prompts = true}) {}

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<JudgeAtEnd>(*this); }
  void begin(const TableLayout& layout) override {
    scores_.resize(static_cast<std::size_t>(layout.tables()));
    mean_.resize(scores_.size());
  }
  TokenIndex seen() const override { return seen_; }
  void retained(int, int, std::vector<IndexRange>&) const override {}
  std::int64_t exact_prefix(std::int64_t) const override { return 0; }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }

  void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) override {
    for (int row = 0; row < chunk.rows; ++row) {
      double& score = scores_[static_cast<std::size_t>(table)].emplace_back(
          0.01 * static_cast<double>(kv.rotations[static_cast<std::size_t>(row)]));
      for (int i = 0; i < kv.head_dim; ++i) {
        const double key = kv.key(0, row)[static_cast<std::size_t>(i)];
        score += key * mean_[static_cast<std::size_t>(table)][static_cast<std::size_t>(i)] +
                 std::abs(kv.value(0, row)[static_cast<std::size_t>(i)]);
      }
    }
  }
  bool wants_queries(const PolicyChunk& chunk, int row) const override { return (chunk.first + row) % 2 == 0; }
  void read_queries(const PolicyChunk&, int table, const QuerySums& queries) override {
    std::vector<double>& mean = mean_[static_cast<std::size_t>(table)];
    mean.assign(static_cast<std::size_t>(queries.head_dim), 0.0);
    for (int head = 0; head < queries.heads; ++head)
      for (int i = 0; i < queries.head_dim; ++i)
        mean[static_cast<std::size_t>(i)] +=
            (queries.sum(head, i) + queries.product(head, 0, i)) / static_cast<double>(queries.rows);
  }
  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override {
    seen_ = chunk.end();
    if (!chunk.ends_prompt()) return;
    const std::vector<double>& scores = scores_[static_cast<std::size_t>(table)];
    std::vector<double> sorted = scores;
    std::ranges::sort(sorted);
    for (TokenIndex token = 0; token < std::ssize(scores); ++token)
      if (scores[static_cast<std::size_t>(token)] < sorted[sorted.size() / 2]) plan.add_drop({token, token + 1});
  }

 private:
  Capabilities capabilities() const override { return Capabilities().with<ReadsKv, SumsQueries>(this); }
  void save_state(ByteWriter&) const override {}
  bool restore_state(ByteReader&) override { return false; }

  std::vector<std::vector<double>> scores_, mean_;  // [tables]
  TokenIndex seen_ = 0;
};

TEST_F(Record, ReplayShowsThePolicyTheSameKeysValuesAndQueries) {
  constexpr int kFits = 60;
  for (const int chunk : {16, 60}) {
    SequenceRunner runner(model_, *new_cache(model_, std::uint64_t{1} << 28), std::make_unique<JudgeAtEnd>());
    ASSERT_TRUE(runner.feed(random_tokens(kFits, kRecordedModel.vocab, 11), chunk, Logits::kNone, {}).ok());
    const Recorded recorded = record(kFits, {"full", kFits, 23}, true);
    ASSERT_NE(recorded.trace, nullptr);
    JudgeAtEnd policy;
    const auto result = replay(*recorded.trace, policy, {kFits, chunk}, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    const auto held = retained_by_layer(runner.sequence(), kRecordedModel.layers);
    for (std::size_t layer = 0; layer < held.size(); ++layer)
      for (std::size_t head = 0; head < held[layer].size(); ++head) {
        EXPECT_EQ(held[layer][head].size(), kFits / 2u);
        EXPECT_EQ(result->layers[layer].tables[head].final, held[layer][head]) << layer << " " << head;
      }
    EXPECT_NE(held[0][0], held[0][1]);
  }
}

TEST_F(Record, APolicyThatReadsWhatIsNotThereIsRefused) {
  JudgeAtEnd policy;
  const Status missing = replay(*record(20, {"full", 20, 8}).trace, policy, {20, 8}, {}).status();
  EXPECT_EQ(missing.code(), StatusCode::kUnsupported);
  EXPECT_NE(missing.message().find("kvasir record --with-keys"), std::string::npos) << missing.message();
  const Status other = replay(*record(20, {"full", 20, 8}, true).trace, policy, {20, 8, 4}, {}).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("2 KV heads, not 4"), std::string::npos) << other.message();
}

TEST_F(Record, ReplayKeepsWhatWasHeldByRangeToo) {
  for (const std::string policy : {"full", "window:size=20", "streaming:sinks=2,window=10,every=3"})
    for (const auto& [prefill, chunk] : std::vector<std::pair<int, int>>{{0, 0}, {45, 16}}) {
      const ObservedTextOptions options{policy, prefill, chunk};
      const auto [result, trace] = record(60, options);
      ASSERT_NE(trace, nullptr);
      EXPECT_EQ(replayed(*trace, policy, options), result.final) << policy;
    }
}

TEST_F(Record, ReplayKeepsWhatPoliciesOfPromptsHeld) {
  constexpr std::int64_t kFits = 60;
  for (const auto& [name, specs] : kSmallOfPrompts)
    for (const std::string& small : specs)
      for (const auto& [prefill, chunk] : std::vector<std::pair<int, int>>{{50, 16}, {40, 40}, {45, 1}}) {
        const std::string policy = std::string(name) + ":" + small;
        SCOPED_TRACE(fmt::format("{} prefill {} chunk {}", policy, prefill, chunk));
        const ObservedTextOptions options{policy, prefill, chunk};
        const auto [result, trace] = record(kFits, options, reads_kv(**make_policy(policy)));
        ASSERT_NE(trace, nullptr);
        EXPECT_TRUE(result.by_head);
        EXPECT_EQ(replayed(*trace, policy, options), result.final);
        for (const auto& tables : result.final)
          for (const std::vector<TokenIndex>& ids : tables) EXPECT_LT(ids.size(), kFits) << "nothing was dropped";
      }
}

// A row sees the tokens held at the end of the text before it (known from a shorter recording), and itself.
TEST_F(Record, RowsSeeWhatWasHeld) {
  std::vector<float> row(kTokens);
  for (const auto& [name, specs] : kSmall) {
    const std::string policy = std::string(name) + ":" + specs.back();
    const auto [all, trace] = record(kTokens, {policy, 40, 16});
    ASSERT_NE(trace, nullptr);
    for (const int before : {60, kTokens - 1}) {
      const ObservedText shorter = record(before, {policy, 40, 16}).result;
      for (int layer = 0; layer < kRecordedModel.layers; ++layer)
        for (int head = 0; head < kRecordedModel.heads; ++head) {
          const auto& tables = shorter.final[static_cast<std::size_t>(layer)];
          std::vector<TokenIndex> want =
              tables[tables.size() > 1 ? static_cast<std::size_t>(head * kRecordedModel.kv_heads / kRecordedModel.heads)
                                       : 0];
          want.push_back(before);
          trace->read(layer, head, before, row);
          std::vector<TokenIndex> got;
          for (std::size_t id = 0; id < row.size(); ++id)
            if (row[id] != 0) got.push_back(static_cast<TokenIndex>(id));
          EXPECT_EQ(got, want) << policy << " layer " << layer << " head " << head;
        }
    }
  }
}

TEST_F(Record, Refuses) {
  const auto text = random_tokens(100, kRecordedModel.vocab, 1);
  auto out = writer(100);
  ASSERT_TRUE(out.ok());
  for (const auto& [options, part] : std::vector<std::pair<ObservedTextOptions, std::string>>{
           {{"full"}, "room for 64"},
           {{"nope"}, "unknown retention policy"},
           {{"recompute"}, "evaluation of perplexity only"},
           {{"tova:budget=20", -1}, "from 0 to the 100"},
           {{"tova:budget=20", 101}, "from 0 to the 100"},
           {{"tova:budget=20", 50, -1}, "chunk"},
           {{"tova:budget=20", 50, 50}, "trained context of 64"},
           {{"tova:budget=80%", 0}, "there is no room for the next 1:"}}) {
    const auto result = record_attention(model_, text, options, *out, {});
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  }
  EXPECT_TRUE(check_record_options(*model_, kMostTraceTokens, {"tova:budget=20"}).ok());
  for (const std::int64_t tokens : {std::int64_t{0}, kMostTraceTokens + 1})
    EXPECT_EQ(check_record_options(*model_, tokens, {"tova:budget=20"}).code(), StatusCode::kInvalidArgument);
}

TEST_F(Record, StopsWhenAsked) {
  const auto text = random_tokens(50, kRecordedModel.vocab, 1);
  auto out = writer(50);
  ASSERT_TRUE(out.ok());
  std::vector<std::int64_t> done;
  const auto listen = [&](std::int64_t now, std::int64_t all) {
    EXPECT_EQ(all, 50);
    done.push_back(now);
    return now < 49;
  };
  const auto result = record_attention(model_, text, {"full", 48, 20}, *out, listen);
  EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(done, (std::vector<std::int64_t>{20, 40, 48, 49}));
  // In the last pass too.
  EXPECT_EQ(record_attention(model_, text, {"full", 50, 50}, *out, [](auto, auto) { return false; }).status().code(),
            StatusCode::kCancelled);
}

TEST_F(Record, AFullDiskIsAnError) {
  const auto text = random_tokens(50, kRecordedModel.vocab, 1);
  auto out = writer(50);
  ASSERT_TRUE(out.ok());
  const FileSizeLimit limit(1 << 16);
  const auto result = record_attention(model_, text, {"full"}, *out, {});
  EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted) << result.status().message();
}

TEST(RecordDamaged, AttentionThatIsNotANumber) {
  const TemporaryFile file(make_model(kRecordedModel, [](const std::string& name, int rows, int columns) {
    const bool norm = name.find("norm") != std::string::npos;
    return std::vector<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns),
                              norm                            ? 1.0F
                              : name == "blk.1.attn_k.weight" ? 3e38F
                                                              : 0.5F);
  }));
  const auto model = load(file.path(), {.threads = 1, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const std::string path = file.path() + ".npy";
  auto out = AttentionTraceWriter::open(path, {kRecordedModel.layers, kRecordedModel.heads, 5});
  ASSERT_TRUE(out.ok());
  const auto result = record_attention(model, random_tokens(5, kRecordedModel.vocab, 1), {"full"}, *out, {});
  EXPECT_EQ(result.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(result.status().message().find("layer 1 is not a number"), std::string::npos) << result.status().message();
}

}  // namespace
}  // namespace kvasir::test
