// What a policy drops moves down, and is read again where it may matter: beside independent formulas, beside `full`,
// beside the naive backend, and beside itself alone, in a file, and after it was recomputed.
#include "offload/demotion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "backend/naive_model.h"
#include "planning/memory_plan.h"
#include "requests/request_desk.h"
#include "session/session.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

using Fault = FaultyFile::Fault;

RandomModelSpec demoting_spec() {
  RandomModelSpec spec = small_spec();
  spec.layers = 3;
  spec.context = 1024;
  return spec;
}

std::shared_ptr<LoadedModel> load_demoting(const std::string& path, int slots = 16, const std::string& codec = "f16") {
  EngineOptions options{.threads = 2, .kv_type = codec, .page_slots = slots};
  options.demote_dir = std::filesystem::temp_directory_path().string();
  return load(path, options);
}

const std::vector<std::string>& demoting_policies() {
  static const std::vector<std::string> policies = {
      "h2o:budget=40,recent=16,pos=original",
      "h2o:budget=40,recent=16,pos=original,heads=independent",
      "tova:budget=40,pos=original",
      "snapkv:budget=40,window=8,pos=original",
      "streaming:sinks=4,window=36",
      "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
      "window:size=40",
  };
  return policies;
}

std::string demoting(const std::string& policy, const std::string& demotion) {
  return with_demotion(policy, demotion);
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

double mean_difference(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum / static_cast<double>(a.size());
}

// Keys of layer 0, which depend on their tokens alone: [head][token][dimension].
std::vector<std::vector<std::vector<float>>> keys_of_first_layer(const std::shared_ptr<LoadedModel>& model,
                                                                 std::span<const TokenId> tokens) {
  const auto runner = new_runner(model, "full");
  all_logits(*runner, tokens, 64);
  const PageTable& table = runner->sequence().table(0);
  const PageFormat& page = model->kv_shape.page;
  std::vector<std::vector<std::vector<float>>> keys(static_cast<std::size_t>(model->config.governed().kv_heads));
  std::vector<float> of_page(static_cast<std::size_t>(page.slots * page.head_dim));
  for (const LiveToken& token : live_tokens(table))
    for (int head = 0; head < model->config.governed().kv_heads; ++head) {
      model->store_of(*runner->whole().cache())
          ->read_keys(table.pages().of(token.column)[static_cast<std::size_t>(head)], of_page.data());
      const auto first = of_page.begin() + static_cast<std::ptrdiff_t>(token.slot) * page.head_dim;
      keys[static_cast<std::size_t>(head)].emplace_back(first, first + page.head_dim);
    }
  return keys;
}

// A table's drops, seen from outside: what it retained before a pass, and the pass's own tokens, less what it retains
// afterwards, in order of index.
struct Drops {
  std::vector<std::vector<TokenIndex>> before, dropped;  // by table

  explicit Drops(int tables) : before(static_cast<std::size_t>(tables)), dropped(static_cast<std::size_t>(tables)) {}

  void note(const KvSequence& sequence, TokenIndex first) {
    for (std::size_t t = 0; t < before.size(); ++t) {
      for (TokenIndex token = first; token < sequence.next_index(); ++token) before[t].push_back(token);
      std::vector<TokenIndex> now = retained_ids(sequence.table(static_cast<int>(t)));
      std::ranges::set_difference(before[t], now, std::back_inserter(dropped[t]));
      before[t] = std::move(now);
    }
  }
};

// Feeds a text a chunk at a time.
void feed_noting(SequenceRunner& runner, const Text& text, int chunk, Drops* drops) {
  for (const bool prompt : {true, false}) {
    std::span<const TokenId> rest = prompt ? text.read() : text.generated();
    while (!rest.empty()) {
      const TokenIndex first = runner.sequence().next_index();
      const auto pass = runner.feed_pass(rest, chunk, Logits::kLast, prompt ? Source::kPrompt : Source::kGenerated);
      ASSERT_TRUE(pass.ok()) << pass.status().message();
      rest = rest.subspan(static_cast<std::size_t>(pass->tokens));
      drops->note(runner.sequence(), first);
    }
  }
}

TEST(Demotion, HoldsWhatWasDroppedInOrder) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const auto model = load_demoting(file.path());
  const Text text(150, 60, 5);
  const auto keys = keys_of_first_layer(model, text.tokens);
  for (const std::string& policy : demoting_policies()) {
    SCOPED_TRACE(policy);
    const auto runner = new_runner(model, demoting(policy, "f16"));
    const int tables = runner->sequence().tables();
    Drops drops(tables);
    ASSERT_NO_FATAL_FAILURE(feed_noting(*runner, text, 32, &drops));
    const std::span<const DemotedPages> demoted = runner->whole().offloaded().demotion()->tables();
    ASSERT_EQ(std::ssize(demoted), tables);
    for (int t = 0; t < tables; ++t) {
      const DemotedPages& pages = demoted[static_cast<std::size_t>(t)];
      std::vector<TokenIndex> expected = drops.dropped[static_cast<std::size_t>(t)];
      ASSERT_GT(std::ssize(expected), 100);
      ASSERT_EQ(pages.tokens(), std::ssize(expected));
      // Of layer 0: per head under policies that decide by head.
      const int per_layer = tables > 3 ? tables / 3 : 1;
      const bool first_layer = tables == 1 || t < per_layer;
      if (!first_layer) continue;
      for (int lane = 0; lane < (per_layer > 1 ? 1 : model->config.governed().kv_heads); ++lane) {
        const int head = per_layer > 1 ? t : lane;
        for (std::int64_t column = 0; column < pages.columns(); ++column) {
          const auto begin = expected.begin() + column * 16;
          const auto end = expected.begin() + std::min<std::int64_t>(column * 16 + 16, std::ssize(expected));
          std::vector<TokenIndex> tokens(begin, end);
          if (!pages.is_open(column)) std::ranges::sort(tokens);
          ASSERT_EQ(pages.live(column), slot_range(0, static_cast<int>(tokens.size())));
          std::vector<float> held(static_cast<std::size_t>(16 * model->config.governed().head_dim));
          model->store_of(*runner->whole().cache())->read_keys(pages.page(column, lane), held.data());
          for (int d = 0; d < model->config.governed().head_dim; ++d) {
            float low = std::numeric_limits<float>::infinity(), high = -low;
            for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
              const float key = keys[static_cast<std::size_t>(head)][static_cast<std::size_t>(tokens[slot])]
                                    [static_cast<std::size_t>(d)];
              ASSERT_EQ(held[slot * static_cast<std::size_t>(model->config.governed().head_dim) +
                             static_cast<std::size_t>(d)],
                        key);
              low = std::min(low, key);
              high = std::max(high, key);
            }
            ASSERT_EQ(pages.bounds(column, lane)[d], low);
            ASSERT_EQ(pages.bounds(column, lane)[model->config.governed().head_dim + d], high);
          }
        }
      }
    }
  }
}

