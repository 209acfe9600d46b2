// What kvpress keeps (kvpress/README.md): the same tokens, decided from the same keys, values and queries.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "replay/npy.h"
#include "retention/layer_choice.h"
#include "retention/registry.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

using Json = nlohmann::json;
using Kept = std::vector<TokenIndex>;

constexpr int kLayers = 3, kKvHeads = 3, kHeads = 9, kDim = 64;

std::string read(const std::string& name) {
  std::ifstream file(source_dir() + "/tests/retention/kvpress/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// An array of four dimensions at most; the first index is a layer.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> floats;

  explicit Array(const std::string& name) {
    const std::string bytes = read(name);
    const auto header = parse_npy_header(std::as_bytes(std::span(bytes)), name);
    EXPECT_TRUE(header.ok()) << header.status().message();
    if (!header.ok()) return;
    shape = header->shape;
    floats.resize(header->data_bytes / sizeof(float));
    EXPECT_EQ(bytes.size(), header->data_offset + header->data_bytes) << name;
    std::memcpy(floats.data(), bytes.data() + header->data_offset, header->data_bytes);
  }
  // Returns the row of a layer, a head and a token, or less of them.
  std::span<const float> row(std::initializer_list<std::int64_t> indices) const {
    std::size_t at = 0, dimension = 0, size = 1;
    for (const std::int64_t index : indices)
      at = at * static_cast<std::size_t>(shape[dimension++]) + static_cast<std::size_t>(index);
    for (; dimension < shape.size(); ++dimension) size *= static_cast<std::size_t>(shape[dimension]);
    return std::span(floats).subspan(at * size, size);
  }
};

// transformers turns the pairs (i, i + d / 2), Kvasir (2 i, 2 i + 1).
int place_of(int i) {
  return i < kDim / 2 ? 2 * i : 2 * (i - kDim / 2) + 1;
}

struct Fixture {
  Json json = Json::parse(read("fixtures.json"));
  Array keys{"keys.npy"}, values{"values.npy"}, mean{"query_mean.npy"}, covariance{"query_covariance.npy"};
  Array attention{"attention.npy"}, scores{"scores.npy"}, projected{"projected_values.npy"};
  std::int64_t tokens() const { return std::ssize(json["tokens"]); }

  TableLayout layout() const {
    QueryTurn turn{{}, 1, 1 / std::sqrt(static_cast<float>(kDim))};
    for (int i = 0; i < kDim / 2; ++i)
      turn.frequencies.push_back(static_cast<float>(std::pow(json["rope_theta"].get<double>(), -2.0 * i / kDim)));
    return {.layers = kLayers,
            .per_layer = kKvHeads,
            .heads = kHeads / kKvHeads,
            .head_dim = kDim,
            .turns = std::make_shared<const std::vector<QueryTurn>>(kLayers, turn)};
  }

  // Returns keys or values of tokens, in Kvasir's order.
  std::vector<float> rows(const Array& array, int table, const Kept& tokens) const {
    std::vector<float> all(tokens.size() * kDim);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto row = array.row({table / kKvHeads, table % kKvHeads, tokens[i]});
      for (int c = 0; c < kDim; ++c)
        all[i * kDim + static_cast<std::size_t>(place_of(c))] = row[static_cast<std::size_t>(c)];
    }
    return all;
  }
};

const Fixture& fixture() {
  static const Fixture loaded;
  return loaded;
}

class FixtureKv final : public HeldKv {
 public:
  FixtureKv(int table, Kept tokens) : table_(table), tokens_(std::move(tokens)) {}
  std::int64_t tokens() const override { return std::ssize(tokens_); }
  void visit(Sides, const Visit& visit) override {
    const std::vector<float> keys = fixture().rows(fixture().keys, table_, tokens_);
    const std::vector<float> values = fixture().rows(fixture().values, table_, tokens_);
    visit({0, 0, {1, static_cast<int>(tokens_.size()), kDim, keys, values, tokens_}});
  }
  void projected_norms(std::span<double> norms) override {
    constexpr int kGroup = kHeads / kKvHeads;
    for (std::size_t i = 0; i < norms.size(); ++i) {
      norms[i] = 0;
      for (int h = 0; h < kGroup; ++h)
        norms[i] += double{fixture().projected.row(
                        {table_ / kKvHeads, 0, table_ % kKvHeads * kGroup + h})[static_cast<std::size_t>(tokens_[i])]} /
                    kGroup;
    }
  }

