// Quest beside a second implementation of its definition, and beside `full`.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "backend/naive_model.h"
#include "planning/memory_plan.h"
#include "sequence/crowd.h"
#include "sequence/quest_selector.h"

namespace kvasir::test {
namespace {

RandomModelSpec deep_spec() {
  RandomModelSpec spec = small_spec();
  spec.layers = 4;
  spec.context = 1024;
  return spec;
}

// The chunks that a row reads, from the definition: all bounds at once, in double where the sum is exact enough not to
// matter, sorted.
std::set<std::int64_t> chunks_by_definition(const LaneRow& row, std::int64_t tokens, std::int64_t budget, int slots,
                                            std::int64_t recent) {
  const BatchTable& table = *row.table;
  std::set<std::int64_t> read;
  std::int64_t left = budget;
  std::vector<std::pair<float, std::int64_t>> candidates;  // bound, chunk
  std::vector<float> keys(static_cast<std::size_t>(slots * row.head_dim));
  for (std::int64_t chunk = 0; chunk * 16 < tokens; ++chunk) {
    const std::int64_t page = chunk * 16 / slots;
    const bool complete = (chunk + 1) * 16 <= tokens;
    // The row of token t reads page p encoded iff t lies `recent` behind its end (the row's token is tokens - 1).
    const bool open = tokens - 1 < (page + 1) * slots + recent;
    if (chunk == 0 || !complete || open) {
      read.insert(chunk);
      left -= std::min<std::int64_t>(16, tokens - chunk * 16);
      continue;
    }
    const PageEntry& entry = table.frames.front().entries[static_cast<std::size_t>(page)];
    EXPECT_EQ(entry.ordinal, static_cast<std::uint64_t>(page));
    row.store->read_keys(row.page(entry.column), keys.data());
    float largest = -std::numeric_limits<float>::infinity();
    for (int head = 0; head < row.group; ++head) {
      float sum = 0;
      for (int d = 0; d < row.head_dim; ++d) {
        float least = std::numeric_limits<float>::infinity(), most = -least;
        for (int s = 0; s < 16; ++s) {
          const float key = keys[static_cast<std::size_t>((chunk * 16 % slots + s) * row.head_dim + d)];
          least = std::min(least, key);
          most = std::max(most, key);
        }
        const float q = row.queries_of(0)[static_cast<std::size_t>(head * row.head_dim + d)];
        sum += std::max(q * least, q * most);
      }
      largest = std::max(largest, sum);
    }
    candidates.emplace_back(largest, chunk);
  }
  std::ranges::sort(candidates, std::greater<>());
  for (const auto& [bound, chunk] : candidates) {
    if (left < 16) break;
    left -= 16;
    read.insert(chunk);
  }
  return read;
}

// In the place of a sequence's selector: notes what it chooses, and compares it with the definition.
class Checked final : public SequenceSelector {
 public:
  struct Log {
    std::mutex mutex;
    int rows = 0;                                                        // of lanes
    int partial = 0;                                                     // of these, that left something unread
    std::map<std::array<std::int64_t, 3>, std::set<std::int64_t>> read;  // by layer, head, token
  };

  Checked(std::unique_ptr<SequenceSelector> selector, std::int64_t budget, const KvCacheShape& shape, Log* log)
      : selector_(std::move(selector)), budget_(budget), shape_(shape), log_(log) {}

