// SyncKV with its cold tier: what leaves memory changes no bit, comes back in time, is charged as planned, and fails
// alone.
#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "offload/clustered_profile.h"
#include "offload/follower_heads.h"
#include "planning/memory_plan.h"
#include "requests/request_desk.h"
#include "retention/head_profile.h"
#include "sequence/crowd.h"
#include "sequence/kv_report.h"
#include "sequence/policy_cases.h"
#include "session/session.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

using Fault = FaultyFile::Fault;

constexpr int kLayers = 3, kHeads = 4;

RandomModelSpec offloading_spec() {
  RandomModelSpec spec = small_spec();
  spec.layers = kLayers;
  spec.heads = 8;
  spec.kv_heads = kHeads;
  spec.d = 64;
  spec.context = 1024;
  return spec;
}

class SyncKvOffload : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = std::make_unique<TemporaryFile>(make_random_model(offloading_spec()));
    const auto model = load_model();
    profile_ = clustered_profile(model->fingerprint);
    path_ = file_->path() + ".profile";
    write_text(path_, format_head_profile(profile_));
  }
  static void TearDownTestSuite() {
    std::remove(path_.c_str());
    file_.reset();
  }

  static std::shared_ptr<LoadedModel> load_model(int slots = 16, const std::string& codec = "f16", int threads = 2) {
    EngineOptions options{.threads = threads, .kv_type = codec, .page_slots = slots};
    options.demote_dir = std::filesystem::temp_directory_path().string();
    return load(file_->path(), options);
  }
  static std::string with_profile(const std::string& spec) { return spec + ",reps=2,profile=" + path_; }

  static void feed(SequenceRunner& runner, std::span<const TokenId> tokens, bool prompt, int chunk,
                   std::vector<float>* logits) {
    const Status status = runner.feed(
        tokens, chunk, SequenceRunner::Logits::kAll,
        [&](std::int64_t, int, std::span<const float> out) {
          logits->insert(logits->end(), out.begin(), out.end());
          return true;
        },
        prompt ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  static std::unique_ptr<TemporaryFile> file_;
  static HeadProfile profile_;
  static std::string path_;
};
std::unique_ptr<TemporaryFile> SyncKvOffload::file_;
HeadProfile SyncKvOffload::profile_;
std::string SyncKvOffload::path_;

std::vector<std::string> offloading_policies() {
  return {"synckv:budget=20,recent=6",          "synckv:budget=33,recent=0,stride=1,static=0",
          "synckv:mem=60%,recent=3,stride=3",   "synckv:budget=25,recent=40",
          "synckv:budget=31,recent=9,static=1", "synckv:mem=90%,recent=7,stride=2"};
}

// The same bits as with everything in memory: prompts and what is generated, in several turns.
TEST_F(SyncKvOffload, ChangesNoBit) {
  struct Segment {
    int tokens;
    bool prompt;
  };
  const std::vector<std::vector<Segment>> texts = {
      {{190, true}, {60, false}},
      {{5, false}, {130, true}, {45, false}, {70, true}, {30, false}, {1, true}, {20, false}},
  };
  std::int64_t stalls = 0, fetches = 0;
  for (const char* codec : {"f16", "f32", "bf16"})
    for (const int slots : {16, 32, 64}) {
      if (slots == 64 && codec != std::string("f16")) continue;
      const auto model = load_model(slots, codec);
      for (const std::string& base : offloading_policies())
        for (const bool profile : {false, true}) {
          const std::string policy = profile ? with_profile(base) : base;
          if (!profile && base.find("mem=60%") == std::string::npos && slots != 16) continue;
          for (const auto& text : texts) {
            SCOPED_TRACE(fmt::format("{} {} {} {}", policy, codec, slots, text.size()));
            const auto tokens = random_tokens(500, offloading_spec().vocab, 7);
            const auto off = new_runner(model, policy), on = new_runner(model, policy + ",offload=file");
            int done = 0;
            for (const Segment& segment : text) {
              std::vector<float> expected, got;
              const auto part =
                  std::span(tokens).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(segment.tokens));
              feed(*off, part, segment.prompt, 32, &expected);
              feed(*on, part, segment.prompt, 32, &got);
              ASSERT_TRUE(same_bits(got, expected)) << "behind " << done;
              done += segment.tokens;
            }
            const FollowerHeads* followers = on->whole().offloaded().followers();
            ASSERT_NE(followers, nullptr);
            EXPECT_FALSE(followers->empty());
            EXPECT_GT(followers->report(on->sequence()).cold_bytes, 0u);
            // Without a profile nothing has left when the first ones are chosen; with static=1 there are no others.
            if (profile || base.find("static=1") == std::string::npos) {
              EXPECT_GT(followers->report(on->sequence()).chosen.bytes, 0u);
            }
            stalls += followers->report(on->sequence()).chosen.stalls;
            fetches += followers->report(on->sequence()).chosen.rounds;
          }
        }
    }
  EXPECT_GT(fetches, 1000);
  EXPECT_LE(stalls, fetches);
}

