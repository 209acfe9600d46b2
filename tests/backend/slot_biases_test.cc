// A policy that weighs slots: its biases take part in the softmax on every kernel table and in every form of page.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "backend/cpu/kernels/kernels.h"
#include "backend/naive_model.h"
#include "planning/memory_plan.h"
#include "sequence/policy_cases.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

using BiasOf = std::function<float(int table, int lane, TokenIndex token)>;

float uneven(int table, int lane, TokenIndex token) {
  if (token % 3 != 0) return 0;
  return static_cast<float>((token * 7 + table * 5 + lane * 3) % 11) * 0.4F - 2.0F;
}

// Keeps the tokens that `drops` does not name, and gives them biases once their chunk has ended.
class Weigher final : public RetentionPolicy, public WeighsSlots {
 public:
  Weigher(
      PolicyScope scope, PositionMode positions, BiasOf bias,
      std::function<bool(TokenIndex)> drops = [](TokenIndex) { return false; })
      : RetentionPolicy({.spec = "weigher", .scope = scope, .positions = positions, .chunk = 24, .compacts = true}),
        bias_(std::move(bias)),
        drops_(std::move(drops)) {}

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<Weigher>(*this); }
  TokenIndex seen() const override { return seen_; }
  void retained(int, int, std::vector<IndexRange>& ranges) const override {
    for (TokenIndex token = 0; token < seen_; ++token)
      if (!drops_(token)) ranges.push_back({token, token + 1});
  }
  std::int64_t exact_prefix(std::int64_t) const override { return 0; }
  void end_chunk(const PolicyChunk& chunk, int, KeepPlan& plan) override {
    seen_ = chunk.end();
    for (TokenIndex token = chunk.first; token < chunk.end(); ++token)
      if (drops_(token)) plan.add_drop({token, token + 1});
  }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }

  bool biases(int table, int lane, std::span<float> biases) const override {
    std::size_t at = 0;
    for (TokenIndex token = 0; token < seen_; ++token)
      if (!drops_(token)) biases[at++] = bias_(table, lane, token);
    EXPECT_EQ(at, biases.size());
    return true;
  }

 private:
  Capabilities capabilities() const override { return Capabilities().with<WeighsSlots>(bias_ ? this : nullptr); }
  void save_state(ByteWriter& out) const override { out.put(seen_); }
  bool restore_state(ByteReader& in) override { return in.get(seen_); }

  BiasOf bias_;  // empty: it does not weigh slots
  std::function<bool(TokenIndex)> drops_;
  TokenIndex seen_ = 0;
};

double most_apart(std::span<const float> a, std::span<const float> b) {
  double most = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

class SlotBiasesOnKernels : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::vector<float> logits(const std::string& type, Weigher policy, int most_rows = 1000) const {
    const EngineOptions options{.threads = 2, .isa = std::string(GetParam()), .kv_type = type, .page_slots = 16};
    return run(load(file_.path(), options), std::move(policy), most_rows);
  }
  std::vector<float> naive_logits(const std::string& type, Weigher policy) const {
    return run(load_naive(file_.path(), {.threads = 2, .kv_type = type, .page_slots = 16}), std::move(policy), 1000);
  }

  TemporaryFile file_{make_random_model(family_cases().front().spec)};

 private:
  static std::vector<float> run(const std::shared_ptr<LoadedModel>& model, Weigher policy, int most_rows) {
    SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                          std::make_unique<Weigher>(std::move(policy)));
    runner.set_most_rows(most_rows);
    return run_text(runner, Text(60, 30, 5), 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Tables, SlotBiasesOnKernels, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return std::string(info.param); });

