#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "reference/reference_model.h"
#include "support/random_model.h"
#include "tensor/dtype.h"

namespace kvasir::test {
namespace {

gguf::File parse(const std::vector<std::byte>& bytes) {
  auto file = gguf::File::parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return *std::move(file);
}

ReferenceModel random_reference(const RandomModelSpec& spec) {
  const auto bytes = make_random_model(spec);
  return ReferenceModel(parse(bytes));
}

std::vector<int> some_tokens(int n) {
  std::vector<int> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((7 + i * 101) % 320);
  return tokens;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "at " << i;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// One layer, d = 2, no epsilon; matrices that are not named are zero, norms one.
RandomModelSpec tiny_spec() {
  RandomModelSpec spec;
  spec.layers = 1;
  spec.d = 2;
  spec.heads = 1;
  spec.kv_heads = 1;
  spec.head_dim = 2;
  spec.ffn = 1;
  spec.vocab = 2;
  spec.rms_epsilon = 0;
  return spec;
}

ReferenceModel tiny_model(const RandomModelSpec& spec, const std::map<std::string, std::vector<float>>& weights) {
  const auto bytes = make_model(spec, [&](const std::string& name, int rows, int columns) {
    const auto found = weights.find(name.substr(0, name.find(".weight")));
    if (found != weights.end()) return found->second;
    return std::vector<float>(static_cast<std::size_t>(rows * columns), name.ends_with("norm.weight") ? 1.0F : 0.0F);
  });
  return ReferenceModel(parse(bytes));
}

const std::vector<float> kIdentity = {1, 0, 0, 1};

TEST(ReferenceTiny, WithoutLayersWorkTheLogitsAreEmbeddingProducts) {
  const auto model = tiny_model(tiny_spec(), {{"token_embd", {3, 4, 1, 1}}, {"output_norm", {2, 1}}});
  const double rms = std::sqrt(12.5);  // of (3, 4)
  const auto logits = model.logits(std::vector<int>{0});
  expect_near(logits[0], {(2 * 9 + 16) / rms, (2 * 3 + 4) / rms}, 1e-12);
}

TEST(ReferenceTiny, EpsilonIsAddedToTheMeanSquare) {
  RandomModelSpec spec = tiny_spec();
  spec.rms_epsilon = 3.5;
  const auto model = tiny_model(spec, {{"token_embd", {3, 4, 1, 1}}});
  expect_near(model.logits(std::vector<int>{0})[0], {25 / 4.0, 7 / 4.0}, 1e-12);
}

TEST(ReferenceTiny, UntiedOutput) {
  RandomModelSpec spec = tiny_spec();
  spec.tied = false;
  const auto model = tiny_model(spec, {{"token_embd", {1, 1, 1, -1}}, {"output", {5, 0, 0, 7}}});
  expect_near(model.logits(std::vector<int>{1})[0], {5, -7}, 1e-12);
}

TEST(ReferenceTiny, AttentionWithEqualScoresAverages) {
  const auto model = tiny_model(
      tiny_spec(), {{"token_embd", {3, 4, 4, -3}}, {"blk.0.attn_v", kIdentity}, {"blk.0.attn_output", kIdentity}});
  const auto logits = model.logits(std::vector<int>{0, 1});
  // The first token adds a multiple of itself, which the norm takes away again.
  const double rms = std::sqrt(12.5);
  expect_near(logits[0], {25 / rms, 0}, 1e-12);
  // The second: (4, -3) + the mean of (3, 4) and (4, -3), both over rms.
  const double x = 4 + 3.5 / rms;
  const double y = -3 + 0.5 / rms;
  const double rms2 = std::sqrt((x * x + y * y) / 2);
  expect_near(logits[1], {(3 * x + 4 * y) / rms2, (4 * x - 3 * y) / rms2}, 1e-12);
}

TEST(ReferenceTiny, SwiGluGatesWithSilu) {
  const auto model = tiny_model(tiny_spec(), {{"token_embd", {1, -1, 1, 1}},
                                              {"blk.0.ffn_gate", {2, 0}},
                                              {"blk.0.ffn_up", {0, 3}},
                                              {"blk.0.ffn_down", {1, 0}}});
  // (1, -1) has RMS 1: gate 2, up -3.
  const double x = 1 + 2 / (1 + std::exp(-2.0)) * -3;
  const double rms = std::sqrt((x * x + 1) / 2);
  expect_near(model.logits(std::vector<int>{0})[0], {(x + 1) / rms, (x - 1) / rms}, 1e-12);
}

// The weight of the earlier of two equal tokens (1, 1), whose keys and queries are the token itself.
double earlier_weight(const RandomModelSpec& spec, double earlier, double later) {
  const auto model =
      tiny_model(spec, {{"token_embd", {1, 1, 0, 1}}, {"blk.0.attn_q", kIdentity}, {"blk.0.attn_k", kIdentity}});
  std::vector<RowView> views = full_views(2);
  views[1] = {{0, 1}, {earlier, later}, later};
  double weight = -1;
  model.logits(std::vector<int>{0, 0}, views, [&](int, int row, int, std::span<const double> weights) {
    if (row == 1) weight = weights[0];
  });
  return weight;
}

double expected_earlier_weight(double angle) {
  const double a = std::exp(2 * std::cos(angle) / std::sqrt(2.0));
  const double b = std::exp(2 / std::sqrt(2.0));
  return a / (a + b);
}

TEST(ReferenceRope, ScoreIsTheCosineOfTheDistance) {
  EXPECT_NEAR(earlier_weight(tiny_spec(), 0, 1), expected_earlier_weight(1), 1e-12);
  EXPECT_NEAR(earlier_weight(tiny_spec(), 40, 43), expected_earlier_weight(3), 1e-12);
}

TEST(ReferenceRope, LinearScalingDividesPositions) {
  RandomModelSpec spec = tiny_spec();
  spec.rope_scaling = RopeScaling::kLinear;
  spec.rope_factor = 4;
  EXPECT_NEAR(earlier_weight(spec, 0, 6), expected_earlier_weight(1.5), 1e-12);
}

TEST(ReferenceRope, FrequencyFactorsDivideAngles) {
  RandomModelSpec spec = tiny_spec();
  spec.rope_scaling = RopeScaling::kLlama3;
  spec.rope_factor = 8;
  spec.context = 4;  // shorter than the wavelength 2 pi: the factor applies in full
  EXPECT_NEAR(earlier_weight(spec, 0, 4), expected_earlier_weight(0.5), 1e-12);
}

TEST(ReferenceRope, InterleavedPairsAndTheirFrequencies) {
  const std::vector<double> frequencies = {1, 0.01};
  std::vector<double> x = {1, 0, 0, 1, 5};
  rotate(x, turns_at(2, frequencies));
  expect_near(x, {std::cos(2.0), std::sin(2.0), -std::sin(0.02), std::cos(0.02), 5}, 1e-15);
}

TEST(ReferenceRope, LogitsDependOnDistancesOnly) {
  for (const RopeScaling scaling : {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kLlama3}) {
    RandomModelSpec spec;
    spec.rope_scaling = scaling;
    const ReferenceModel model = random_reference(spec);
    const std::vector<int> tokens = some_tokens(12);
    std::vector<RowView> views = full_views(12);
    const auto base = model.logits(tokens, views);
    for (std::size_t t = 0; t < views.size(); ++t) {
      const double shift = 17.25 * static_cast<double>(t + 1);  // another one for every row
      for (double& position : views[t].positions) position += shift;
      views[t].query_position += shift;
    }
    const auto shifted = model.logits(tokens, views);
    for (double& position : views[11].positions) position *= 2;
    const auto stretched = model.logits(tokens, views);
    for (std::size_t t = 0; t < base.size(); ++t) EXPECT_LT(largest_difference(base[t], shifted[t]), 1e-10);
    EXPECT_GT(largest_difference(base[11], stretched[11]), 1e-3);
  }
}

TEST(ReferenceAttention, QueryHeadsShareKeyHeadsInOrder) {
  RandomModelSpec spec = tiny_spec();
  spec.d = 8;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.vocab = 8;
  std::vector<float> identity(64, 0.0F);
  for (std::size_t i = 0; i < 64; i += 9) identity[i] = 1;
  std::vector<float> values(32, 0.0F);
  values[0] = 1;        // row 0, of key head 0, takes x[0]
  values[2 * 8] = 100;  // row 2, of key head 1
  std::vector<float> embedding = identity;
  const auto model =
      tiny_model(spec, {{"token_embd", embedding}, {"blk.0.attn_v", values}, {"blk.0.attn_output", identity}});
  // Heads 0 and 1 read key head 0, heads 2 and 3 key head 1; head h writes to x[2h].
  const auto logits = model.logits(std::vector<int>{0})[0];
  const double r = std::sqrt(8.0);  // x[0] over its RMS
  EXPECT_NEAR(logits[0] / logits[2], (1 + r) / r, 1e-12);
  EXPECT_NEAR(logits[4] / logits[2], 100, 1e-10);
  EXPECT_NEAR(logits[6] / logits[2], 100, 1e-10);
  EXPECT_EQ(logits[1], 0);
}

TEST(ReferenceAttention, WeightsAreDistributionsOverTheVisible) {
  RandomModelSpec spec;
  spec.weight_std = 2;  // saturates some rows
  const ReferenceModel model = random_reference(spec);
  const auto views = streaming_views(30, 2, 6, 3);
  int rows = 0;
  model.logits(some_tokens(30), views, [&](int, int row, int, std::span<const double> weights) {
    ++rows;
    EXPECT_EQ(weights.size(), views[static_cast<std::size_t>(row)].ids.size());
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
    for (double weight : weights) EXPECT_GE(weight, 0);
  });
  EXPECT_EQ(rows, 30 * spec.layers * spec.heads);
}

TEST(ReferenceAttention, SoftmaxOfHugeScores) {
  std::vector<double> x = {1e6, 1e6 - std::log(3.0), -1e6};
  softmax(x);
  expect_near(x, {0.75, 0.25, 0}, 1e-9);
}

TEST(ReferenceAttention, LaterTokensChangeNothing) {
  const ReferenceModel model = random_reference({});
  const std::vector<int> tokens = some_tokens(20);
  const auto all = model.logits(tokens);
  const auto prefix = model.logits(std::span(tokens).first(8));
  for (std::size_t t = 0; t < prefix.size(); ++t) EXPECT_EQ(all[t], prefix[t]);
}

// Heads that see the same do the same; one layer or key head that sees less shows, and only where it does.
TEST(ReferenceAttention, ViewsOfLayersAndHeads) {
  const ReferenceModel model = random_reference({});
  const std::vector<int> tokens = some_tokens(14);
  const auto full = full_views(14);
  const auto few = window_views(14, 4);
  const auto with = [&](int layer, int kv_head) {
    const ViewSource source = [=, &full, &few](int l, int row, int kv) -> const RowView& {
      return (l == layer && kv == kv_head ? few : full)[static_cast<std::size_t>(row)];
    };
    return model.logits(tokens, source);
  };
  const auto base = model.logits(tokens, full);
  EXPECT_EQ(with(-1, 0), base);
  const auto first = with(0, 0);
  for (std::size_t t = 0; t < 5; ++t) EXPECT_EQ(first[t], base[t]);  // a row sees itself and four others
  std::vector<std::vector<double>> last_rows;
  for (const int layer : {0, 1})
    for (const int kv_head : {0, 1}) {
      last_rows.push_back(with(layer, kv_head).back());
      EXPECT_GT(largest_difference(last_rows.back(), base.back()), 1e-3) << layer << kv_head;
      for (std::size_t i = 0; i + 1 < last_rows.size(); ++i)
        EXPECT_GT(largest_difference(last_rows.back(), last_rows[i]), 1e-3) << layer << kv_head;
    }
}

std::vector<std::vector<int>> ids_of(const std::vector<RowView>& views) {
  std::vector<std::vector<int>> ids;
  for (const RowView& view : views) {
    ids.push_back(view.ids);
    EXPECT_EQ(view.positions.size(), view.ids.size());
    for (std::size_t i = 0; i < view.positions.size(); ++i) EXPECT_EQ(view.positions[i], static_cast<double>(i));
    EXPECT_EQ(view.query_position, static_cast<double>(view.ids.size() - 1));
  }
  return ids;
}

using Ids = std::vector<std::vector<int>>;

TEST(ReferenceViews, Full) {
  EXPECT_EQ(ids_of(full_views(3)), (Ids{{0}, {0, 1}, {0, 1, 2}}));
}

TEST(ReferenceViews, Window) {
  // Two tokens stay after a pass, so a row sees itself and two others.
  EXPECT_EQ(ids_of(window_views(5, 2)), (Ids{{0}, {0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}}));
  EXPECT_EQ(ids_of(window_views(6, 5)), ids_of(full_views(6)));
}

TEST(ReferenceViews, Streaming) {
  EXPECT_EQ(ids_of(streaming_views(6, 1, 2, 1)),
            (Ids{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 2, 3, 4}, {0, 3, 4, 5}}));
  EXPECT_EQ(ids_of(streaming_views(7, 1, 1, 2)),
            (Ids{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 3, 4}, {0, 3, 4, 5}, {0, 5, 6}}));
}

TEST(ReferenceViews, PruningWaitsForTheEndOfThePass) {
  EXPECT_EQ(ids_of(streaming_views(6, 1, 1, 1, std::vector<int>{4})),
            (Ids{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 3, 4}, {0, 4, 5}}));
}

