// `kvzip` against its definition, computed from the raw weights of a repetition that the test runs itself behind a full
// cache; and what the repetition must not change.
#include <cmath>
#include <tuple>

#include "kv/table.h"
#include "kvasir/engine.h"
#include "sequence/policy_cases.h"

namespace kvasir::test {
namespace {

struct ZipCase {
  std::int64_t budget = 40;
  std::int64_t sinks = 4;
  std::int64_t recent = 6;
  std::int64_t repeat = 64;
  std::string share = "model";

  std::string spec() const {
    return fmt::format("kvzip:budget={},sinks={},recent={},repeat={},share={}", budget, sinks, recent, repeat, share);
  }
};

// The most that any query head of a group gives to each of the first tokens: [layer * kv_heads + kv head][token].
class MostWeight final : public kvasir::AttentionObserver {
 public:
  MostWeight(const RandomModelSpec& spec, std::size_t tokens)
      : kv_heads_(spec.kv_heads),
        most_(static_cast<std::size_t>(spec.layers * spec.kv_heads), std::vector<double>(tokens)) {}

  void observe(const kvasir::ObservedAttention& attention) override {
    const int group = attention.heads / kv_heads_;
    for (int row = 0; row < attention.rows; ++row)
      for (int head = 0; head < attention.heads; ++head) {
        std::vector<double>& most = most_[static_cast<std::size_t>(attention.layer * kv_heads_ + head / group)];
        const std::span<const float> weights = attention.of(row, head);
        for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], double{weights[i]});
      }
  }
  const std::vector<std::vector<double>>& most() const { return most_; }

 private:
  int kv_heads_;
  std::vector<std::vector<double>> most_;
};

std::vector<TokenId> encoded(const LoadedModel& model, std::string_view text) {
  return *model.tokenizer->encode(text, {.add_special = false, .continues = true});
}

// Repeats a prompt behind a full cache, part by part.
std::vector<std::vector<double>> scores_of(const std::shared_ptr<LoadedModel>& model, const RandomModelSpec& spec,
                                           std::span<const TokenId> prompt, std::size_t repeat) {
  MostWeight seen(spec, prompt.size());
  for (std::size_t first = 0; first < prompt.size(); first += repeat) {
    std::vector<TokenId> part =
        encoded(*model, first == 0 ? "\n\nRepeat the previous context exactly."
                                   : "\n\nRepeat the part of the previous context exactly, starting with");
    const std::size_t lead = std::min<std::size_t>(first, 8);
    part.insert(part.end(), prompt.begin() + static_cast<std::ptrdiff_t>(first - lead),
                prompt.begin() + static_cast<std::ptrdiff_t>(first));
    for (const TokenId token : encoded(*model, "\n")) part.push_back(token);
    const auto own = prompt.subspan(first, std::min(repeat, prompt.size() - first));
    part.insert(part.end(), own.begin(), own.end());
    const auto runner = new_runner(model, "full");
    EXPECT_TRUE(runner->feed(prompt, 0, Logits::kNone, nullptr).ok());
    runner->listener().set_tap(&seen);
    EXPECT_TRUE(runner->feed(part, 0, Logits::kNone, nullptr).ok());
  }
  return seen.most();
}

// What each table keeps of the prompt: sinks, recent tokens, and the highest of those that compete.
std::vector<std::vector<TokenIndex>> kept_by_definition(const ZipCase& c, const RandomModelSpec& spec,
                                                        const std::vector<std::vector<double>>& scores) {
  const auto tables = static_cast<int>(scores.size());
  const int together = c.share == "model" ? tables : c.share == "layer" ? spec.kv_heads : 1;
  const auto tokens = std::ssize(scores.front());
  std::vector<std::vector<TokenIndex>> kept(scores.size());
  for (int first = 0; first < tables; first += together) {
    std::vector<std::tuple<double, TokenIndex, int>> order;
    for (int t = first; t < first + together; ++t)
      for (TokenIndex i = c.sinks; i < tokens - c.recent; ++i)
        order.emplace_back(-scores[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)], -i, t);
    std::ranges::sort(order);
    order.resize(static_cast<std::size_t>(together * (c.budget - c.sinks - c.recent)));
    for (int t = first; t < first + together; ++t) {
      std::vector<TokenIndex>& own = kept[static_cast<std::size_t>(t)];
      for (TokenIndex i = 0; i < c.sinks; ++i) own.push_back(i);
      for (TokenIndex i = tokens - c.recent; i < tokens; ++i) own.push_back(i);
      for (const auto& [score, index, table] : order)
        if (table == t) own.push_back(-index);
      std::ranges::sort(own);
    }
  }
  return kept;
}