// Asks a recall of its own, with random queries, for what the definition says.
TEST(Demotion, ChoosesByTheDefinition) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  for (const int slots : {16, 32}) {
    const auto model = load_demoting(file.path(), slots);
    const Text text(300, 40, 6);
    const auto runner = new_runner(model, demoting("h2o:budget=40,recent=16,pos=original", "q4"));
    run_text(*runner, text, 64);
    const std::span<const DemotedPages> tables = runner->whole().offloaded().demotion()->tables();
    KvCache& cache = *runner->whole().cache();
    const int dim = model->config.governed().head_dim,
              group = model->config.governed().heads / model->config.governed().kv_heads;
    std::mt19937_64 random(7);
    int cut = 0, some = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const int most = 1 + trial % 8;
      Recall recall(&cache.pool(), tables, model->config.governed_layers(), model->config.governed().kv_heads, most);
      ASSERT_TRUE(recall.reserve().ok());
      recall.begin_pass(339);
      BatchTable batch;
      batch.rows = 1;
      batch.frames.resize(1);
      batch.query_positions = {339};
      std::normal_distribution<float> normal(0, 1.0F + static_cast<float>(trial % 5));
      std::vector<float> queries(static_cast<std::size_t>(group * dim)), highest(static_cast<std::size_t>(group));
      for (float& q : queries) q = normal(random);
      const int layer = trial % 3, head = trial % model->config.governed().kv_heads;
      const DemotedPages& table = tables[static_cast<std::size_t>(layer)];
      // By the definition, in double, from the keys as they are read.
      std::vector<double> above(static_cast<std::size_t>(table.columns()), -1e30);
      for (float& h : highest) h = normal(random);
      for (std::int64_t c = 0; c < table.columns(); ++c) {
        std::vector<float> keys(static_cast<std::size_t>(slots * dim));
        cache.pool().store()->read_keys(table.page(c, head), keys.data());
        const int live = std::popcount(table.live(c));
        for (int first = 0; first < live; first += 16)
          for (int g = 0; g < group; ++g) {
            double bound = 0;
            for (int d = 0; d < dim; ++d) {
              double most_product = -1e30;
              for (int s = first; s < std::min(live, first + 16); ++s)
                most_product =
                    std::max(most_product, static_cast<double>(queries[static_cast<std::size_t>(g * dim + d)]) *
                                               static_cast<double>(keys[static_cast<std::size_t>(s * dim + d)]));
              bound += most_product;
            }
            above[static_cast<std::size_t>(c)] = std::max(
                above[static_cast<std::size_t>(c)], bound - static_cast<double>(highest[static_cast<std::size_t>(g)]));
          }
      }
      // So that some of them are above the threshold, and none at it.
      std::vector<double> sorted = above;
      std::ranges::sort(sorted);
      const auto rank = static_cast<std::size_t>(trial) % (sorted.size() - 1);
      const auto shift = static_cast<float>((sorted[rank] + sorted[rank + 1]) / 2 + std::log(1000.0));
      for (float& h : highest) h += shift;
      for (double& a : above) a -= static_cast<double>(shift);
      std::vector<std::int64_t> order;
      for (std::int64_t c = 0; c < table.columns(); ++c)
        if (above[static_cast<std::size_t>(c)] > -std::log(1000.0)) order.push_back(c);
      std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
        return above[static_cast<std::size_t>(a)] > above[static_cast<std::size_t>(b)];
      });
      cut += std::ssize(order) > most ? 1 : 0;
      some += !order.empty() && std::ssize(order) < table.columns() ? 1 : 0;
      if (std::ssize(order) > most) order.resize(static_cast<std::size_t>(most));
      std::ranges::sort(order);
      LaneRow row{layer, head, 0, &batch, head, cache.pool().store(), group, dim, queries.data(), 0};
      recall.choose(row, highest);
      recall.fetch(layer);
      std::vector<PageId> expected, chosen;
      for (const std::int64_t c : order) expected.push_back(table.page(c, head));
      for (const RecalledPage& page : recall.chosen(head)) chosen.push_back(page.page);
      EXPECT_EQ(chosen, expected);
    }
    EXPECT_GT(cut, 20);
    EXPECT_GT(some, 20);
  }
}