 private:
  int table_;
  Kept tokens_;
};

// Shows the sums of the queries of all tokens but the sinks.
void show_queries(SumsQueries& policy, const PolicyChunk& chunk, int table) {
  constexpr int kGroup = kHeads / kKvHeads;
  const std::int64_t rows = fixture().tokens() - fixture().json["sinks"].get<std::int64_t>();
  std::vector<double> sums(kGroup * kDim), products(kGroup * kDim * (kDim + 1) / 2);
  for (int h = 0; h < kGroup; ++h) {
    const int head = table % kKvHeads * kGroup + h;
    const auto mean = fixture().mean.row({table / kKvHeads, head});
    const auto covariance = fixture().covariance.row({table / kKvHeads, head});
    for (int i = 0; i < kDim; ++i) {
      const int a = place_of(i);
      sums[static_cast<std::size_t>(h * kDim + a)] = static_cast<double>(rows) * mean[static_cast<std::size_t>(i)];
      for (int j = 0; j < kDim; ++j) {
        const int b = place_of(j);
        if (b > a) continue;
        products[static_cast<std::size_t>(h * kDim * (kDim + 1) / 2 + a * (a + 1) / 2 + b)] =
            static_cast<double>(rows) *
            (double{covariance[static_cast<std::size_t>(i * kDim + j)]} +
             double{mean[static_cast<std::size_t>(i)]} * double{mean[static_cast<std::size_t>(j)]});
      }
    }
  }
  policy.read_queries(chunk, table, {rows, kGroup, kDim, sums, products});
}

// Shows the rows that the policy wants, which must be among the last ones, reduced over the query heads of a KV head.
void show_masses(ObservesMasses& policy, const PolicyChunk& chunk, int table) {
  constexpr int kGroup = kHeads / kKvHeads;
  const auto rows = static_cast<int>(fixture().attention.shape[2]);
  for (int row = 0; row < chunk.rows; ++row) {
    if (!policy.wants_row(chunk, row)) continue;
    const std::int64_t token = chunk.first + row, stored = token - (fixture().tokens() - rows);
    ASSERT_GE(stored, 0);
    std::vector<double> mass(static_cast<std::size_t>(token + 1));
    for (int h = 0; h < kGroup; ++h) {
      const auto weights = fixture().attention.row({table / kKvHeads, table % kKvHeads * kGroup + h, stored});
      for (std::size_t i = 0; i < mass.size(); ++i) {
        if (policy.reductions().front() == MassReduction::kMax) {
          mass[i] = std::max(mass[i], double{weights[i]});
        } else {
          ASSERT_EQ(policy.reductions().front(), MassReduction::kMean);
          mass[i] += double{weights[i]} / kGroup;
        }
      }
    }
    const std::span<const double> masses[] = {mass};
    policy.observe(chunk, table, row, masses);
  }
}

