// Models that mix layers with attention and layers that hold a state for each sequence: every way in which a text may
// be read, left and continued leads to the same bits, and the states are counted wherever pages are.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/naive_model.h"
#include "kv/table.h"
#include "planning/memory_plan.h"
#include "prefix_store/snapshot_image.h"
#include "requests/request_desk.h"
#include "sequence/kv_report.h"
#include "sequence/policy_cases.h"
#include "server/api/kv_report_json.h"
#include "session/session_blocks.h"
#include "session/session_file.h"
#include "session/through_a_file.h"
#include "support/decay_mixer.h"
#include "support/engine_fixture.h"
#include "tiers/disk_store.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

// By ranges of tokens: the chunk changes no bits.
const std::vector<std::string> kStatePolicies = {
    "full",
    "window:size=60",
    "streaming:sinks=4,window=36",
    "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
};

// Which of the layers with attention have a window.
enum class Windows { kNone, kSome, kAll };

class StateGroups : public ::testing::TestWithParam<Windows> {
 protected:
  StateGroups() : file_(make_random_model(spec(GetParam()))) {}

  // Layers 1, 3 and 4 hold states of two sizes. Where some layers have a window, 0 and 2 do.
  static RandomModelSpec spec(Windows windows) {
    RandomModelSpec spec = small_spec();
    spec.architecture = "decay";
    spec.layers = 6;
    spec.state_channels = {0, 40, 0, 20, 40, 0};
    spec.sliding_window = windows == Windows::kNone ? 0 : 23;
    spec.window_pattern = windows == Windows::kAll ? 1 : 0;
    spec.context = 1000;
    return spec;
  }
  std::shared_ptr<LoadedModel> load_with(const std::string& kv_type = "f16", int threads = 1, int chunk = 0) const {
    EngineOptions options{.threads = threads, .kv_type = kv_type, .page_slots = 16, .chunk = chunk};
    options.demote_dir = std::filesystem::temp_directory_path().string();
    return load(file_.path(), options);
  }
  static std::vector<std::string> policies() {
    std::vector<std::string> all = kStatePolicies;
    all.emplace_back("streaming:sinks=4,window=44,every=16,realign=rotate");
    all.emplace_back("quest:budget=48");
    for (const PolicyCases& cases : all_policy_cases()) all.push_back(cases.evicting.front());
    return all;
  }
  static std::unique_ptr<SequenceRunner> runner_on(const std::shared_ptr<LoadedModel>& model,
                                                   const std::shared_ptr<KvCache>& cache, const std::string& policy) {
    return std::make_unique<SequenceRunner>(model, cache, std::move(*make_policy(policy)));
  }
  static std::vector<std::byte> states_of(const SequenceRunner& runner) {
    const auto states = runner.sequence().states().memory();
    return {states.begin(), states.end()};
  }

  TemporaryFile file_;
};

INSTANTIATE_TEST_SUITE_P(Windows, StateGroups, testing::Values(Windows::kNone, Windows::kSome, Windows::kAll),
                         [](const auto& info) { return info.index == 0   ? "None"
                                                       : info.index == 1 ? "Some"
                                                                         : "All"; });

constexpr std::uint64_t kStateBytes = 2 * 512 + 256;  // 40 channels of 12 bytes, twice, and 20, rounded up to 64

TEST_P(StateGroups, AreReadFromTheModel) {
  const auto model = load_with();
  const KvCacheShape& shape = model->kv_shape;
  EXPECT_EQ(shape.states, (std::vector<StateGroup>{{2, 512}, {1, 256}}));
  EXPECT_EQ(shape.state_bytes(), kStateBytes);
  EXPECT_EQ(shape.window, GetParam() == Windows::kAll ? 23 : 0);
  if (GetParam() != Windows::kSome) {
    EXPECT_EQ(shape.layers, 3);
    EXPECT_EQ(shape.group_of_layer, (std::vector<std::uint8_t>{0, 1, 0, 2, 1, 0}));
  } else {
    EXPECT_EQ(shape.layers, 1);
    EXPECT_EQ(shape.group_of_layer, (std::vector<std::uint8_t>{1, 2, 1, 3, 2, 0}));
  }
  const auto runner = new_runner(model, "h2o:budget=24,recent=8,heads=independent");
  EXPECT_EQ(runner->sequence().governed_tables(), shape.layers * shape.kv_heads);
  std::vector<std::uint64_t> places;
  for (const LayerLanes& lanes : runner->sequence().layers())
    if (lanes.tables == 0) places.push_back(lanes.state);
  EXPECT_EQ(places, (std::vector<std::uint64_t>{0, 512, 768}));
  EXPECT_NE(model->arithmetic_id(shape.page).find("/states=decay-1-20+decay-1-40"), std::string::npos);
}

