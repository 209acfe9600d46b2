// Evicting policies against the reference model: the logits are those of exact attention over exactly the tokens that
// each layer and KV head held, at the positions that the definitions give them. Which tokens a policy holds is for
// replay's tests; here it is what they see, after any number of drops, moves, compactions and changes of sub-cache.
#include <gtest/gtest.h>

#include <numeric>

#include "eval/seen_tokens.h"
#include "sequence/policy_cases.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

struct Setting {
  int context;
  int prompt;
  int generated;
  int chunk;
};

// Per layer and KV head, by query.
using Views = std::vector<std::vector<std::vector<RowView>>>;

// Reads a text, writing down what was held in front of every pass.
class Watched {
 public:
  Watched(const std::shared_ptr<LoadedModel>& model, const std::string& spec, const Setting& setting)
      : runner_(new_runner(model, spec)),
        setting_(setting),
        layers_(model->config.governed_layers()),
        kv_heads_(model->config.governed().kv_heads) {
    views_.assign(static_cast<std::size_t>(layers_),
                  std::vector<std::vector<RowView>>(static_cast<std::size_t>(kv_heads_)));
  }

  std::vector<float> run(const Text& text) {
    held_ = held();
    return run_text(*runner_, text, setting_.chunk, [&](int rows) {
      for (int r = 0; r < rows; ++r) add_row(next_ + r);
      next_ += rows;
      EXPECT_TRUE(runner_->step().repeat(runner_->whole(), setting_.chunk).ok());
      held_ = held();
    });
  }

  const Views& views() const { return views_; }
  const SequenceRunner& runner() const { return *runner_; }
  bool weighed() const { return weighed_; }  // some token had a bias
  bool dropped_everywhere(int tokens) const {
    for (const auto& tables : held_)
      for (const auto& ids : tables)
        if (static_cast<int>(ids.size()) == tokens) return false;
    return true;
  }

 private:
  std::vector<std::vector<std::vector<TokenIndex>>> held() {
    const auto held = retained_by_layer(runner_->sequence(), layers_);
    biases_.clear();
    if (const WeighsSlots* weighs = runner_->policy().as<WeighsSlots>())
      for (const auto& tables : held)
        for (const auto& ids : tables) {
          const int lanes = tables.size() > 1 ? 1 : kv_heads_;
          const auto table = static_cast<int>(biases_.size());
          std::vector<float>& own = biases_.emplace_back(static_cast<std::size_t>(lanes) * ids.size());
          bool any = false;
          for (int lane = 0; lane < lanes; ++lane)
            any |= weighs->biases(table, lane,
                                  std::span(own).subspan(static_cast<std::size_t>(lane) * ids.size(), ids.size()));
          weighed_ |= any;
          if (!any) own.clear();
        }
    return held;
  }

  // The row sees what its table held before the pass, and the pass's own tokens up to itself.
  void add_row(int query) {
    for (int layer = 0; layer < layers_; ++layer)
      for (int head = 0; head < kv_heads_; ++head) {
        const auto& tables = held_[static_cast<std::size_t>(layer)];
        const auto& before = tables[tables.size() > 1 ? static_cast<std::size_t>(head) : 0];
        RowView view;
        view.ids.assign(before.begin(), before.end());
        for (int id = next_; id <= query; ++id) view.ids.push_back(id);
        for (std::size_t i = 0; i < view.ids.size(); ++i)
          view.positions.push_back(original(query) ? view.ids[i] : static_cast<double>(i));
        view.query_position = view.positions.back();
        view.biases = biases(layer, head, static_cast<int>(tables.size()), before.size());
        if (!view.biases.empty()) view.biases.resize(view.ids.size());
        views_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)].push_back(std::move(view));
      }
  }

  // The biases of the tokens that a table held before the pass; empty: none. The policy may have moved on since: they
  // are those of held_.
  std::vector<double> biases(int layer, int head, int per_layer, std::size_t tokens) const {
    const auto table = static_cast<std::size_t>(layer * per_layer + (per_layer > 1 ? head : 0));
    if (biases_.empty() || biases_[table].empty()) return {};
    const std::vector<float>& all = biases_[table];
    const std::size_t lane = per_layer > 1 ? 0 : static_cast<std::size_t>(head);
    return {all.begin() + static_cast<std::ptrdiff_t>(lane * tokens),
            all.begin() + static_cast<std::ptrdiff_t>((lane + 1) * tokens)};
  }

  // Passes end where the trained context does, so that no pass stands on both sides.
  bool original(int query) const {
    const PositionMode mode = runner_->policy().traits().positions;
    return mode == PositionMode::kOriginal || (mode == PositionMode::kAuto && query < setting_.context);
  }

  std::unique_ptr<SequenceRunner> runner_;
  Setting setting_;
  int layers_;
  int kv_heads_;
  int next_ = 0;
  std::vector<std::vector<std::vector<TokenIndex>>> held_;
  std::vector<std::vector<float>> biases_;  // by table: [lanes][tokens of held_]; empty: none
  bool weighed_ = false;
  Views views_;
};