// Returns what each table keeps of a prompt of the first `tokens` tokens, 0: all, read in a chunk of `first` tokens and
// others of `size`. `used`: if not null, gets the policy.
std::vector<Kept> kept_by(const std::string& spec, std::int64_t first, std::int64_t size,
                          std::unique_ptr<RetentionPolicy>* used = nullptr, std::int64_t tokens = 0) {
  if (tokens == 0) tokens = fixture().tokens();
  auto policy = make_policy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  if (!policy.ok()) return {};
  const TableLayout layout = fixture().layout();
  (*policy)->begin(layout);
  std::vector<Kept> kept(static_cast<std::size_t>(layout.tables()));
  for (std::int64_t at = 0; at < tokens;) {
    const std::int64_t rows = std::min(at == 0 ? first : size, tokens - at);
    const PolicyChunk chunk{at, static_cast<int>(rows), true, tokens - at - rows};
    for (int t = 0; t < layout.tables(); ++t) {
      Kept& own = kept[static_cast<std::size_t>(t)];
      for (TokenIndex token = at; token < at + rows; ++token) own.push_back(token);
      if (ObservesMasses* observer = (*policy)->as<ObservesMasses>()) show_masses(*observer, chunk, t);
      if (SumsQueries* reader = (*policy)->as<SumsQueries>()) show_queries(*reader, chunk, t);
      if (ReadsHeldKv* reader = (*policy)->as<ReadsHeldKv>(); reader != nullptr && reader->wants_held(chunk, t)) {
        FixtureKv kv(t, own);
        reader->read_held(chunk, t, kv);
      }
    }
    KeepPlan plan;
    for (int t = 0; t < layout.tables(); ++t) {
      plan.clear();
      (*policy)->end_chunk(chunk, t, plan);
    }
    for (int t = 0; t < layout.tables(); ++t) {
      plan.clear();
      (*policy)->finish_chunk(chunk, t, plan);
      std::vector<IndexRange> ranges;
      (*policy)->retained(t, 0, ranges);
      Kept& own = kept[static_cast<std::size_t>(t)];
      own.clear();
      for (const IndexRange& range : ranges)
        for (TokenIndex token = range.begin; token < range.end; ++token) own.push_back(token);
    }
    at += rows;
  }
  if (used != nullptr) *used = std::move(*policy);
  return kept;
}

void expect_kept(const Json& entry, const std::vector<Kept>& kept) {
  for (int layer = 0; layer < kLayers; ++layer)
    for (int head = 0; head < kKvHeads; ++head)
      EXPECT_EQ(kept[static_cast<std::size_t>(layer * kKvHeads + head)],
                entry["kept"][static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)].get<Kept>())
          << "layer " << layer << ", KV head " << head;
}

// Returns the entries of a press, for the shares removed whose result no tie decided.
std::vector<Json> entries_of(const std::string& press) {
  std::vector<Json> entries;
  for (const Json& entry : fixture().json["entries"])
    if (entry["press"] == press && entry.value("margin", 1.0) != 0) entries.push_back(entry);
  EXPECT_FALSE(entries.empty()) << press;
  return entries;
}

// Returns the tokens that a head keeps on average.
std::int64_t budget_of(const Json& entry) {
  return static_cast<std::int64_t>(static_cast<double>(fixture().tokens()) * (1 - entry["ratio"].get<double>()));
}

// The entries of a press, for both shares removed. `{}` in `spec` stands for the budget.
void compare(const std::string& press, const std::string& spec, std::int64_t block = 0) {
  for (const Json& entry : entries_of(press)) {
    const std::int64_t budget = budget_of(entry);
    const std::string given = fmt::format(fmt::runtime(spec), budget);
    SCOPED_TRACE(given);
    expect_kept(entry, kept_by(given, block > 0 ? budget : fixture().tokens(), block));
  }
}

TEST(Kvpress, KeyDiff) {
  compare("keydiff", "keydiff:budget={}");
  compare("manifold", "keydiff:budget={},measure=distance");
  compare("knorm", "keydiff:budget={},measure=norm");
}

TEST(Kvpress, BlocksOfKeyDiff) {
  compare("block keydiff", "keydiff:budget={},prompt=blocks", 128);
  compare("block keydiff size=16", "keydiff:budget={},prompt=blocks", 16);
  compare("block manifold", "keydiff:budget={},measure=distance,prompt=blocks", 128);
  compare("block knorm", "keydiff:budget={},measure=norm,prompt=blocks", 128);
}

TEST(Kvpress, LagKv) {
  compare("lagkv", "lagkv:budget={}");
  compare("lagkv lag=32", "lagkv:budget={},lag=32");
  compare("lagkv cross", "lagkv:budget={},rank=all");
  compare("lagkv lag=32 cross", "lagkv:budget={},lag=32,rank=all");
}