// snapkv drops nothing before the prompt ends, so that all but the answer is as under `full`; and an answer that reads
// all that was dropped is as under `full`, too.
TEST(Demotion, RecallingAllIsFull) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  for (const std::string codec : {"f16", "q8", "k=q4,v=f16", "q4"}) {
    SCOPED_TRACE(codec);
    const auto model = load_demoting(file.path(), 16, codec);
    const Text text(120, 24, 3);
    const std::size_t prompt = 120 * static_cast<std::size_t>(demoting_spec().vocab);
    const std::string policy = "snapkv:budget=40,window=8,pos=original";
    const auto full = run_text(*new_runner(model, "full"), text, 64);
    const auto plain = run_text(*new_runner(model, policy), text, 64);
    const auto runner = new_runner(model, demoting(policy, "f16,recall=8"));
    const auto with = run_text(*runner, text, 64);
    EXPECT_TRUE(same_bits({with.begin(), with.begin() + static_cast<std::ptrdiff_t>(prompt)},
                          {plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(prompt)}));
    const auto of_answer = [&](const std::vector<float>& all) { return std::span(all).subspan(prompt); };
    const double lost = mean_difference(of_answer(plain), of_answer(full));
    const double left = mean_difference(of_answer(with), of_answer(full));
    // Where the cache has a codec, packing encodes again what stays.
    EXPECT_LT(left, codec == "f16" ? 1e-5 : 0.25 * lost) << lost;
    EXPECT_GT(lost, 0.01);
    EXPECT_EQ(runner->whole().offloaded().demotion()->report().recalled,
              3 * model->config.governed().kv_heads * 24 * 5);
  }
}