TEST_P(StateGroups, HaveTheLogitsOfTheFormula) {
  const Text text(60, 20, 3);
  const std::vector<float> logits = run_text(*new_runner(load_with("f32"), "full"), text, 16);
  const auto naive = load_naive(file_.path(), {.kv_type = "f32", .page_slots = 16});
  const std::vector<float> other = run_text(*new_runner(naive, "full"), text, 16);
  EXPECT_LT(rms_error_ratio(logits, std::vector<double>(other.begin(), other.end())), 1e-5);
  if (GetParam() == Windows::kSome) return;  // the reference has the window in every layer, or in none
  const ReferenceModel reference(*gguf::File::open(file_.path()));
  EXPECT_LT(rms_error_ratio(logits, flatten(reference.logits(text.tokens))), 1e-5);
}

TEST_P(StateGroups, ChunksPassesAndThreadsChangeNoBits) {
  for (const char* type : {"f16", "q4"}) {
    const auto model = load_with(type), threaded = load_with(type, 3);
    for (const std::string& policy : kStatePolicies) {
      SCOPED_TRACE(fmt::format("{} {}", type, policy));
      const Text text(150, 30, 5);
      const auto reference = new_runner(model, policy);
      const std::vector<float> one = run_text(*reference, text, 1);
      for (const int chunk : {7, 32, 64})
        for (const int rows : {3, 50}) {
          const auto runner = new_runner(chunk == 32 ? threaded : model, policy);
          runner->set_most_rows(rows);
          EXPECT_TRUE(same_bits(run_text(*runner, text, chunk), one));
          EXPECT_EQ(states_of(*runner), states_of(*reference));
        }
    }
  }
}

// Passes of many sequences, chunks in several passes, forks, sequences that are given up.
TEST_P(StateGroups, ACrowdHasTheBitsOfEachAlone) {
  std::int64_t forks = 0;
  for (std::uint64_t seed = 0; seed < 2 || (forks == 0 && seed < 12); ++seed) {
    Crowd crowd(load_with(seed % 2 == 0 ? "f16" : "q4"), policies(), seed);
    ASSERT_NO_FATAL_FAILURE(crowd.run(6, 120));
    EXPECT_GT(crowd.events.crowded, 20);
    EXPECT_GT(crowd.events.split, 5);
    forks += crowd.events.forks;
  }
  EXPECT_GT(forks, 0);
}

// Heads that leave memory, and tokens that are demoted, are those of layers with keys. Both are refused where all of
// these have a window.
TEST_P(StateGroups, PoliciesThatMoveKeysElsewhereSeeOnlyLayersWithKeys) {
  const auto model = load_with();
  for (const char* policy : {"synckv:budget=30,recent=6,offload=file", "tova:budget=33,pos=original@demote=q4",
                             "window:size=40@demote=file"}) {
    SCOPED_TRACE(policy);
    const Text text(90, 30, 5), more(20, 20, 6);
    const auto runner = new_runner(model, policy), divided = new_runner(model, policy);
    ASSERT_EQ(runner->whole().status().ok(), GetParam() != Windows::kAll) << runner->whole().status().message();
    if (GetParam() == Windows::kAll) continue;
    divided->set_most_rows(5);
    EXPECT_TRUE(same_bits(run_text(*divided, text, 32), run_text(*runner, text, 32)));
    EXPECT_EQ(states_of(*divided), states_of(*runner));
    auto fork = runner->fork();
    ASSERT_TRUE(fork.ok());
    EXPECT_TRUE(same_bits(run_text(**fork, more, 32), run_text(*runner, more, 32)));
  }
}