class PoliciesReference : public ::testing::TestWithParam<std::string> {};

// Reads a text under every evicting case of a policy and compares all logits with those of what was held.
void compare_with_reference(const RandomModelSpec& spec, const std::string& policy_name, const Setting& setting) {
  const auto bytes = make_random_model(spec);
  const TemporaryFile file(bytes);
  const auto parsed = gguf::File::parse(bytes);
  ASSERT_TRUE(parsed.ok());
  const ReferenceModel reference(*parsed);
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const int tokens = setting.prompt + setting.generated;
  const Text text(setting.prompt, setting.generated, 3);
  int compared = 0;
  for (const std::string& policy : cases_of(policy_name).evicting) {
    SCOPED_TRACE(
        fmt::format("{} context {} prompt {} chunk {}", policy, setting.context, setting.prompt, setting.chunk));
    Watched watched(model, policy, setting);
    // Keys stay where they stood in the text: it has to fit.
    if (watched.runner().policy().traits().positions == PositionMode::kOriginal && tokens > setting.context) continue;
    const std::vector<float> got = watched.run(text);
    const auto want = reference.logits(text.tokens, [&](int layer, int row, int head) -> const RowView& {
      // Layers with a window of their own ask for no view.
      const int governed = spec.window_pattern > 0 ? layer / spec.window_pattern : layer;
      return watched
          .views()[static_cast<std::size_t>(governed)][static_cast<std::size_t>(head)][static_cast<std::size_t>(row)];
    });
    ASSERT_EQ(got.size(), want.size() * want.front().size());
    EXPECT_LT(rms_error_ratio(got, flatten(want)), 1e-5);
    // The last rows alone, where all errors would have gathered.
    const std::size_t tail = want.front().size() * 4;
    EXPECT_LT(rms_error_ratio(std::span(got).last(tail), std::span<const double>(flatten(want)).last(tail)), 1e-5);
    EXPECT_TRUE(setting.prompt < 80 || watched.weighed() == (watched.runner().policy().as<WeighsSlots>() != nullptr));
    // Some prune prompts alone, and this long at least.
    EXPECT_TRUE(setting.prompt < 80 || watched.dropped_everywhere(tokens));
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST_P(PoliciesReference, LogitsAreOfExactlyWhatIsHeld) {
  for (const Setting& setting : {Setting{400, 96, 104, 16}, Setting{400, 1, 159, 16}, Setting{400, 150, 30, 150},
                                 Setting{96, 80, 88, 16}, Setting{96, 160, 10, 32}}) {
    RandomModelSpec spec = small_spec();
    spec.context = setting.context;
    compare_with_reference(spec, GetParam(), setting);
  }
}

TEST_P(PoliciesReference, OnEveryFamily) {
  for (const Setting& setting : {Setting{400, 96, 40, 16}, Setting{96, 112, 12, 16}}) {
    RandomModelSpec base = small_spec();
    base.context = setting.context;
    for (const FamilyCase& family : family_cases(base)) {
      if (family.name == "llama") continue;  // above
      SCOPED_TRACE(family.name);
      compare_with_reference(family.spec, GetParam(), setting);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PoliciesReference, ::testing::ValuesIn(table_policies()), policy_name);

}  // namespace
}  // namespace kvasir::test