  bool begin_pass(const PolicyChunk& chunk, int first, int rows) override {
    EXPECT_FALSE(chunk.prompt && selector_->begin_pass(chunk, first, rows));
    next_ = chunk.first + first;
    return selector_->begin_pass(chunk, first, rows);
  }
  bool selects(int layer) const override {
    EXPECT_EQ(selector_->selects(layer), layer >= 2);
    return selector_->selects(layer);
  }
  void select(const LaneRow& row, std::span<SlotMask> read) override {
    selector_->select(row, read);
    const std::int64_t tokens = next_ + row.row + 1;
    std::set<std::int64_t> chunks;
    const int slots = shape_.page.slots;
    for (std::int64_t chunk = 0; chunk * 16 < tokens; ++chunk) {
      const SlotMask of_chunk =
          slot_range(static_cast<int>(chunk * 16 % slots), static_cast<int>(chunk * 16 % slots) + 16);
      const SlotMask mask = read[static_cast<std::size_t>(chunk * 16 / slots)] & of_chunk;
      ASSERT_TRUE(mask == 0 || mask == of_chunk);
      if (mask != 0) chunks.insert(chunk);
    }
    const auto expected = chunks_by_definition(row, tokens, budget_, slots, shape_.recent);
    const std::scoped_lock lock(log_->mutex);
    EXPECT_EQ(chunks, expected) << "layer " << row.layer << " head " << row.head << " tokens " << tokens;
    ++log_->rows;
    log_->partial += std::ssize(chunks) * 16 < tokens ? 1 : 0;
    log_->read[{row.layer, row.head, tokens}] = std::move(chunks);
  }
  std::unique_ptr<SequenceSelector> clone() const override { return selector_->clone(); }
  std::uint64_t bytes() const override { return selector_->bytes(); }
  std::uint64_t bytes_for(std::int64_t tokens) const override { return selector_->bytes_for(tokens); }
  void reserve(std::int64_t tokens) override { selector_->reserve(tokens); }
  std::optional<double> tokens_read() const override { return selector_->tokens_read(); }

 private:
  std::unique_ptr<SequenceSelector> selector_;
  std::int64_t budget_;
  KvCacheShape shape_;
  TokenIndex next_ = 0;
  Checked::Log* log_;
};

std::string quest(std::int64_t budget) {
  return fmt::format("quest:budget={}", budget);
}

void check(SequenceRunner& runner, std::int64_t budget, Checked::Log* log) {
  const KvCacheShape& shape = runner.whole().cache()->shape();
  const auto policy = std::move(*make_policy(quest(budget)));
  runner.whole().reads().set_selector(std::make_unique<Checked>(new_selector(*policy, shape), budget, shape, log));
}

const char* const kCodecs[] = {"f32",         "f16", "bf16", "q8", "q4", "q4o", "q3", "q2", "k=q4,v=f16,rotate=off",
                               "q4,recent=40"};

TEST(Quest, ABudgetThatCoversTheTextIsFull) {
  const TemporaryFile file(make_random_model(deep_spec()));
  for (const char* codec : kCodecs)
    for (const int slots : {16, 32, 64}) {
      SCOPED_TRACE(fmt::format("{} {}", codec, slots));
      const auto model = load(file.path(), {.threads = 2, .kv_type = codec, .page_slots = slots});
      const Text text(150, 60, 5);
      const auto full = new_runner(model, "full");
      const auto covered = new_runner(model, quest(210));
      const auto short_of = new_runner(model, quest(100));
      const auto logits = run_text(*full, text, 64);
      EXPECT_TRUE(same_bits(run_text(*covered, text, 64), logits));
      EXPECT_EQ(covered->whole().bytes(), full->whole().bytes());
      const auto less = run_text(*short_of, text, 64);
      const std::size_t prompt = 150 * static_cast<std::size_t>(deep_spec().vocab);
      EXPECT_TRUE(same_bits({less.begin(), less.begin() + prompt}, {logits.begin(), logits.begin() + prompt}));
      EXPECT_FALSE(same_bits(less, logits));
    }
}

TEST(Quest, ReadsTheChunksThatItsDefinitionNames) {
  const TemporaryFile file(make_random_model(deep_spec()));
  for (const char* codec : kCodecs)
    for (const int slots : {16, 32, 64})
      for (const std::int64_t budget : {16, 100, 130}) {
        SCOPED_TRACE(fmt::format("{} {} {}", codec, slots, budget));
        const auto model = load(file.path(), {.threads = 2, .kv_type = codec, .page_slots = slots});
        Checked::Log log;
        const auto runner = new_runner(model, quest(budget));
        check(*runner, budget, &log);
        const auto plain = new_runner(model, quest(budget));
        const Text text(190, 40, 7);
        EXPECT_TRUE(same_bits(run_text(*runner, text, 64), run_text(*plain, text, 64)));
        EXPECT_EQ(log.rows, 40 * 2 * 2);
        EXPECT_EQ(log.partial, log.rows);
      }
}

// Queries and keys that share no arithmetic with the CPU's lead to the same chunks and logits.
TEST(Quest, IsTheNaiveBackends) {
  const TemporaryFile file(make_random_model(deep_spec()));
  const EngineOptions options{.threads = 2, .kv_type = "f32", .page_slots = 16};
  const auto cpu = load(file.path(), options);
  const auto naive = load_naive(file.path(), options);
  const Text text(200, 30, 3);
  Checked::Log on_cpu, on_naive;
  const auto of_cpu = new_runner(cpu, quest(96));
  const auto of_naive = new_runner(naive, quest(96));
  check(*of_cpu, 96, &on_cpu);
  check(*of_naive, 96, &on_naive);
  const auto a = run_text(*of_cpu, text, 40), b = run_text(*of_naive, text, 40);
  EXPECT_EQ(on_cpu.read, on_naive.read);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4);
}

// Where pages hold keys times a Hadamard matrix, the selector still reads the keys themselves.
TEST(Quest, KeysAreReadAsTheyWereBeforeTheHadamardMatrix) {
  const TemporaryFile file(make_random_model(deep_spec()));
  const auto keys_under = [&](const char* codec) {
    const auto model = load(file.path(), {.threads = 1, .kv_type = codec, .page_slots = 32});
    const auto runner = new_runner(model, "full");
    run_text(*runner, Text(100, 1, 2), 100);
    std::vector<float> keys(std::size_t{32} * 8);
    const PageTable& table = runner->sequence().only_table();
    model->store_of(*runner->whole().cache())->read_keys(table.pages().of(1)[0], keys.data());
    return keys;
  };
  const auto exact = keys_under("f32"), rotated = keys_under("q8,rotate=k"), plain = keys_under("q8,rotate=off");
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, static_cast<double>(std::abs(exact[i])));
    EXPECT_NEAR(rotated[i], exact[i], 0.02);
    EXPECT_NEAR(plain[i], exact[i], 0.02);
  }
  EXPECT_GT(largest, 0.3);
}

