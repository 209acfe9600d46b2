// What kvpress keeps (kvpress/README.md): the same tokens, decided from the same keys, values and queries.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "replay/npy.h"
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

// Returns what each table keeps of the prompt, read in a chunk of `first` tokens and others of `chunk`.
std::vector<Kept> kept_by(const std::string& spec, std::int64_t first, std::int64_t size) {
  auto policy = make_policy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  if (!policy.ok()) return {};
  const TableLayout layout = fixture().layout();
  (*policy)->begin(layout);
  std::vector<Kept> kept(static_cast<std::size_t>(layout.tables()));
  for (std::int64_t at = 0; at < fixture().tokens();) {
    const std::int64_t rows = std::min(at == 0 ? first : size, fixture().tokens() - at);
    const PolicyChunk chunk{at, static_cast<int>(rows), true, fixture().tokens() - at - rows};
    for (int t = 0; t < layout.tables(); ++t) {
      Kept& own = kept[static_cast<std::size_t>(t)];
      for (TokenIndex token = at; token < at + rows; ++token) own.push_back(token);
      if (SumsQueries* reader = (*policy)->as<SumsQueries>()) show_queries(*reader, chunk, t);
      ReadsHeldKv* reader = (*policy)->as<ReadsHeldKv>();
      FixtureKv kv(t, own);
      if (reader->wants_held(chunk, t)) reader->read_held(chunk, t, kv);
      KeepPlan plan;
      (*policy)->end_chunk(chunk, t, plan);
      std::vector<IndexRange> ranges;
      (*policy)->retained(t, 0, ranges);
      own.clear();
      for (const IndexRange& range : ranges)
        for (TokenIndex token = range.begin; token < range.end; ++token) own.push_back(token);
    }
    at += rows;
  }
  return kept;
}

// The entries of a press, for both shares removed. `{}` in `spec` stands for the budget.
void compare(const std::string& press, const std::string& spec, std::int64_t block = 0) {
  int compared = 0;
  for (const Json& entry : fixture().json["entries"]) {
    if (entry["press"] != press || entry.value("margin", 1.0) == 0) continue;  // 0: a tie decided
    ++compared;
    const std::int64_t budget = entry["counts"][2][0];
    const std::string given = fmt::format(fmt::runtime(spec), budget);
    SCOPED_TRACE(given);
    const std::vector<Kept> kept = kept_by(given, block > 0 ? budget : fixture().tokens(), block);
    for (int layer = 0; layer < kLayers; ++layer)
      for (int head = 0; head < kKvHeads; ++head)
        EXPECT_EQ(kept[static_cast<std::size_t>(layer * kKvHeads + head)],
                  entry["kept"][static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)].get<Kept>())
            << "layer " << layer << ", KV head " << head;
  }
  EXPECT_GE(compared, 1) << press;
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

}  // namespace
}  // namespace kvasir::test