// A prompt that was stopped, and then tokens that the policy chooses for as before it.
TEST_F(SyncKvOffload, APromptThatIsGivenUpChangesNoBit) {
  const auto model = load_model();
  const auto tokens = random_tokens(400, offloading_spec().vocab, 21);
  for (const std::string& base : offloading_policies())
    for (const std::string& policy : {base, with_profile(base), with_profile(base) + ",stride=20"}) {
      if (policy.find("stride=20") != std::string::npos && base.find("stride") != std::string::npos) continue;
      SCOPED_TRACE(policy);
      std::vector<float> logits[2];
      for (const bool on : {false, true}) {
        const auto runner = new_runner(model, on ? policy + ",offload=file" : policy);
        std::vector<float>& got = logits[on];
        feed(*runner, std::span(tokens).first(150), true, 32, &got);
        feed(*runner, std::span(tokens).subspan(150, 23), false, 0, &got);
        int passes = 0;
        const Status stopped = runner->feed(
            std::span(tokens).subspan(173, 127), 32, Logits::kAll,
            [&](std::int64_t, int, std::span<const float> out) {
              got.insert(got.end(), out.begin(), out.end());
              return ++passes < 3;
            },
            Source::kPrompt);
        EXPECT_EQ(stopped.code(), StatusCode::kCancelled);
        feed(*runner, std::span(tokens).subspan(300, 30), false, 0, &got);
        feed(*runner, std::span(tokens).subspan(330, 40), true, 32, &got);
        feed(*runner, std::span(tokens).subspan(370), false, 0, &got);
      }
      EXPECT_TRUE(same_bits(logits[1], logits[0]));
    }
}

// However chunks are divided into passes, and whoever computes.
TEST_F(SyncKvOffload, ChunksPassesAndThreadsDoNotMatter) {
  const Text text(170, 40, 4);
  for (const std::string& policy :
       {std::string("synckv:budget=30,recent=6"), with_profile("synckv:budget=30,recent=6")}) {
    std::vector<float> first;
    for (const int threads : {1, 3}) {
      const auto model = load_model(16, "f16", threads);
      first = run_text(*new_runner(model, policy), text, 0);
      for (const int chunk : {0, 1, 7, 64})
        for (const int rows : {1000, 5}) {
          const auto runner = new_runner(model, policy + ",offload=file");
          runner->set_most_rows(rows);
          EXPECT_TRUE(same_bits(run_text(*runner, text, chunk), first))
              << policy << " threads " << threads << " chunk " << chunk << " rows " << rows;
        }
    }
  }
}

// Beside others, forked and not.
TEST_F(SyncKvOffload, CompanyAndForksDoNotMatter) {
  const auto model = load_model(32);
  std::vector<std::string> policies = {"full"};
  for (const std::string& policy : offloading_policies())
    for (const std::string& base : {policy, with_profile(policy)}) policies.push_back(base + ",offload=file");
  {
    Crowd world(model, policies, 5);
    world.run(5, 60);
    EXPECT_GT(world.events.forks, 0);
  }
  EXPECT_EQ(model->cold_tier->used(), 0u);
}