TEST(Quest, ChunksPassesAndForksChangeNoBits) {
  const TemporaryFile file(make_random_model(deep_spec()));
  for (const char* codec : {"f16", "q4", "q8,recent=40"}) {
    SCOPED_TRACE(codec);
    const auto model = load(file.path(), {.threads = 3, .kv_type = codec, .page_slots = 32});
    const Text text(170, 50, 11);
    const auto logits = run_text(*new_runner(model, quest(80)), text, 512);
    for (const int chunk : {1, 7, 32, 100}) {
      if (chunk == 1) continue;  // read token by token, a prompt is still one: rows read everything
      const auto runner = new_runner(model, quest(80));
      runner->set_most_rows(5 + chunk / 2);
      EXPECT_TRUE(same_bits(run_text(*runner, text, chunk), logits)) << chunk;
    }
    // A fork has no bounds, and computes those of all pages anew.
    const auto runner = new_runner(model, quest(80));
    const auto feed = [&](SequenceRunner& to, std::span<const TokenId> tokens, Source source) {
      std::vector<float> out;
      EXPECT_TRUE(to.feed(
                        tokens, 64, Logits::kAll,
                        [&](std::int64_t, int, std::span<const float> rows) {
                          out.insert(out.end(), rows.begin(), rows.end());
                          return true;
                        },
                        source)
                      .ok());
      return out;
    };
    std::vector<float> own = feed(*runner, text.read(), Source::kPrompt);
    const auto begun = feed(*runner, text.generated().first(20), Source::kGenerated);
    own.insert(own.end(), begun.begin(), begun.end());
    auto fork = runner->fork();
    ASSERT_TRUE(fork.ok());
    const auto rest = feed(**fork, text.generated().subspan(20), Source::kGenerated);
    own.insert(own.end(), rest.begin(), rest.end());
    EXPECT_TRUE(same_bits(own, logits));
  }
}