// What a session, a fork and a stored snapshot of a sequence go on with.
TEST_P(StateGroups, ForksSessionsAndSnapshotsContinueWithTheSameBits) {
  for (const char* type : {"f16", "q4"}) {
    const auto model = load_with(type);
    for (const std::string& policy : policies()) {
      SCOPED_TRACE(fmt::format("{} {}", type, policy));
      const Text text(90, 20, 5), more(50, 20, 7);
      const auto runner = new_runner(model, policy), reference = new_runner(model, policy);
      run_text(*runner, text, 32);
      run_text(*reference, text, 32);
      auto fork = runner->fork();
      ASSERT_TRUE(fork.ok());
      EXPECT_EQ(states_of(**fork), states_of(*runner));
      EXPECT_NE((*fork)->sequence().states().memory().data(), runner->sequence().states().memory().data());

      LoadedSession loaded = through_a_file(runner->whole(), 32, model);
      ASSERT_NE(loaded.sequence, nullptr);
      SequenceRunner again(std::move(loaded.sequence));
      EXPECT_EQ(again.whole().truncatable_from(), 110);

      const BlobKey key{image_lineage(*model, model->kv_shape, policy), {}, {}};
      const ImageWriter writer(runner->whole());
      std::vector<std::byte> image(writer.bytes(text.tokens));
      writer.write(key, text.tokens, image);
      const auto parts = read_image(key, text.tokens, image);
      ASSERT_TRUE(parts.ok());
      auto restored = restore_image(*parts, 110, model, *new_cache(model, std::uint64_t{1} << 26),
                                    std::move(*make_policy(policy)), model->kv_shape.codec());
      ASSERT_TRUE(restored.ok()) << restored.status().message();
      SequenceRunner stored(std::move(*restored));

      const std::vector<float> expected = run_text(*reference, more, 32);
      for (SequenceRunner* other : {fork->get(), &again, &stored, runner.get()}) {
        EXPECT_TRUE(same_bits(run_text(*other, more, 32), expected));
        EXPECT_EQ(states_of(*other), states_of(*reference));
      }
    }
  }
}