TEST(Kvpress, Expected) {
  compare("expected", "expected:budget={}");
  compare("expected epsilon=0.01", "expected:budget={},epsilon=0.01");
  compare("expected vnorm=off", "expected:budget={},norm=off");
  compare("expected covariance=off", "expected:budget={},spread=off");
}

TEST(Kvpress, SnapKv) {
  compare("snapkv", "snapkv:budget={},window=32,kernel=5");
  compare("snapkv kernel=7", "snapkv:budget={},window=32,kernel=7");
  compare("snapkv window=16 kernel=15", "snapkv:budget={},window=16,kernel=15");
}

// kvpress counts the window among what a head keeps in any case; here only what is ranked counts.
void compare_shared_among_heads(const std::string& press, const std::string& options) {
  constexpr std::int64_t kWindow = 32;
  for (const Json& entry : entries_of(press)) {
    const std::int64_t budget = budget_of(entry);
    const auto certain =
        std::max<std::int64_t>(static_cast<std::int64_t>(0.2 * static_cast<double>(budget)) - kWindow, 0);
    const double floor = (static_cast<double>(certain) + 0.5) / static_cast<double>(budget - kWindow);
    const std::string spec =
        fmt::format("snapkv:budget={},window=32,kernel=5,share=ada,floor={:.6f}{}", budget, floor, options);
    SCOPED_TRACE(spec);
    expect_kept(entry, kept_by(spec, fixture().tokens(), 0));
  }
}

TEST(Kvpress, AdaSnapKv) {
  compare_shared_among_heads("ada snapkv", "");
}

TEST(Kvpress, AdaCriticalSnapKv) {
  compare_shared_among_heads("ada critical snapkv", ",value=wo");
}

// CriticalKV: half of the budget by score, the other half by score and projected value.
TEST(Kvpress, CriticalSnapKv) {
  compare("critical snapkv", "snapkv:budget={},window=32,kernel=5,value=wo");
}

TEST(Kvpress, CriticalExpected) {
  compare("critical expected", "expected:budget={},norm=wo");
}

// The gate leaves 4 of the chunk that has 3 tokens before the window and 7 of it, whose scores are equal: which of the
// 7 stay is as good as random in kvpress. Gives both the same ones.
void swap_ties(Json& entry, std::vector<Kept>& kept) {
  const TokenIndex window = fixture().tokens() - 32, end = 370;
  for (int table = 0; table < kLayers * kKvHeads; ++table) {
    const auto layer = static_cast<std::size_t>(table / kKvHeads), head = static_cast<std::size_t>(table % kKvHeads);
    Kept theirs = entry["kept"][layer][head].get<Kept>();
    Kept& ours = kept[static_cast<std::size_t>(table)];
    const auto tied = [&](TokenIndex token) { return token >= window && token < end; };
    EXPECT_EQ(std::ranges::count_if(theirs, tied), std::ranges::count_if(ours, tied));
    std::erase_if(theirs, tied);
    std::erase_if(ours, tied);
    entry["kept"][layer][head] = theirs;
  }
}

// kvpress cuts the text into chunks together with the window, whose scores are the highest.
TEST(Kvpress, ChunksOfSnapKv) {
  struct Case {
    const char* press;
    ChunkChoice choice;
  };
  for (const Case& one : {Case{"chunk snapkv", {.chunk = 20}}, Case{"chunk snapkv length=10", {.chunk = 10}},
                          Case{"entropy chunk snapkv", {.chunk = 10, .gate = true}}}) {
    for (const Json& entry : entries_of(one.press)) {
      SCOPED_TRACE(fmt::format("{} {}", one.press, entry["ratio"].get<double>()));
      const std::vector<Json> single = entries_of("snapkv");
      const auto scored = std::ranges::find(single, entry["ratio"], [](const Json& other) { return other["ratio"]; });
      ASSERT_NE(scored, single.end());
      std::vector<Kept> kept(kLayers * kKvHeads);
      for (int layer = 0; layer < kLayers; ++layer) {
        std::vector<double> sums(static_cast<std::size_t>(fixture().tokens()));
        for (int head = 0; head < kKvHeads; ++head) {
          const auto scores = fixture().scores.row({(*scored)["scores"].get<std::int64_t>(), layer, head});
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += double{scores[i]};
        }
        ChunkChoice choice = one.choice;
        choice.count =
            entry["counts"][static_cast<std::size_t>(fixture().json["layers"][static_cast<std::size_t>(layer)])][0];
        const std::vector<bool> stays = choose_chunks(sums, choice);
        for (int head = 0; head < kKvHeads; ++head)
          for (std::size_t i = 0; i < stays.size(); ++i)
            if (stays[i]) kept[static_cast<std::size_t>(layer * kKvHeads + head)].push_back(static_cast<TokenIndex>(i));
      }
      Json expected = entry;
      if (one.choice.gate) swap_ties(expected, kept);
      expect_kept(expected, kept);
    }
  }
}