TEST(Quest, BoundsArePlannedToTheByte) {
  const TemporaryFile file(make_random_model(deep_spec()));
  for (const char* codec : {"f16", "q4"})
    for (const std::int64_t prompt : {250, 600})
      for (const std::int64_t budget : {64, 300, 700}) {
        SCOPED_TRACE(fmt::format("{} prompt {} budget {}", codec, prompt, budget));
        const auto model = load(file.path(), {.threads = 1, .kv_type = codec, .page_slots = 32});
        const Text text(static_cast<int>(prompt), static_cast<int>(600 - prompt), 3);
        const auto policy = *make_policy(quest(budget));
        const KvMemory plan = plan_kv_memory(model->kv_shape, *policy, {600, prompt, 100, 1});
        EXPECT_EQ(plan.policy_bytes > 0, budget < 600);
        EXPECT_TRUE(plan.exact);
        const auto runner = new_runner(model, quest(budget), plan.bytes);
        run_text(*runner, text, 100);
        EXPECT_EQ(runner->whole().cache()->budget().peak(), plan.bytes);
        EXPECT_EQ(runner->whole().reads().selector()->bytes(), plan.policy_bytes);
        EXPECT_EQ(runner->whole().bytes_peak(), plan.bytes);
        const auto less = new_runner(model, quest(budget), plan.bytes - 1);
        Status status = less->feed(text.read(), 100, Logits::kNone, {}, Source::kPrompt);
        if (status.ok()) status = less->feed(text.generated(), 100, Logits::kNone, {}, Source::kGenerated);
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      }
}

// Sequences with a selector and without share passes.
TEST(Quest, ACrowdHasTheBitsOfEachAlone) {
  const TemporaryFile file(make_random_model(deep_spec()));
  for (const char* codec : {"f16", "q4"}) {
    const auto model = load(file.path(), {.threads = 3, .kv_type = codec, .page_slots = 16});
    Crowd world(model, {"full", "quest:budget=32", "quest:budget=64", "quest:budget=40%", "h2o:budget=40,recent=10"},
                41);
    world.run(6, 120);
    if (HasFatalFailure()) return;
    EXPECT_GT(world.events.mixed, 30);
    EXPECT_GT(world.events.forks, 1);
  }
}

TEST(Quest, WhatARowReadsFollowsFromTheNumberOfTokens) {
  KvCacheShape shape{.layers = 6, .kv_heads = 2, .page = {.head_dim = 8, .slots = 32}};
  const QuestSelector quest({.tokens = 128}, shape);
  EXPECT_TRUE(quest.choice_at(128).all());
  EXPECT_EQ(quest.choice_at(128).read, 128);
  // 161 tokens: the first chunk, the open page's one token, and 6 of the 9 chunks between.
  const QuestSelector::Choice choice = quest.choice_at(161);
  EXPECT_EQ(choice.first, 1);
  EXPECT_EQ(choice.end, 10);
  EXPECT_EQ(choice.count, 6);
  EXPECT_EQ(choice.read, 16 + 1 + 6 * 16);
  shape.recent = 64;  // the last 65 tokens are in pages of 16 bits
  EXPECT_EQ(QuestSelector({.tokens = 128}, shape).choice_at(161).read, 16 + 65 + 2 * 16);
  shape.recent = 0;
  shape.window = 100;  // tokens 0 to 60 are hidden; chunk 3 is cut by the edge
  const QuestSelector::Choice windowed = QuestSelector({.tokens = 64}, shape).choice_at(161);
  EXPECT_EQ(windowed.visible, 100);
  EXPECT_EQ(windowed.first, 3);
  EXPECT_EQ(windowed.count, 3);
  EXPECT_EQ(windowed.read, 1 + 3 * 16);
}

}  // namespace
}  // namespace kvasir::test