TEST(KvZip, KeepsWhatTheDefinitionKeeps) {
  RandomModelSpec spec = small_spec();
  spec.context = 1024;
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f32"});
  const std::vector<TokenId> prompt = random_tokens(170, spec.vocab, 5);
  for (const ZipCase& c : {ZipCase{}, ZipCase{.budget = 30, .share = "layer"}, ZipCase{.recent = 0, .share = "head"},
                           ZipCase{.budget = 60, .sinks = 0, .recent = 16, .repeat = 1000}}) {
    SCOPED_TRACE(c.spec());
    const auto kept = kept_by_definition(c, spec, scores_of(model, spec, prompt, static_cast<std::size_t>(c.repeat)));
    const auto runner = new_runner(model, c.spec());
    ASSERT_TRUE(runner->feed(prompt, 0, Logits::kNone, nullptr).ok());
    EXPECT_EQ(runner->sequence().mean_length(), 170) << "the prompt is held until the text goes on";
    const std::vector<TokenId> next = {7};
    ASSERT_TRUE(runner->feed(next, 0, Logits::kLast, nullptr, Source::kGenerated).ok());
    EXPECT_GT(runner->whole().repeated_rows(), 170);
    EXPECT_EQ(runner->counters().first_dropped.has_value(), true);
    ASSERT_EQ(runner->sequence().governed_tables(), static_cast<int>(kept.size()));
    for (int t = 0; t < runner->sequence().governed_tables(); ++t) {
      std::vector<TokenIndex> expected = kept[static_cast<std::size_t>(t)];
      expected.push_back(170);
      EXPECT_EQ(retained_ids(runner->sequence().table(t)), expected) << "table " << t;
    }
  }
}

// How the repetition is divided into passes, and what runs beside it, changes nothing; memory comes back.
TEST(KvZip, TheRepetitionLeavesNothingBehindItsChoice) {
  const TemporaryFile file(make_random_model(small_spec()));
  for (const char* type : {"f16", "q8", "q4,recent=20,rotate=kv"}) {
    std::vector<float> first;
    for (const int most_rows : {1000, 7, 1}) {
      const auto model = load(file.path(), {.threads = most_rows == 7 ? 3 : 1, .kv_type = type});
      const auto runner = new_runner(model, "kvzip:budget=40,repeat=64");
      runner->set_most_rows(most_rows);
      std::vector<float> logits;
      for (const auto& [tokens, source] : {std::pair(120, Source::kPrompt), std::pair(9, Source::kGenerated),
                                           std::pair(50, Source::kPrompt), std::pair(3, Source::kGenerated)}) {
        const auto on_pass = [&](std::int64_t, int, std::span<const float> of_pass) {
          logits.insert(logits.end(), of_pass.begin(), of_pass.end());
          return true;
        };
        const std::vector<TokenId> text = random_tokens(tokens, small_spec().vocab, static_cast<std::uint64_t>(tokens));
        ASSERT_TRUE(runner->feed(text, 32, Logits::kAll, on_pass, source).ok());
      }
      if (first.empty()) first = logits;
      EXPECT_TRUE(same_bits(logits, first)) << type << ' ' << most_rows;
      const Sequence& sequence = runner->whole();
      EXPECT_EQ(sequence.cache()->budget().used(), sequence.bytes());
    }
  }
}