TEST_P(StateGroups, DamagedStatesAreRefused) {
  const auto model = load_with();
  const auto runner = new_runner(model, "full");
  run_text(*runner, Text(40, 5, 1), 32);
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("kvasir-states-{}", ::getpid())).string();
  ASSERT_TRUE(save_session(path, runner->whole(), 32, {}).ok());
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(path);
  const auto bytes = std::as_bytes(std::span(content));
  const auto restore = [&](std::span<const std::byte> from) {
    return parse_session(
               from, model,
               [&](const SessionHead&, const RetentionPolicy&) { return new_cache(model, std::uint64_t{1} << 26); })
        .status();
  };
  const auto with = [&](auto change) {
    SessionBlocks blocks(bytes);
    change(blocks);
    return restore(blocks.file());
  };
  ASSERT_TRUE(with([](SessionBlocks&) {}).ok());
  const auto states = [](SessionBlocks& blocks) -> std::vector<std::byte>& {
    return blocks.blocks[blocks.blocks.size() - 2].bytes;
  };
  SessionBlocks blocks(bytes);
  ASSERT_EQ(states(blocks).size(), kStateBytes);
  // A bit of them, with the checksum as it was: the states are the last block before the end.
  std::vector<std::byte> flipped(bytes.begin(), bytes.end());
  flipped[flipped.size() - 32 - 16 - 100] ^= std::byte{1};
  EXPECT_EQ(restore(flipped).code(), StatusCode::kDataLoss);
  EXPECT_EQ(with([&](SessionBlocks& b) { states(b).pop_back(); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(with([](SessionBlocks& b) { b.blocks.erase(b.blocks.end() - 2); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(with([](SessionBlocks& b) { b.blocks.push_back(b.blocks[b.blocks.size() - 2]); }).code(),
            StatusCode::kDataLoss);
  const auto other_version = [](SessionBlocks& b) {
    SavedHead head(b.head());
    head.arithmetic.replace(head.arithmetic.find("decay-1-20"), 10, "decay-2-20");
    b.head() = head.bytes();
  };
  EXPECT_EQ(with(other_version).code(), StatusCode::kUnsupported);
}

TEST_P(StateGroups, ThePlanIsThePeak) {
  for (const char* type : {"f16", "q4"}) {
    const auto model = load_with(type);
    for (const std::string& policy : policies())
      for (const int chunk : {1, 7, 64}) {
        SCOPED_TRACE(fmt::format("{} {} chunk {}", type, policy, chunk));
        const auto made = std::move(*make_policy(policy));
        const KvMemory plan = plan_kv_memory(model->kv_shape, *made, {150, chunk == 1 ? 20 : 120, chunk, 1});
        EXPECT_EQ(plan.state_bytes, kStateBytes);
        const auto cache = *new_cache(model, std::max(plan.bytes, KvCache::cost(model->kv_shape, {}, 1)));
        const auto runner = runner_on(model, cache, policy);
        EXPECT_EQ(cache->budget().used(), 0u);
        run_text(*runner, Text(chunk == 1 ? 20 : 120, chunk == 1 ? 130 : 30, 9), chunk);
        EXPECT_LE(cache->budget().peak(), plan.bytes);
        if (plan.exact && made->as<LeavesUnread>() == nullptr) {
          EXPECT_EQ(cache->budget().peak(), plan.bytes);
        }
        const bool exact = std::string(type) == "f16" && (policy == "full" || policy == "streaming:sinks=4,window=36");
        EXPECT_TRUE(plan.exact || !exact);
        const std::vector<const KvSequence*> all = {&runner->sequence()};
        cache->check_invariants(all, runner->whole().state_bytes());
        const KvReport report = kv_report(runner->whole());
        ASSERT_EQ(report.states.size(), 2u);
        EXPECT_EQ(report.states[0].bytes + report.states[1].bytes, kStateBytes);
        EXPECT_EQ(report.bytes, cache->budget().used());
        nlohmann::json json;
        add_places(report, &json);
        EXPECT_EQ(json["states"].dump(), R"([{"bytes":1024,"layers":2},{"bytes":256,"layers":1}])");
      }
  }
}

// A pass that does not come to its end, and one that is refused for lack of memory.
TEST_P(StateGroups, OnlyAPassThatSucceedsIsContinued) {
  const auto model = load_with();
  const Text text(64, 0, 3);
  const auto runner = new_runner(model, "full");
  run_text(*runner, text, 32);
  const std::vector<std::byte> before = states_of(*runner);
  MemoryCharge others(&runner->whole().cache()->budget());
  ASSERT_TRUE(others.try_resize(runner->whole().cache()->budget().available()));
  const std::vector<TokenId> more = random_tokens(20, small_spec().vocab, 5);
  EXPECT_EQ(runner->feed_pass(more, 32, Logits::kAll, Source::kPrompt).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(states_of(*runner), before);
  ASSERT_TRUE(others.try_resize(0));
  const auto reference = new_runner(model, "full");
  run_text(*reference, text, 32);
  EXPECT_TRUE(same_bits(all_logits(*runner, more, 32), all_logits(*reference, more, 32)));

  runner->whole().fail(data_loss("a failed pass"));
  EXPECT_FALSE(runner->fork().ok());
  EXPECT_FALSE(runner->feed_pass(more, 32, Logits::kAll, Source::kPrompt).ok());
}

struct Preempted {
  std::int64_t recomputed = 0;
  std::int64_t swapped_in = 0;
};

// Requests that give way in little memory, and come back by computing their texts again or from a file.
TEST_P(StateGroups, PreemptedRequestsAreAsAlone) {
  for (const bool swaps : {false, true}) {
    Preempted all;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const auto model = load_with(seed % 2 == 0 ? "f16" : "q4");
      std::mt19937_64 random(seed);
      std::vector<RequestOptions> requests;
      std::uint64_t most = 0;
      for (int i = 0; i < 12; ++i) {
        requests.push_back(random_request(random, policies(), 60));
        const RequestOptions& options = requests.back();
        most = std::max(most, alone(model, options).kv.bytes_peak * static_cast<unsigned>(options.samples));
      }
      Desk desk(model, most * 3 / 2, {.prompt_rows = 40, .ahead = 0});
      if (swaps)
        desk.queue().swap_to(
            std::move(*SpillFile::create(std::make_unique<FaultyFile>(no_fault, 2), 256 * SpillFile::kPartBytes)),
            true);
      for (const RequestOptions& options : requests) desk.add(options);
      ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
      ASSERT_NO_FATAL_FAILURE(desk.expect_all_as_alone());
      all.recomputed += desk.queue().counters().recomputed_tokens;
      all.swapped_in += desk.queue().counters().swapped_in;
    }
    EXPECT_GT(swaps ? all.swapped_in : all.recomputed, 0);
  }
}

// States that take several parts of the file, and come back to a sequence of their own.
TEST(LargeStates, LeaveAndComeBackInParts) {
  RandomModelSpec spec = small_spec();
  spec.architecture = "decay";
  spec.d = spec.head_dim = 8;
  spec.heads = spec.kv_heads = 1;
  spec.layers = 3;
  spec.state_channels = {0, 60000, 60000};
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto cache = *new_cache(model, std::uint64_t{1} << 24);
  SequenceRunner runner(model, cache, std::move(*make_policy("full")));
  run_text(runner, Text(30, 2, 1), 16);
  ASSERT_GT(runner.sequence().states().bytes(), SpillFile::kPartBytes);
  auto spill = *SpillFile::create(std::make_unique<FaultyFile>(no_fault, 2), 16 * SpillFile::kPartBytes);
  const auto swap = SwappedSequence::leave(spill.get(), runner.whole());
  ASSERT_NE(swap, nullptr);
  const auto until = [&](SwappedSequence::State state) {
    for (int i = 0; i < 1000 && swap->state() != state; ++i) {
      spill->poll(std::chrono::milliseconds(1));
      swap->advance();
    }
    ASSERT_EQ(swap->state(), state) << swap->status().message();
  };
  ASSERT_NO_FATAL_FAILURE(until(SwappedSequence::State::kOut));
  auto back = swap->arrive(model, cache, std::move(*make_policy("full")));
  ASSERT_TRUE(back.ok());
  ASSERT_NO_FATAL_FAILURE(until(SwappedSequence::State::kBack));
  EXPECT_TRUE(std::ranges::equal((*back)->tables().states().memory(), runner.sequence().states().memory()));
}

// A prefix is continued from a snapshot, which holds the states, in memory or on disk. Pages alone serve nobody: not
// another policy, which they would serve in a model without states.
TEST_P(StateGroups, PrefixesAreContinuedFromSnapshots) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("kvasir-states-{}.prefixes", ::getpid());
  RequestOptions options;
  options.generate.max_tokens = 20;
  options.generate.ignore_eos = true;
  options.generate.sampling.temperature = 0;
  const std::string prompt = random_text(160, 1);
  for (const char* type : {"f16", "q4"}) {
    const auto model = load_with(type, 1, 16);
    for (const std::string policy : {"full", "streaming:sinks=4,window=36", "h2o:budget=24,recent=8",
                                     "snapkv:budget=40,window=8,kernel=5,pool=avg"}) {
      SCOPED_TRACE(fmt::format("{} {}", type, policy));
      for (const bool second : {false, true}) {
        Desk desk(model, std::uint64_t{1} << 26, {.prompt_rows = 40});
        desk.queue().cache_prefixes(std::uint64_t{1} << 25);
        std::vector<std::unique_ptr<BlobStore>> stores;
        stores.push_back(std::move(*open_disk_store({folder.string(), std::uint64_t{1} << 26, {}}, {})));
        desk.queue().store_prefixes(std::move(stores), {});
        const auto result_of = [&](const std::string& under, const std::string& end) {
          options.policy = under;
          options.prompt = prompt + end;
          const RequestId id = desk.add(options);
          while (desk.queue().unfinished() > 0) desk.poll();
          EXPECT_EQ(desk.told(id).result.text, alone(model, options).text);
          return desk.told(id).result;
        };
        const GenerateResult first = result_of(policy, "");
        EXPECT_EQ(first.cached > 0, second);
        EXPECT_EQ(first.cached_from, second ? "disk" : "");
        EXPECT_EQ(result_of("window:size=200", " of another policy").cached > 0, second);
        EXPECT_GT(result_of(policy, " and more of it").cached, 0);
        const PrefixCache& prefixes = *desk.queue().prefixes();
        prefixes.check_invariants();
        EXPECT_EQ(prefixes.evictable_bytes(), desk.runner()->cache()->budget().used() - prefixes.charged_bytes());
        for (int i = 0; i < 2000 && desk.queue().settling(); ++i) {
          static_cast<void>(desk.queue().poll());
          desk.queue().settle_tiers(std::chrono::milliseconds(5));
        }
      }
      std::filesystem::remove_all(folder);
    }
  }
}

}  // namespace
}  // namespace kvasir::test