// Returns by how much the output of attention is off for the last 64 queries if a spec prunes the tokens before them:
// the mean over queries, heads and layers of |output - that of all tokens| / |that of all tokens|.
double error_of(const std::string& spec) {
  const Array queries("queries.npy");
  const TokenIndex first = fixture().tokens() - queries.shape[2];
  std::unique_ptr<RetentionPolicy> policy;
  const std::vector<Kept> kept = kept_by(spec, first, 0, &policy, first);
  if (policy == nullptr) return 0;
  const auto output = [&](int layer, int head, TokenIndex token, const Kept& tokens, std::span<const float> biases) {
    std::vector<double> sum(kDim);
    double total = 0;
    const auto query = queries.row({layer, head, token - first});
    for (std::size_t j = 0; j < tokens.size() && tokens[j] <= token; ++j) {
      const auto key = fixture().keys.row({layer, head / 3, tokens[j]});
      const auto value = fixture().values.row({layer, head / 3, tokens[j]});
      double logit = j < biases.size() ? double{biases[j]} : 0;
      for (std::size_t i = 0; i < kDim; ++i) logit += double{query[i]} * double{key[i]} / 8;
      total += std::exp(logit);
      for (std::size_t i = 0; i < kDim; ++i) sum[i] += std::exp(logit) * double{value[i]};
    }
    for (double& x : sum) x /= total;
    return sum;
  };
  double error = 0;
  Kept all;
  for (TokenIndex token = 0; token < fixture().tokens(); ++token) all.push_back(token);
  for (int table = 0; table < kLayers * kKvHeads; ++table) {
    Kept own = kept[static_cast<std::size_t>(table)];
    std::vector<float> biases(own.size());
    const WeighsSlots* weighs = policy->as<WeighsSlots>();
    if (weighs == nullptr || !weighs->biases(table, 0, biases)) biases.clear();
    for (TokenIndex token = first; token < fixture().tokens(); ++token) own.push_back(token);
    for (int head = table % kKvHeads * 3; head < table % kKvHeads * 3 + 3; ++head)
      for (TokenIndex token = first; token < fixture().tokens(); ++token) {
        const auto wanted = output(table / kKvHeads, head, token, all, {});
        const auto got = output(table / kKvHeads, head, token, own, biases);
        double off = 0, size = 0;
        for (std::size_t i = 0; i < kDim; ++i)
          off += (got[i] - wanted[i]) * (got[i] - wanted[i]), size += wanted[i] * wanted[i];
        error += std::sqrt(off / size) / static_cast<double>(queries.shape[2] * kLayers * kHeads);
      }
  }
  return error;
}

// Biases that restore the output bring attention nearer to that over all tokens; those of the mass alone hardly do,
// since values stay what they are.
TEST(Kvpress, BiasesOfMatchingRestoreTheOutput) {
  const double off = error_of("matching:budget=128,fit=off"), output = error_of("matching:budget=128"),
               mass = error_of("matching:budget=128,fit=mass");
  SCOPED_TRACE(fmt::format("off {:.4f}, output {:.4f}, mass {:.4f}", off, output, mass));
  EXPECT_LT(output, 0.85 * off);
  EXPECT_LT(output, 0.85 * mass);
  EXPECT_LT(off, 0.1);
}