TEST(Demotion, BringsAnswersNearerToFull) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const auto model = load_demoting(file.path());
  const Text text(120, 40, 3);
  const std::size_t prompt = 119 * static_cast<std::size_t>(demoting_spec().vocab);  // but for its last row
  const auto full = run_text(*new_runner(model, "full"), text, 40);
  for (const std::string& policy : demoting_policies()) {
    SCOPED_TRACE(policy);
    const auto without = run_text(*new_runner(model, policy), text, 40);
    const auto with = run_text(*new_runner(model, demoting(policy, "q8,recall=8")), text, 40);
    EXPECT_TRUE(same_bits({with.begin(), with.begin() + static_cast<std::ptrdiff_t>(prompt)},
                          {without.begin(), without.begin() + static_cast<std::ptrdiff_t>(prompt)}));
    const auto of_answer = [&](const std::vector<float>& all) { return std::span(all).subspan(prompt); };
    EXPECT_LT(mean_difference(of_answer(with), of_answer(full)),
              0.9 * mean_difference(of_answer(without), of_answer(full)));
  }
}

TEST(Demotion, WithinTheBudgetItChangesNothing) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const auto model = load_demoting(file.path());
  const Text text(120, 40, 3);
  for (const char* policy : {"h2o:budget=300,recent=16,pos=original", "streaming:sinks=4,window=200"})
    EXPECT_TRUE(same_bits(run_text(*new_runner(model, demoting(policy, "q4")), text, 40),
                          run_text(*new_runner(model, policy), text, 40)));
}

TEST(Demotion, TheNaiveBackendAgrees) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  for (const std::string& policy : demoting_policies())
    for (const char* demotion : {"f16", "q4,recall=2"}) {
      SCOPED_TRACE(policy + " " + demotion);
      const auto cpu = load_demoting(file.path());
      const auto naive = load_naive(file.path(), {.page_slots = 16});
      const Text text(70, 12, 4);
      const auto fast = run_text(*new_runner(cpu, demoting(policy, demotion)), text, 32);
      const auto slow = run_text(*new_runner(naive, demoting(policy, demotion)), text, 32);
      EXPECT_LT(largest_difference(fast, slow), 0.02);
      EXPECT_GT(largest_difference(fast, run_text(*new_runner(cpu, policy), text, 32)), 0.1);
    }
}

TEST(Demotion, UnderPoliciesByRangeChunksChangeNothing) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  for (const char* codec : {"f16", "q4"}) {
    const auto model = load_demoting(file.path(), 32, codec);
    const Text text(133, 20, 8);
    for (const char* policy :
         {"streaming:sinks=4,window=36", "window:size=40", "streaming:sinks=3,window=33,every=7"}) {
      SCOPED_TRACE(policy);
      const auto whole = run_text(*new_runner(model, demoting(policy, "q4")), text, 512);
      for (const int chunk : {7, 32, 133})
        EXPECT_TRUE(same_bits(run_text(*new_runner(model, demoting(policy, "q4")), text, chunk), whole)) << chunk;
    }
  }
}

TEST(Demotion, ForksAndPassesHaveTheSameBits) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const char* const kDemotions[] = {"q4,recall=2", "file,recall=2", "q4,file,memory=0"};
  for (const char* demotion : kDemotions) {
    SCOPED_TRACE(demotion);
    const auto model = load_demoting(file.path(), 32, demotion == kDemotions[2] ? "q8" : "f16");
    std::vector<std::string> policies = {"full"};
    for (const std::string& policy : demoting_policies()) policies.push_back(demoting(policy, demotion));
    Crowd world(model, policies, 5);
    world.run(5, 60);
    EXPECT_GT(world.events.forks, 0);
    EXPECT_EQ(model->demotion_file->used(), 0u);
  }
}