// Each goes on in its own way; what they share in the file is given back with the last.
TEST_F(SyncKvOffload, ForksGoOn) {
  const Text text(170, 40, 4);
  const std::string policy = with_profile("synckv:budget=30,recent=6,stride=3");
  const auto model = load_model();
  for (const int cut : {3, 20}) {
    const auto expected = run_text(*new_runner(model, policy), text, 32);
    const auto runner = new_runner(model, policy + ",offload=file");
    std::vector<float> got, rest;
    feed(*runner, text.read(), true, 32, &got);
    feed(*runner, text.generated().first(static_cast<std::size_t>(cut)), false, 0, &got);
    const std::uint64_t before = runner->whole().cache()->budget().used();
    {
      const auto fork = runner->fork();
      ASSERT_TRUE(fork.ok()) << fork.status().message();
      const std::uint64_t own = (*fork)->sequence().table_bytes() + (*fork)->whole().state_bytes() +
                                (*fork)->whole().offloaded().followers()->bytes();
      EXPECT_EQ(runner->whole().cache()->budget().used() - before, own);
      std::vector<float> other = got;
      feed(**fork, random_tokens(30, offloading_spec().vocab, 77), false, 0, &rest);
      feed(*runner, text.generated().subspan(static_cast<std::size_t>(cut)), false, 0, &got);
      EXPECT_TRUE(same_bits(got, expected));
    }
    // A fork of the fork, of a text that is read on.
    auto fork = runner->fork();
    ASSERT_TRUE(fork.ok());
    auto again = (*fork)->fork();
    ASSERT_TRUE(again.ok());
    const auto more = random_tokens(50, offloading_spec().vocab, 78);
    std::vector<float> a, b;
    feed(**fork, more, true, 32, &a);
    feed(**again, more, true, 32, &b);
    EXPECT_TRUE(same_bits(a, b));
  }
  EXPECT_EQ(model->cold_tier->used(), 0u);
}

// What is in memory, by the formula of SyncKV, and what is fetched, by the definition of what is read.
TEST_F(SyncKvOffload, HoldsAndFetchesWhatTheDefinitionSays) {
  constexpr TokenIndex kPrompt = 200, kGenerated = 60, kLastGrid = 192;
  struct Case {
    std::string spec;
    std::int64_t k, recent, stride;
  };
  for (const int slots : {16, 32})
    for (const Case& c : {Case{"synckv:mem=70%,recent=5,stride=4", kPrompt * 2 / 5, 5, 4},  // (0.7 - 1/2) / (1/2)
                          Case{"synckv:budget=37,recent=9,stride=3", 37, 9, 3}}) {
      const std::string policy = with_profile(c.spec);
      SCOPED_TRACE(policy);
      const auto model = load_model(slots);
      const auto tokens = random_tokens(static_cast<int>(kPrompt + kGenerated), offloading_spec().vocab, 3);
      const auto off = new_runner(model, policy), on = new_runner(model, policy + ",offload=file");
      std::vector<float> ignored;
      for (const auto& runner : {off.get(), on.get()})
        feed(*runner, std::span(tokens).first(kPrompt), true, 32, &ignored);
      const std::uint64_t page = model->kv_shape.page.bytes();
      const auto row = static_cast<TokenIndex>(page) / slots;
      const auto whole_pages = [&](TokenIndex end) { return end / slots * slots; };
      // Per layer and representative: whole parts of up to 4096 bytes of all that follow it.
      std::uint64_t expected = 0;
      std::map<int, std::set<TokenIndex>> hot;                  // by table
      TokenIndex cold = whole_pages(kLastGrid + 1 - c.recent);  // when the prompt's last chunk was read
      for (TokenIndex step = 1; step <= kGenerated; ++step) {
        const TokenIndex token = kPrompt + step - 1;
        const TokenIndex settled =
            whole_pages(std::min(kPrompt + (step - 1) / c.stride * c.stride, kPrompt + step - c.recent));
        for (int layer = 0; layer < kLayers; ++layer)
          for (const int rep : profile_.clusters[layer].representatives) {
            int follower = -1, followers = -1;  // itself does not
            for (int head = 0; head < kHeads; ++head)
              if (profile_.clusters[layer].representative(head) == rep) {
                ++followers;
                if (head != rep) follower = layer * kHeads + head;
              }
            if (followers == 0) continue;
            std::vector<IndexRange> ranges;
            ASSERT_TRUE(off->policy().as<LeavesUnread>()->reads({token, 1, false, 0}, follower, ranges));
            std::set<TokenIndex> now, parts;
            TokenIndex part = slots;
            while (part > 1 && part * row * followers > 4096) part /= 2;
            for (const IndexRange& range : ranges)
              for (TokenIndex id = range.begin; id < std::min(range.end, settled); ++id) {
                now.insert(id);
                if (id < cold && !hot[follower].contains(id)) parts.insert(id / part);
              }
            ASSERT_LE(std::ssize(now), c.k);
            hot[follower] = now;
            expected += parts.size() * static_cast<std::uint64_t>(part * row * followers);
          }
        cold = settled;
        for (const auto& runner : {off.get(), on.get()})
          feed(*runner, std::span(tokens).subspan(static_cast<std::size_t>(token), 1), false, 0, &ignored);
      }
      const FollowerHeads& followers = *on->whole().offloaded().followers();
      EXPECT_GT(expected, 10000u);
      EXPECT_EQ(followers.report(on->sequence()).chosen.bytes, expected);
      // Two of four heads have everything; the others k rows, and the pages of what is not settled.
      const TokenIndex total = kPrompt + kGenerated;
      const auto tail = static_cast<std::uint64_t>(
          std::min(kPrompt + kGenerated / c.stride * c.stride, total + 1 - c.recent) / slots);
      const auto pages_of = [&](TokenIndex count) { return static_cast<std::uint64_t>((count + slots - 1) / slots); };
      const std::uint64_t hot_bytes = 2 * kLayers * (pages_of(c.k) + pages_of(total) - tail) * page;
      EXPECT_EQ(followers.report(on->sequence()).hot_bytes, hot_bytes);
      EXPECT_EQ(on->whole().cache()->pool().in_use() * page, hot_bytes + 2 * kLayers * pages_of(total) * page);
      EXPECT_EQ(followers.report(on->sequence()).cold_bytes, 2 * kLayers * tail * page);
      model->cold_tier->settle();
      EXPECT_EQ(kv_report(on->whole()).kept, total);
      EXPECT_EQ(model->cold_tier->used(), followers.report(on->sequence()).cold_bytes);
    }
}