TEST(ReferenceViews, OneLayerForgetsWhatIsGone) {
  RandomModelSpec spec;
  spec.layers = 1;
  const std::vector<int> tokens = some_tokens(16);
  const auto views = streaming_views(16, 2, 4, 1);
  std::vector<int> kept;
  for (int id : views.back().ids) kept.push_back(tokens[static_cast<std::size_t>(id)]);
  const ReferenceModel one = random_reference(spec);
  EXPECT_LT(largest_difference(one.logits(tokens, views).back(), one.logits(kept).back()), 1e-12);

  // With two, the kept values still carry what their tokens had seen.
  const ReferenceModel two = random_reference({});
  EXPECT_GT(largest_difference(two.logits(tokens, views).back(), two.logits(kept).back()), 1e-3);
}

TEST(RandomModel, ShapesAndTypes) {
  RandomModelSpec spec;
  spec.dtype = "q8_0";
  spec.tied = false;
  spec.head_dim = 24;
  spec.heads = 4;
  spec.rope_scaling = RopeScaling::kLlama3;
  const auto bytes = make_random_model(spec);
  const gguf::File file = parse(bytes);
  EXPECT_EQ(file.tensors().size(), 2U * 9 + 4);
  const gguf::Tensor* k = file.find_tensor("blk.1.attn_k.weight");
  ASSERT_NE(k, nullptr);
  EXPECT_EQ(k->type, static_cast<std::uint32_t>(DType::kQ8_0));
  EXPECT_EQ(k->dims, (std::vector<std::uint64_t>{64, 48}));
  const gguf::Tensor* freqs = file.find_tensor("rope_freqs.weight");
  ASSERT_NE(freqs, nullptr);
  EXPECT_EQ(freqs->dims, std::vector<std::uint64_t>{12});
  EXPECT_EQ(*file.get_uint("llama.attention.key_length"), 24U);
  EXPECT_EQ(file.get_strings("tokenizer.ggml.tokens").status().message(), "");
  EXPECT_EQ((*file.get_strings("tokenizer.ggml.tokens"))[3 + 10], "<0x0A>");
  EXPECT_EQ(file.get_ints("tokenizer.ggml.token_type").status().message(), "");
  EXPECT_EQ((*file.get_floats("tokenizer.ggml.scores")).size(), 320U);
}