TEST(Demotion, AFileChangesNothing) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const Text text(200, 40, 9);
  for (const auto& [codec, memory, away] : {std::tuple("f16", "q4", "q4,file,memory=0"),
                                            {"f16", "f16", "file"},
                                            {"f16", "q4", "q4,file,memory=5kB"},
                                            {"q8", "q8", "file"}})
    for (const std::string& policy : demoting_policies()) {
      SCOPED_TRACE(policy + " " + away);
      const auto model = load_demoting(file.path(), 16, codec);
      const auto runner = new_runner(model, demoting(policy, away));
      EXPECT_TRUE(
          same_bits(run_text(*runner, text, 40), run_text(*new_runner(model, demoting(policy, memory)), text, 40)));
      const SequenceDemotion::Report report = runner->whole().offloaded().demotion()->report();
      EXPECT_GT(report.fetched, 0);
      EXPECT_GT(report.recalled, report.fetched);
      EXPECT_GT(report.file_bytes, 5000u);
      EXPECT_EQ(model->demotion_file->used(), report.file_bytes);
    }
}

TEST(Demotion, AFailedTransferEndsItsSequenceAlone) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const auto model = load_demoting(file.path());
  const Text text(200, 40, 9);
  const std::string policy = demoting("h2o:budget=40,recent=16,pos=original", "file");
  const auto expected = run_text(*new_runner(model, policy), text, 40);
  int failed = 0, whole = 0;
  for (const bool reads : {true, false})
    for (const Fault fault : {Fault::kError, Fault::kDamaged})
      for (const int number : {0, 1, 7, 30, 100000}) {
        SCOPED_TRACE(
            fmt::format("{} {} {}", reads ? "read" : "write", number, fault == Fault::kError ? "fails" : "lies"));
        const auto own = load_demoting(file.path());
        own->demotion_file = std::make_unique<DemotionFile>(
            [&]() -> Result<std::unique_ptr<AsyncFile>> {
              return {std::make_unique<FaultyFile>(
                  [=](bool is_read, int n) { return is_read == reads && n == number ? fault : Fault::kNone; }, 2)};
            },
            std::uint64_t{1} << 30);
        const std::shared_ptr<KvCache> cache = *new_cache(own, std::uint64_t{1} << 28);
        // Beside another that needs no file.
        SequenceRunner other(own, cache,
                             std::move(*make_policy(demoting("h2o:budget=40,recent=16,pos=original", "f16"))));
        SequenceRunner runner(own, cache, std::move(*make_policy(policy)));
        std::vector<float> logits;
        const Status status = feed_text(runner, text, 40, &logits);
        // Nothing wrong was ever read.
        EXPECT_TRUE(same_bits(logits, {expected.begin(), expected.begin() + std::ssize(logits)}));
        EXPECT_EQ(status.ok(), logits.size() == expected.size());
        (status.ok() ? whole : failed) += 1;
        if (!status.ok()) {
          EXPECT_THAT(std::string(status.message()),
                      ::testing::HasSubstr(!reads && fault == Fault::kError
                                               ? "what is demoted cannot be written to a file"
                                               : "what was demoted to a file cannot be read back"));
          EXPECT_FALSE(runner.whole().fork().ok());
        }
        EXPECT_TRUE(same_bits(run_text(other, text, 40), expected));
      }
  EXPECT_GE(failed, 12);
  EXPECT_GE(whole, 4);
}

// A file of a sequence's own says nothing of pages that others share.
TEST(Demotion, AFailedTransferCostsNobodyAPrefix) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const auto model = load_demoting(file.path());
  model->demotion_file = std::make_unique<DemotionFile>(
      [&]() -> Result<std::unique_ptr<AsyncFile>> {
        return {
            std::make_unique<FaultyFile>([](bool is_read, int) { return is_read ? Fault::kDamaged : Fault::kNone; })};
      },
      std::uint64_t{1} << 30);
  Desk desk(model, std::uint64_t{1} << 26);
  desk.queue().cache_prefixes(std::uint64_t{1} << 25);
  const auto run = [&](const std::string& policy) {
    RequestOptions request{.prompt = random_text(200, 4), .policy = policy};
    request.generate = {.max_tokens = 60, .ignore_eos = true};
    const RequestId id = desk.add(request);
    while (desk.queue().unfinished() > 0 && !testing::Test::HasFatalFailure()) desk.poll();
    return desk.told(id);
  };
  EXPECT_EQ(run("full").result.cached, 0);
  const Desk::Told failed = run(demoting("streaming:sinks=4,window=36", "file"));
  ASSERT_TRUE(failed.failed);
  EXPECT_EQ(failed.status.code(), StatusCode::kDataLoss) << failed.status.message();
  EXPECT_GT(run("full").result.cached, 150);
}