TEST_F(SyncKvOffload, IsChargedAsPlanned) {
  for (const int slots : {16, 32})
    for (const std::string& base : offloading_policies())
      for (const bool profile : {false, true}) {
        const std::string policy = (profile ? with_profile(base) : base) + ",offload=file";
        SCOPED_TRACE(policy);
        const auto model = load_model(slots);
        const KvMemory plan = plan_kv_memory(model->kv_shape, **make_policy(policy), {400, 300, 64, 1});
        EXPECT_FALSE(plan.exact);
        EXPECT_GT(plan.offload_bytes, 0u);
        const auto runner = new_runner(model, policy, plan.bytes);
        const MemoryBudget& budget = runner->whole().cache()->budget();
        run_text(*runner, Text(300, 100, 3), 64, [&](int) { EXPECT_EQ(budget.used(), runner->whole().bytes()); });
        EXPECT_LE(budget.peak(), plan.bytes);
        EXPECT_GT(budget.peak(), plan.bytes / 2);
        EXPECT_EQ(runner->whole().bytes_peak(), budget.peak());
        EXPECT_LE(runner->whole().offloaded().followers()->report(runner->sequence()).cold_bytes,
                  plan.offload_file_bytes);
        // With a profile, less than what the whole text takes.
        if (profile && base == "synckv:budget=20,recent=6") {
          EXPECT_LT(plan.bytes, plan_kv_memory(model->kv_shape, **make_policy(base), {400, 300, 64, 1}).bytes * 9 / 10);
        }
      }
}