// Returns what each table keeps if the repetition gave the tokens these scores, [layers][KV heads][tokens].
std::vector<Kept> kept_by_kvzip(const std::string& spec, const Array& scores) {
  const auto made = make_policy(spec);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return {};
  RetentionPolicy& policy = **made;
  RepeatsText& repeats = *policy.as<RepeatsText>();
  const std::int64_t tokens = fixture().tokens();
  const TableLayout layout{
      .layers = static_cast<int>(scores.shape[1]), .per_layer = kKvHeads, .heads = kHeads / kKvHeads};
  policy.begin(layout);
  repeats.take_text(fixture().json["tokens"].get<std::vector<TokenId>>());
  const PolicyChunk prompt{0, static_cast<int>(tokens), true, 0};
  KeepPlan plan;
  for (int t = 0; t < layout.tables(); ++t) policy.end_chunk(prompt, t, plan);
  for (int t = 0; t < layout.tables(); ++t) policy.finish_chunk(prompt, t, plan);
  EXPECT_EQ(std::ssize(repeats.next_part().tokens), tokens);
  const std::unique_ptr<RetentionPolicy> observing = policy.clone();
  observing->as<RepeatsText>()->observe_part();
  const PolicyChunk repeated{tokens, 1, true, 0};
  for (int t = 0; t < layout.tables(); ++t) {
    const auto row = scores.row({0, t / kKvHeads, t % kKvHeads});
    std::vector<double> mass(row.begin(), row.end());
    mass.push_back(0);
    const std::span<const double> masses[] = {mass};
    observing->as<ObservesMasses>()->observe(repeated, t, 0, masses);
  }
  repeats.end_part(*observing);
  EXPECT_TRUE(repeats.next_part().tokens.empty());
  std::vector<Kept> kept(static_cast<std::size_t>(layout.tables()));
  for (int t = 0; t < layout.tables(); ++t) {
    repeats.evict(t, plan);
    std::vector<IndexRange> ranges;
    policy.retained(t, 0, ranges);
    for (const IndexRange& range : ranges)
      for (TokenIndex token = range.begin; token < range.end; ++token)
        kept[static_cast<std::size_t>(t)].push_back(token);
  }
  return kept;
}

// kvpress keeps a share of all tokens of all heads, of which a whole number for each head may be a little less: what is
// kept here are then those of the highest scores among what kvpress keeps.
TEST(Kvpress, KvZip) {
  const Array scores("kvzip_scores.npy");
  ASSERT_EQ(fixture().json["kvzip_scores"][0], "kvzip");
  for (const auto& [press, share] : {std::pair{"kvzip", "model"}, {"kvzip layerwise", "layer"}})
    for (const Json& entry : entries_of(press)) {
      std::int64_t all = 0;
      for (const Json& layer : entry["counts"])
        for (const Json& count : layer) all += count.get<std::int64_t>();
      const auto tables = static_cast<std::int64_t>(scores.shape[1]) * kKvHeads;
      const std::string spec = fmt::format("kvzip:budget={},recent=0,share={}", all / tables, share);
      SCOPED_TRACE(spec);
      const std::vector<Kept> kept = kept_by_kvzip(spec, scores);
      std::int64_t ours = 0, missing = 0;
      for (const Kept& tokens : kept) ours += std::ssize(tokens);
      EXPECT_EQ(ours, all / tables * tables);
      for (int layer = 0; layer < kLayers; ++layer)
        for (int head = 0; head < kKvHeads; ++head) {
          const auto table = fixture().json["layers"][static_cast<std::size_t>(layer)].get<std::size_t>() * kKvHeads +
                             static_cast<std::size_t>(head);
          const Kept theirs =
              entry["kept"][static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)].get<Kept>();
          EXPECT_TRUE(std::ranges::includes(theirs, kept[table])) << "layer " << layer << ", KV head " << head;
          missing += std::ssize(theirs) - std::ssize(kept[table]);
        }
      EXPECT_LE(missing, all - ours);
    }
}

}  // namespace
}  // namespace kvasir::test