TEST(Demotion, AFullFileEndsItsSequence) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  const auto model = load_demoting(file.path());
  model->demotion_file->resize(10000);
  const Text text(200, 40, 9);
  const auto runner = new_runner(model, demoting("h2o:budget=40,recent=16,pos=original", "file"));
  const Status status = runner->feed(text.read(), 40, Logits::kLast, {});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("may have 10000 bytes"));
  EXPECT_LE(model->demotion_file->used(), 10000u);
}

TEST(Demotion, IsChargedAsPlanned) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  for (const char* demotion : {"q4", "f16", "file", "q4,file,memory=30kB"})
    for (const std::string& policy : demoting_policies()) {
      SCOPED_TRACE(policy + " " + demotion);
      const auto model = load_demoting(file.path(), 32);
      const auto made = std::move(*make_policy(demoting(policy, demotion)));
      const KvMemory plan = plan_kv_memory(model->kv_shape, *made, {400, 300, 64, 1});
      EXPECT_EQ(plan.demoted_bytes, SequenceDemotion::most_bytes(*made, model->kv_shape, 400));
      EXPECT_EQ(plan.bytes - plan.demoted_bytes,
                plan_kv_memory(model->kv_shape, **make_policy(policy), {400, 300, 64, 1}).bytes);
      const auto runner = new_runner(model, demoting(policy, demotion), plan.bytes);
      const MemoryBudget& budget = runner->whole().cache()->budget();
      run_text(*runner, Text(300, 100, 3), 64, [&](int) { EXPECT_EQ(budget.used(), runner->whole().bytes()); });
      EXPECT_LE(budget.peak(), plan.bytes);
      EXPECT_EQ(runner->whole().bytes_peak(), budget.peak());
      for (const DemotedPages& table : runner->whole().offloaded().demotion()->tables()) {
        EXPECT_GT(table.tokens(), 200);
        EXPECT_EQ(table.bytes(), DemotedPages::bytes_for(table.layout(), table.tokens()));
        EXPECT_EQ(table.bytes(), table.own_bytes());
      }
      // A fork shares what is encoded.
      const std::uint64_t before = budget.used();
      const SequenceDemotion& demotion_of = *runner->whole().offloaded().demotion();
      const std::uint64_t own = demotion_of.fork_bytes() + runner->sequence().table_bytes();
      const auto fork = runner->whole().fork();
      if (!fork.ok()) {
        EXPECT_GT(before + own + runner->whole().state_bytes(), plan.bytes);
        continue;
      }
      EXPECT_EQ((*fork)->offloaded().demotion()->bytes(), demotion_of.bytes());
      EXPECT_EQ(budget.used() - before, own + (*fork)->state_bytes());
    }
}

// A twin may have sent a shared column to the file, and given its pages back: what is planned for the next column does
// not come from there.
TEST(Demotion, ATwinThatGoesFirstLeavesWhatIsPlanned) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  int grew = 0;
  for (const std::string& policy : demoting_policies()) {
    SCOPED_TRACE(policy);
    const auto model = load_demoting(file.path(), 16);
    const auto first = new_runner(model, demoting(policy, "file"));
    run_text(*first, Text(110, 0, 3), 32);
    auto fork = first->whole().fork();
    ASSERT_TRUE(fork.ok()) << fork.status().message();
    SequenceRunner twin(std::move(*fork));
    const std::vector<TokenId> more = random_tokens(120, model->config.vocabulary, 5);
    for (SequenceRunner* runner : {&twin, first.get()})
      for (const TokenId& token : more) {
        const SequenceDemotion& demotion = *runner->whole().offloaded().demotion();
        const std::uint64_t before = demotion.bytes();
        const std::uint64_t may_take = demotion.may_take(runner->sequence(), 1);
        ASSERT_TRUE(runner->feed({&token, 1}, 1, Logits::kNone, {}, Source::kGenerated).ok());
        const std::uint64_t after = demotion.bytes();
        EXPECT_LE(after, before + may_take);
        grew += after > before;
      }
  }
  EXPECT_GT(grew, 20);
}