TEST_F(SyncKvOffload, AFailedTransferEndsItsSequenceAlone) {
  const Text text(200, 40, 9);
  const std::string off = with_profile("synckv:budget=30,recent=6"), policy = off + ",offload=file";
  const auto expected = run_text(*new_runner(load_model(), off), text, 40);
  int failed = 0, whole = 0;
  for (const bool reads : {true, false})
    for (const Fault fault : {Fault::kError, Fault::kDamaged})
      for (const int number : {0, 1, 7, 60, 200, 100000}) {
        SCOPED_TRACE(
            fmt::format("{} {} {}", reads ? "read" : "write", number, fault == Fault::kError ? "fails" : "lies"));
        const auto own = load_model();
        own->cold_tier = std::make_unique<ColdTier>(
            [=]() -> Result<std::unique_ptr<AsyncFile>> {
              return {std::make_unique<FaultyFile>(
                  [=](bool is_read, int n) { return is_read == reads && n == number ? fault : Fault::kNone; }, 2)};
            },
            std::uint64_t{1} << 30);
        const std::shared_ptr<KvCache> cache = *new_cache(own, std::uint64_t{1} << 28);
        SequenceRunner other(own, cache, std::move(*make_policy(off)));
        std::vector<float> logits;
        Status status;
        {
          SequenceRunner runner(own, cache, std::move(*make_policy(policy)));
          status = feed_text(runner, text, 40, &logits);
        }
        // Nothing wrong was ever read.
        EXPECT_TRUE(same_bits(logits, {expected.begin(), expected.begin() + std::ssize(logits)}));
        EXPECT_EQ(status.ok(), logits.size() == expected.size());
        (status.ok() ? whole : failed) += 1;
        if (!status.ok()) {
          EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("offloaded to a file cannot be"));
        }
        EXPECT_TRUE(same_bits(run_text(other, text, 40), expected));
        EXPECT_EQ(cache->budget().used(), other.whole().bytes());
        EXPECT_EQ(own->cold_tier->used(), 0u);
      }
  EXPECT_GE(failed, 12);
  EXPECT_GE(whole, 4);
}

TEST_F(SyncKvOffload, AFullFileEndsItsSequence) {
  const auto model = load_model();
  model->cold_tier->resize(10000);
  const Text text(200, 40, 9);
  const auto runner = new_runner(model, with_profile("synckv:budget=30") + ",offload=file");
  Status status = runner->feed(text.read(), 40, Logits::kLast, {});
  if (status.ok()) status = runner->feed(text.generated(), 40, Logits::kLast, {}, Source::kGenerated);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("may have 10000 bytes"));
  EXPECT_LE(model->cold_tier->used(), 10000u);
}

TEST_F(SyncKvOffload, RequestsArePreemptedAndRecomputed) {
  for (const std::uint64_t seed : {1, 2}) {
    const auto model = load_model();
    std::vector<std::string> policies;
    for (const std::string& policy : offloading_policies())
      policies.push_back((seed == 1 ? policy : with_profile(policy)) + ",offload=file");
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 24; ++i) {
      requests.push_back(random_request(random, policies, 60));
      requests.back().samples = 1;
      const KvMemory plan = plan_kv_memory(model->kv_shape, **make_policy(requests.back().policy), {200, 130, 0, 1});
      most = std::max(most, plan.bytes);
    }
    Desk desk(model, most * 3, {.prompt_rows = 30, .running = 10, .ahead = 0});
    desk.queue().swap_to(
        std::move(*SpillFile::create(std::make_unique<FaultyFile>(no_fault), 64 * SpillFile::kPartBytes)), true);
    for (const RequestOptions& request : requests) {
      desk.add(request);
      for (auto polls = random() % 6; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
    EXPECT_GT(desk.queue().counters().preempted, 0);
    EXPECT_EQ(model->cold_tier->used(), 0u);
  }
}

TEST_F(SyncKvOffload, IsRefusedWhereItCannotBe) {
  EXPECT_THAT(std::string(make_policy("synckv:mem=100%,offload=file").status().message()),
              ::testing::HasSubstr("nothing can be offloaded"));
  EXPECT_FALSE(make_policy("synckv:offload=memory").ok());
  EXPECT_EQ((*make_policy("synckv:offload=off"))->traits().spec, (*make_policy("synckv"))->traits().spec);
  EXPECT_EQ((*make_policy("synckv:offload=file"))->traits().spec, "synckv:mem=30%,offload=file");
  const auto without_folder = load(file_->path(), {.threads = 2});
  EXPECT_THAT(std::string(new_runner(without_folder, "synckv:offload=file")->whole().status().message()),
              ::testing::HasSubstr("no folder"));
  const auto encoded = load_model(32, "q8");
  EXPECT_THAT(std::string(new_runner(encoded, "synckv:offload=file")->whole().status().message()),
              ::testing::HasSubstr("not as q8"));
  const auto model = load_model();
  const auto session = make_session(std::make_shared<BatchRunner>(model, *new_cache(model, 1 << 28)),
                                    std::move(*make_policy("synckv:budget=20,offload=file")));
  ASSERT_TRUE(session->read(random_text(300, 3)).ok());
  EXPECT_THAT(std::string(session->save("/nowhere").message()), ::testing::HasSubstr("offload=off"));
}

}  // namespace
}  // namespace kvasir::test