// A fork that is made while a part runs begins the part again, and ends with the same bits; so does the text itself
// when it gives the part up.
TEST(KvZip, APartMayBeLeftAnywhere) {
  const TemporaryFile file(make_random_model(small_spec()));
  for (const char* type : {"f16", "q4,recent=20,rotate=kv"}) {
    const auto model = load(file.path(), {.threads = 1, .kv_type = type});
    const auto runner = new_runner(model, "kvzip:budget=40,repeat=64");
    ASSERT_TRUE(runner->feed(random_tokens(130, small_spec().vocab, 8), 32, Logits::kNone, nullptr).ok());
    const std::vector<TokenId> next = random_tokens(5, small_spec().vocab, 9);
    const auto go_on = [&](SequenceRunner& text) {
      std::vector<float> logits;
      const auto on_pass = [&](std::int64_t, int, std::span<const float> of_pass) {
        logits.insert(logits.end(), of_pass.begin(), of_pass.end());
        return true;
      };
      EXPECT_TRUE(text.feed(next, 32, Logits::kAll, on_pass, Source::kGenerated).ok());
      return logits;
    };
    const auto at_once = runner->fork();
    ASSERT_TRUE(at_once.ok());
    const std::vector<float> expected = go_on(**at_once);
    runner->set_most_rows(5);
    for (int pass = 0; pass < 21; ++pass) {
      const auto result = runner->feed_pass(next, 32, Logits::kAll, Source::kGenerated);
      ASSERT_TRUE(result.ok());
      ASSERT_EQ(result->tokens, 0) << "the text is still repeated";
      EXPECT_TRUE(result->logits.empty());
      if (pass % 5 != 2) continue;
      const auto fork = runner->fork();
      ASSERT_TRUE(fork.ok());
      EXPECT_TRUE(same_bits(go_on(**fork), expected)) << type << ' ' << pass;
      if (pass % 2 == 0) runner->whole().give_up_part();
    }
    EXPECT_TRUE(same_bits(go_on(*runner), expected)) << type;
  }
}

// A pass that finds no room for the fork leaves everything as it was.
TEST(KvZip, WithoutRoomForTheRepetitionTheTextWaits) {
  const TemporaryFile file(make_random_model(small_spec()));
  const auto model = load(file.path(), {.threads = 1, .kv_type = "f16"});
  const std::vector<TokenId> prompt = random_tokens(200, small_spec().vocab, 3), next = {5};
  const auto whole = new_runner(model, "kvzip:budget=40");
  ASSERT_TRUE(whole->feed(prompt, 0, Logits::kNone, nullptr).ok());
  const std::uint64_t held = whole->whole().bytes_peak();
  auto cache = *new_cache(model, held + held / 4);
  SequenceRunner runner(model, cache, std::move(*make_policy("kvzip:budget=40")));
  ASSERT_TRUE(runner.feed(prompt, 0, Logits::kNone, nullptr).ok());
  const std::uint64_t used = cache->budget().used();
  EXPECT_EQ(runner.feed(next, 0, Logits::kLast, nullptr, Source::kGenerated).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->budget().used(), used);
  EXPECT_TRUE(runner.whole().status().ok());
  EXPECT_EQ(runner.sequence().mean_length(), 200);
}

// A session repeats a prompt when it has read it, so forks, samples and beams behind it do not.
TEST(KvZip, ASessionHasRepeatedWhatItRead) {
  const TemporaryFile file(make_random_model(small_spec()));
  const auto engine = Engine::open({.model = file.path(), .threads = 1});
  ASSERT_TRUE(engine.ok());
  const auto session = (*engine)->new_session({.policy = "kvzip:budget=40"});
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE((*session)->read(std::string(90, 'x') + std::string(60, 'y')).ok());
  const std::int64_t repeated = (*session)->kv().repeated;
  EXPECT_GT(repeated, 100);
  EXPECT_EQ((*session)->kv().kept, 40);
  const auto beams = (*session)->beam_search({.width = 3, .max_tokens = 6, .ignore_eos = true}, {});
  ASSERT_TRUE(beams.ok()) << beams.status().message();
  EXPECT_EQ(beams->front().tokens, 6);
  const auto samples = (*session)->sample({.max_tokens = 4, .ignore_eos = true}, 2, {});
  ASSERT_TRUE(samples.ok());
  for (const GenerateResult& sample : *samples) EXPECT_EQ(sample.kv.repeated, 0);
  EXPECT_EQ((*session)->kv().repeated, repeated);
}

TEST(KvZip, RefusesWhatCannotBe) {
  for (const auto& [spec, part] :
       {std::pair("kvzip+streaming:cap=100", "composition"), std::pair("kvzip:repeat=10", "64 to 2^20"),
        std::pair("kvzip:share=all", "model, layer, head"),
        std::pair("kvzip:budget=10,sinks=6,recent=6", "recent=6")}) {
    const auto policy = make_policy(spec);
    ASSERT_FALSE(policy.ok()) << spec;
    EXPECT_NE(policy.status().message().find(part), std::string::npos) << policy.status().message();
  }
}

}  // namespace
}  // namespace kvasir::test