// The naive backend computes the softmax in double precision. Where pages are encoded or of i16, the kernels round
// queries and weights too.
TEST_P(SlotBiasesOnKernels, GiveTheSoftmaxOfTheReference) {
  for (const auto& [type, tolerance] : {std::pair{"f32", 2e-4}, {"f16", 2e-3}, {"i16", 0.01}, {"q8", 0.02}, {"k=q4,v=q8", 0.05}})
    for (const PolicyScope scope : {PolicyScope::kSequence, PolicyScope::kLayer, PolicyScope::kHead})
      for (const PositionMode positions : {PositionMode::kOriginal, PositionMode::kCompact}) {
        SCOPED_TRACE(std::string(type) + " " + std::to_string(static_cast<int>(scope)));
        const auto drops = [](TokenIndex token) { return token % 5 == 1; };
        const std::vector<float> reference = naive_logits(type, Weigher(scope, positions, uneven, drops));
        const std::vector<float> here = logits(type, Weigher(scope, positions, uneven, drops));
        const std::vector<float> plain = logits(type, Weigher(scope, positions, {}, drops));
        EXPECT_LT(most_apart(here, reference), tolerance);
        EXPECT_GT(most_apart(here, plain), 4 * tolerance);
        EXPECT_TRUE(same_bits(here, logits(type, Weigher(scope, positions, uneven, drops), 5)));
      }
}

TEST_P(SlotBiasesOnKernels, OfZeroChangeNoBit) {
  for (const char* type : {"f32", "f16", "q4"}) {
    const auto none = [](int, int, TokenIndex) { return 0.0F; };
    EXPECT_TRUE(same_bits(logits(type, Weigher(PolicyScope::kHead, PositionMode::kOriginal, none)),
                          logits(type, Weigher(PolicyScope::kHead, PositionMode::kOriginal, {}))));
  }
}

// On AMX, entries without biases are read by the tile unit, which rounds differently.
TEST_P(SlotBiasesOnKernels, OfMinusInfinityDropTheToken) {
  const auto drops = [](TokenIndex token) { return token < 20 || token % 2 == 0; };
  const auto hides = [&](int, int, TokenIndex token) { return drops(token) ? -1e30F : 0.0F; };
  for (const auto& [type, tolerance] : {std::pair{"f32", 2e-4}, {"f16", GetParam() == "amx" ? 1e-3 : 2e-4}}) {
    const std::vector<float> hidden = logits(type, Weigher(PolicyScope::kLayer, PositionMode::kOriginal, hides));
    const std::vector<float> dropped = logits(type, Weigher(PolicyScope::kLayer, PositionMode::kOriginal, {}, drops));
    const std::vector<float> all = logits(type, Weigher(PolicyScope::kLayer, PositionMode::kOriginal, {}));
    EXPECT_LT(most_apart(hidden, dropped), tolerance) << type;
    EXPECT_GT(most_apart(hidden, all), 100 * tolerance) << type;
  }
}

TEST(SlotBiases, ArePlannedAndCharged) {
  const TemporaryFile file(make_random_model(family_cases().front().spec));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f16", .page_slots = 16});
  for (const PolicyScope scope : {PolicyScope::kSequence, PolicyScope::kHead}) {
    const auto planned = [&](const BiasOf& bias) {
      return plan_kv_memory(model->kv_shape, Weigher(scope, PositionMode::kOriginal, bias), {69, 60, 0, 1})
          .policy_bytes;
    };
    EXPECT_EQ(planned({}), 0u);
    SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                          std::make_unique<Weigher>(scope, PositionMode::kOriginal, uneven));
    std::uint64_t most = 0;
    runner.set_watch([&](const KvSequence&) { most = std::max(most, runner.whole().state_bytes()); });
    run_text(runner, Text(60, 9, 1), 0);
    // 69 tokens lie in five entries.
    EXPECT_GE(most, static_cast<std::uint64_t>(model->kv_shape.lanes()) * 5 * 16 * sizeof(float));
    EXPECT_LE(most, planned(uneven));
    EXPECT_EQ(runner.whole().state_bytes(), 0u) << "held between passes";
  }
}

}  // namespace
}  // namespace kvasir::test