TEST(RandomModel, SameSeedSameFile) {
  RandomModelSpec spec;
  const auto first = make_random_model(spec);
  EXPECT_EQ(first, make_random_model(spec));
  spec.seed = 2;
  EXPECT_NE(first, make_random_model(spec));
}

TEST(RandomModel, NarrowTypesStayNearF32AndLogitsSpread) {
  const std::vector<int> tokens = some_tokens(16);
  const auto exact = random_reference({}).logits(tokens).back();
  double square = 0;
  for (double logit : exact) square += logit * logit;
  const double spread = std::sqrt(square / static_cast<double>(exact.size()));
  EXPECT_GT(spread, 0.3);
  EXPECT_LT(spread, 3);

  const std::map<std::string, double> bounds = {{"f16", 2e-3}, {"bf16", 2e-2}, {"q8_0", 4e-2}};
  for (const auto& [dtype, bound] : bounds) {
    RandomModelSpec spec;
    spec.dtype = dtype;
    const auto rounded = random_reference(spec).logits(tokens).back();
    const double error = rms_error_ratio(std::vector<float>(rounded.begin(), rounded.end()), exact);
    EXPECT_LT(error, bound) << dtype;
    EXPECT_GT(error, 1e-6) << dtype;
  }
}

TEST(RmsErrorRatio, Values) {
  EXPECT_EQ(rms_error_ratio(std::vector<float>{1, 2}, std::vector<double>{1, 2}), 0);
  EXPECT_NEAR(rms_error_ratio(std::vector<float>{3, 5}, std::vector<double>{3, 4}), 0.2, 1e-15);
  EXPECT_EQ(rms_error_ratio(std::vector<float>{0}, std::vector<double>{0}), 0);
}

}  // namespace
}  // namespace kvasir::test