TEST(Demotion, RequestsArePreemptedAndRecomputed) {
  const TemporaryFile file(make_random_model(demoting_spec()));
  for (const std::uint64_t seed : {1, 2}) {
    const auto model = load_demoting(file.path());
    std::vector<std::string> policies;
    for (const std::string& policy : demoting_policies())
      policies.push_back(demoting(policy, seed == 1 ? "q4" : "q4,file,memory=0"));
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 24; ++i) {
      requests.push_back(random_request(random, policies, 60));
      requests.back().samples = 1;
      const KvMemory plan = plan_kv_memory(model->kv_shape, **make_policy(requests.back().policy), {200, 130, 0, 1});
      most = std::max(most, plan.bytes);
    }
    Desk desk(model, most * 3 / 2, {.prompt_rows = 30, .running = 10, .ahead = 0});
    desk.queue().swap_to(
        std::move(*SpillFile::create(std::make_unique<FaultyFile>(no_fault), 64 * SpillFile::kPartBytes)), true);
    for (const RequestOptions& request : requests) {
      desk.add(request);
      for (auto polls = random() % 6; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
    EXPECT_GT(desk.queue().counters().preempted, 0);
  }
}

TEST(Demotion, IsRefusedWhereItCannotBe) {
  const auto refusal = [](const std::string& spec) {
    const auto made = make_policy(spec);
    return made.ok() ? std::string() : std::string(made.status().message());
  };
  for (const char* policy : {"full", "quest:budget=64", "streaming:every=0"})
    EXPECT_THAT(refusal(demoting(policy, "q4")), ::testing::HasSubstr("drops nothing")) << policy;
  for (const char* policy : {"h2o:budget=40,recent=10", "tova:budget=40,pos=compact", "cascade:size=32,n=2"})
    EXPECT_THAT(refusal(demoting(policy, "q4")), ::testing::HasSubstr("pos=original")) << policy;
  EXPECT_THAT(refusal("streaming:window=40,realign=rotate@demote=q4"), ::testing::HasSubstr("realign=rotate"));
  for (const char* demotion : {"f32", "q5", "", "file,file", "file,q4", "q4,q8", "q4,memory=1MiB", "file,memory=1MiB",
                               "q4,recall=9", "q4,recall=0", "recall=4", "q4,x=1", "q4,file,memory=x"})
    EXPECT_FALSE(make_policy("tova:budget=40,pos=original@demote=" + std::string(demotion)).ok()) << demotion;
  for (const char* demotion : {"q4", "file", "q4,file", "f16,recall=2", "q4,file,memory=1MiB"}) {
    const auto made = make_policy("tova:budget=40,pos=original@demote=" + std::string(demotion));
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ((*made)->traits().spec, "tova:budget=40,pos=original@demote=" + std::string(demotion));
  }
  EXPECT_EQ((*make_policy("tova:budget=040,pos=original@demote=recall=4,q4"))->traits().spec,
            "tova:budget=40,pos=original@demote=q4");
  EXPECT_EQ(with_demotion("a:b=1@demote=q4", "off"), "a:b=1");
  EXPECT_EQ(with_demotion("a:b=1@demote=q4", "file"), "a:b=1@demote=file");

  RandomModelSpec spec = demoting_spec();
  const TemporaryFile file(make_random_model(spec));
  const auto without_folder = load(file.path(), {.threads = 2});
  EXPECT_THAT(std::string(new_runner(without_folder, "window:size=40@demote=file")->whole().status().message()),
              ::testing::HasSubstr("no folder"));
  const auto wide = load(file.path(), {.threads = 2, .kv_type = "f32"});
  EXPECT_THAT(std::string(new_runner(wide, "window:size=40@demote=q4")->whole().status().message()),
              ::testing::HasSubstr("not f32"));
  const auto session_model = load_demoting(file.path());
  const auto session = make_session(std::make_shared<BatchRunner>(session_model, *new_cache(session_model, 1 << 28)),
                                    std::move(*make_policy("window:size=40@demote=q4")));
  ASSERT_TRUE(session->read(random_text(100, 3)).ok());
  const Status saved = session->save("/nowhere");
  EXPECT_EQ(saved.code(), StatusCode::kUnsupported) << saved.message();
  // Beyond the trained context.
  const auto runner = new_runner(session_model, "window:size=40@demote=q4");
  EXPECT_EQ(runner->policy().context_use(), ContextUse::kText);
}

}  // namespace
}  // namespace kvasir::test
