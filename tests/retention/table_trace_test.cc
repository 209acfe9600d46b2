// What attention-scored policies keep of a published example: 48 tokens, one at a time; one layer, two heads.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/attention_mass.h"
#include "retention/registry.h"
#include "support/shared_data.h"

namespace kvasir {
namespace {

// float32 in C order, [layers][heads][T][T].
struct Trace {
  int layers = 0;
  int heads = 0;
  int tokens = 0;
  std::vector<float> values;

  const float* row(int layer, int head, int query) const {
    return values.data() + ((static_cast<std::size_t>(layer) * heads + head) * tokens + query) * tokens;
  }
};

Trace read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  const std::string bytes = all.str();
  Trace trace;
  EXPECT_EQ(bytes.substr(1, 5), "NUMPY");
  EXPECT_EQ(bytes[6], 1) << "version of the format";
  const std::size_t header = static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  const std::string text = bytes.substr(10, header);
  EXPECT_NE(text.find("'<f4'"), std::string::npos) << text;
  EXPECT_NE(text.find("False"), std::string::npos) << text;
  int columns = 0;
  EXPECT_EQ(std::sscanf(text.c_str() + text.find('('), "(%d, %d, %d, %d)", &trace.layers, &trace.heads, &trace.tokens,
                        &columns),
            4);
  EXPECT_EQ(columns, trace.tokens);
  trace.values.resize((bytes.size() - 10 - header) / sizeof(float));
  EXPECT_EQ(trace.values.size(), static_cast<std::size_t>(trace.layers) * trace.heads * trace.tokens * trace.tokens);
  std::memcpy(trace.values.data(), bytes.data() + 10 + header, trace.values.size() * sizeof(float));
  return trace;
}

struct Outcome {
  std::vector<TokenIndex> kept;
  double recall = 0;
  double kept_mean = 0;
  std::int64_t kept_max = 0;
};

// One token at a time; the policy sees the row restricted to what is retained, renormalised.
Outcome replay(const std::string& spec, const Trace& trace, int layer) {
  auto policy = make_policy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  (*policy)->begin({.layers = 1, .per_layer = 1, .heads = trace.heads});
  Outcome out;
  KeepPlan plan;
  for (int t = 0; t < trace.tokens; ++t) {
    out.kept.push_back(t);
    std::vector<std::vector<float>> weights(static_cast<std::size_t>(trace.heads));
    std::vector<const float*> heads;
    for (int h = 0; h < trace.heads; ++h) {
      double seen = 0;
      for (const TokenIndex id : out.kept) {
        weights[static_cast<std::size_t>(h)].push_back(trace.row(layer, h, t)[id]);
        seen += static_cast<double>(trace.row(layer, h, t)[id]);
      }
      out.recall += seen / (trace.tokens * trace.heads);
      heads.push_back(weights[static_cast<std::size_t>(h)].data());
    }
    std::vector<double> mass(out.kept.size());
    reduce_mass(heads, static_cast<int>(mass.size()), reductions_of(**policy).front(), mass);
    const PolicyChunk chunk{.first = t, .rows = 1};
    const std::span<const double> masses[] = {mass};
    (*policy)->as<ObservesMasses>()->observe(chunk, 0, 0, masses);
    plan.clear();
    (*policy)->end_chunk(chunk, 0, plan);
    for (const IndexRange& range : plan.drop)
      std::erase_if(out.kept, [&](TokenIndex id) { return id >= range.begin && id < range.end; });
    out.kept_mean += static_cast<double>(out.kept.size()) / trace.tokens;
    out.kept_max = std::max(out.kept_max, std::ssize(out.kept));
  }
  return out;
}

TEST(TableTrace, KeepsWhatTheExampleKeeps) {
  KVASIR_SHARED_OR_SKIP(path, "traces/example.json");
  KVASIR_SHARED_OR_SKIP(trace_path, "traces/example.npy");
  std::ifstream file(path);
  const auto example = nlohmann::json::parse(file);
  const Trace trace = read_npy(trace_path);
  for (const std::string spec :
       {"cascade:size=16,n=4,sinks=2", "h2o:budget=16,recent=8", "lethe:start=12,tau=8,sinks=2,gamma=0.9"}) {
    SCOPED_TRACE(spec);
    ASSERT_TRUE(example.contains(spec));
    const auto& layers = example[spec]["layers"];
    ASSERT_EQ(layers.size(), static_cast<std::size_t>(trace.layers));
    for (int layer = 0; layer < trace.layers; ++layer) {
      const auto& expected = layers[static_cast<std::size_t>(layer)];
      const Outcome outcome = replay(spec, trace, layer);
      EXPECT_EQ(outcome.kept, expected["final"].get<std::vector<TokenIndex>>());
      EXPECT_NEAR(outcome.recall, expected["recall"].get<double>(), 1e-9);
      EXPECT_NEAR(outcome.kept_mean, expected["kept_mean"].get<double>(), 1e-9);
      EXPECT_EQ(outcome.kept_max, expected["kept_max"].get<std::int64_t>());
    }
  }
}

}  // namespace
}  // namespace kvasir
