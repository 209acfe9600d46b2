// Requests that continue what others left have the bits that they would have had without.
#include "prefix_store/prefix_store.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "sequence/crowd.h"

namespace kvasir::test {
namespace {

constexpr int kChunk = 32;

RandomModelSpec long_spec() {
  RandomModelSpec spec = crowd_spec();
  spec.context = 1024;
  spec.layers = 3;  // quest reads all of the first two
  return spec;
}

// Three layers of six keep a window of their own.
RandomModelSpec windowed_spec() {
  RandomModelSpec spec = long_spec();
  spec.architecture = "gemma3";
  spec.layers = 6;
  spec.sliding_window = 40;
  spec.window_pattern = 2;
  return spec;
}

// Requests of one queue, in a cache that may keep prefixes.
class Counter {
 public:
  Counter(std::shared_ptr<LoadedModel> model, std::uint64_t memory, std::uint64_t prefix_memory,
          const ScheduleLimits& limits = {})
      : model_(std::move(model)),
        runner_(std::make_shared<BatchRunner>(model_, *new_cache(model_, memory))),
        queue_(runner_, limits) {
    if (prefix_memory > 0) queue_.cache_prefixes(prefix_memory);
  }

  RequestId add(const RequestOptions& options) {
    auto text = encode_request(*model_, options);
    EXPECT_TRUE(text.ok()) << text.status().message();
    std::optional<KvCodec> codec;
    if (!options.codec.empty()) codec = parse_codec(options.codec).codec;
    return queue_.add(options, std::move(*text), std::move(*make_policy(options.policy)), kChunk, codec);
  }

  void poll() {
    const auto events = queue_.poll();
    ASSERT_TRUE(events.ok()) << events.status().message();
    for (const Event& event : *events) {
      const Event::Kind wrong = event.request == fails_ ? Event::Kind::kFinished : Event::Kind::kFailed;
      EXPECT_NE(event.kind, wrong) << event.status.message();
      if (event.kind == Event::Kind::kFinished) results_[{event.request, event.sample}] = event.result;
    }
    if (const PrefixCache* prefixes = queue_.prefixes(); prefixes != nullptr) prefixes->check_invariants();
  }

  void run_to_end() {
    for (int polls = 0; queue_.unfinished() > 0; ++polls) {
      ASSERT_LT(polls, 100000) << "no end";
      ASSERT_NO_FATAL_FAILURE(poll());
    }
  }

  // Runs one request to its end.
  std::vector<GenerateResult> run(const RequestOptions& options) {
    const RequestId id = add(options);
    run_to_end();
    std::vector<GenerateResult> results;
    for (int sample = 0; sample < options.samples; ++sample) results.push_back(results_[{id, sample}]);
    return results;
  }

  const GenerateResult& result(RequestId id, int sample = 0) { return results_[{id, sample}]; }
  void expect_failure(RequestId id) { fails_ = id; }
  RequestQueue& queue() { return queue_; }
  MemoryBudget& budget() { return runner_->cache()->budget(); }
  KvCache& cache() { return *runner_->cache(); }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<BatchRunner> runner_;
  RequestQueue queue_;
  std::map<std::pair<RequestId, int>, GenerateResult> results_;
  RequestId fails_{};
};

std::vector<TokenId> ids_of(const GenerateResult& result) {
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : result.choices) ids.push_back(token.token.id);
  return ids;
}

// The tokens and their log-probabilities, and what was kept, to the bit.
void expect_same(const GenerateResult& warm, const GenerateResult& cold) {
  ASSERT_EQ(ids_of(warm), ids_of(cold));
  for (std::size_t i = 0; i < cold.choices.size(); ++i) {
    ASSERT_EQ(warm.choices[i].token.log_probability, cold.choices[i].token.log_probability) << "of token " << i;
    for (std::size_t j = 0; j < cold.choices[i].likeliest.size(); ++j)
      ASSERT_EQ(warm.choices[i].likeliest[j].log_probability, cold.choices[i].likeliest[j].log_probability);
  }
  EXPECT_EQ(warm.text, cold.text);
  EXPECT_EQ(warm.finish_reason, cold.finish_reason);
  EXPECT_EQ(warm.prompt_tokens, cold.prompt_tokens);
  EXPECT_EQ(warm.kv.seen, cold.kv.seen);
  EXPECT_EQ(warm.kv.kept, cold.kv.kept);
  EXPECT_EQ(warm.kv.kept_least, cold.kv.kept_least);
  EXPECT_EQ(warm.kv.kept_most, cold.kv.kept_most);
}

RequestOptions request_of(const std::string& policy, std::vector<TokenId> tokens, std::int64_t most,
                          std::uint64_t seed) {
  RequestOptions options;
  options.tokens = std::move(tokens);
  options.policy = policy;
  options.generate.max_tokens = most;
  options.generate.ignore_eos = true;
  options.generate.logprobs = 2;
  options.generate.sampling.temperature = seed % 2 == 0 ? 0.0F : 1.2F;
  options.generate.sampling.repetition_penalty = 1.1F;
  options.generate.sampling.seed = seed;
  return options;
}

std::vector<std::string> every_policy() {
  std::vector<std::string> policies = all_policies_in_use();
  for (const PolicyCases& cases : all_policy_cases())
    policies.insert(policies.end(), cases.covering.begin(), cases.covering.end());
  return policies;
}

// A conversation: each prompt is the one before, its answer, and more. Then the same prompt again, a shorter one, and
// one that turns off in the middle.
void converse(const RandomModelSpec& spec, const std::string& codec, const std::vector<std::string>& policies) {
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path(), {.threads = 1, .kv_type = codec, .page_slots = 16});
  std::set<std::string> hits;
  for (const std::string& policy : policies) {
    SCOPED_TRACE(policy);
    Counter warm(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27);
    Counter cold(model, std::uint64_t{1} << 28, 0);
    std::mt19937_64 random(3);
    std::vector<TokenId> text;
    std::int64_t cached = 0;
    const auto ask = [&](const std::vector<TokenId>& tokens, int samples = 1) {
      RequestOptions options = request_of(policy, tokens, 1 + static_cast<int>(random() % 30), 1 + random() % 100);
      options.samples = samples;
      const auto got = warm.run(options);
      const auto want = cold.run(options);
      for (std::size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i]);
      EXPECT_LT(got.front().cached, static_cast<std::int64_t>(tokens.size()));
      cached += got.front().cached;
      EXPECT_EQ(want.front().cached, 0);
      return ids_of(got.front());
    };
    for (int turn = 0; turn < 5 && !::testing::Test::HasFailure(); ++turn) {
      const auto more = random_tokens(10 + static_cast<int>(random() % 70), crowd_spec().vocab, random());
      text.insert(text.end(), more.begin(), more.end());
      const auto answer = ask(text);
      text.insert(text.end(), answer.begin(), answer.end());
    }
    ask(text, 3);
    ask(text);
    ask({text.begin(), text.end() - 1});
    ask({text.begin(), text.begin() + std::ssize(text) / 2});
    // Just behind boundaries at which longer prompts left snapshots, too.
    for (std::int64_t end = kChunk + 1; end < std::ssize(text); end += 1 + static_cast<std::int64_t>(random() % 80))
      ask({text.begin(), text.begin() + end});
    auto other = text;
    other[other.size() / 2] = (other[other.size() / 2] + 1) % crowd_spec().vocab;
    ask(other);
    if (::testing::Test::HasFailure()) return;
    if (cached > 0) hits.insert(policy.substr(0, policy.find(':')));
    warm.queue().prefixes()->clear();
    EXPECT_EQ(warm.budget().used(), 0u);
    warm.cache().check_invariants({});
  }
  EXPECT_EQ(hits, (std::set<std::string>{"cake", "cascade", "expected", "full", "h2o", "keydiff", "kvzip", "lagkv", "lethe", "matching",
                                         "pyramidkv", "random", "rkv", "snapkv", "streaming", "tova", "triattention", "vase", "window"}));
}
class PrefixStoreOf : public ::testing::TestWithParam<std::string> {};

TEST_P(PrefixStoreOf, AConversationHasTheBitsOfColdRuns) {
  converse(long_spec(), GetParam(), every_policy());
}

// Within a window pages are shared by block; beyond it, snapshots hold the pages of the last tokens alone.
TEST_P(PrefixStoreOf, AConversationWithWindowGroupsHasTheBitsOfColdRuns) {
  std::vector<std::string> policies = range_policies();
  for (const PolicyCases& cases : all_policy_cases())
    policies.insert(policies.end(), {cases.covering.front(), cases.evicting.front(), cases.evicting.back()});
  converse(windowed_spec(), GetParam(), policies);
}
INSTANTIATE_TEST_SUITE_P(Codecs, PrefixStoreOf, ::testing::Values("f16", "q4", "k=q8,v=q2,recent=24"),
                         [](const auto& codec) { return fmt::format("codec_{}", codec.index); });

// Requests of many policies that begin alike, in so little memory that prefixes go and requests give way.
TEST(PrefixStore, ACrowdInLittleMemory) {
  const TemporaryFile file(make_random_model(long_spec()));
  std::int64_t hits = 0;
  std::int64_t preempted = 0;
  const TemporaryFile windowed(make_random_model(windowed_spec()));
  for (std::uint64_t seed = 0; seed < 11; ++seed) {
    const char* type = seed == 6 || seed == 10 ? "q4" : seed == 7 ? "q8,recent=20" : "f16";
    const auto model =
        load(seed < 8 ? file.path() : windowed.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
    std::mt19937_64 random(seed);
    std::vector<std::vector<TokenId>> beginnings;
    for (int i = 0; i < 3; ++i) beginnings.push_back(random_tokens(100 + i * 60, crowd_spec().vocab, seed * 10 + i));
    std::vector<RequestOptions> requests;
    std::vector<GenerateResult> expected;
    std::uint64_t most = 0;
    for (int i = 0; i < 40; ++i) {
      auto tokens = beginnings[random() % beginnings.size()];
      const auto more = random_tokens(1 + static_cast<int>(random() % 60), crowd_spec().vocab, random());
      tokens.insert(tokens.end(), more.begin(), more.end());
      const std::vector<std::string> policies = {"full",
                                                 "streaming:sinks=4,window=60",
                                                 "streaming:sinks=4,window=44,every=16,realign=rotate",
                                                 "h2o:budget=40,recent=10",
                                                 "quest:budget=48",
                                                 "snapkv:budget=40,window=8",
                                                 "snapkv:budget=40,window=8+lethe:tau=2,start=24",
                                                 "tova:budget=33,pos=original",
                                                 "cascade:size=32,n=4,sinks=4"};
      requests.push_back(request_of(policies[random() % policies.size()], tokens, 20, 1 + random() % 100));
      requests.back().bypass = random() % 8 == 0;
      requests.back().pin = random() % 4 == 0;
      if (random() % 4 == 0) requests.back().salt = "other";
      Counter cold(model, std::uint64_t{1} << 28, 0);
      expected.push_back(cold.run(requests.back()).front());
      most = std::max(most, expected.back().kv.bytes_peak);
    }
    Counter warm(model, most * 4 / 3, most * (1 + seed % 2), {.prompt_rows = 40, .running = 12, .ahead = 0});
    std::vector<RequestId> ids;
    for (const RequestOptions& request : requests) {
      ids.push_back(warm.add(request));
      for (auto polls = random() % 8; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(warm.poll());
    }
    ASSERT_NO_FATAL_FAILURE(warm.run_to_end());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      SCOPED_TRACE(requests[i].policy);
      expect_same(warm.result(ids[i]), expected[i]);
      if (requests[i].bypass) {
        EXPECT_EQ(warm.result(ids[i]).cached, 0);
      }
    }
    EXPECT_EQ(warm.queue().counters().rejected, 0);
    EXPECT_LE(warm.budget().peak(), most * 4 / 3);
    hits += warm.queue().counters().prefix_hits;
    preempted += warm.queue().counters().preempted;
    warm.queue().prefixes()->clear();
    EXPECT_EQ(warm.budget().used(), 0u);
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(preempted, 5);
}

TEST(PrefixStore, ALongPromptOfManyIsStoredOnce) {
  RandomModelSpec spec = long_spec();
  spec.context = 2048;
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto prompt = random_tokens(2000, crowd_spec().vocab, 1);
  Counter one(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27);
  one.run(request_of("full", prompt, 10, 2));
  const std::uint64_t alone = one.cache().pool().peak();
  Counter many(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27, {.running = 64});
  std::vector<RequestId> ids;
  for (int i = 0; i < 64; ++i) {
    auto tokens = prompt;
    tokens.push_back(static_cast<TokenId>(i));
    ids.push_back(many.add(request_of("full", tokens, 10, 2)));
  }
  ASSERT_NO_FATAL_FAILURE(many.run_to_end());
  for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_EQ(many.result(ids[i]).cached, 2000);
  EXPECT_EQ(many.queue().counters().most_running, 64u);
  // Each has a page of its own in each lane, for the last token and the answer.
  const auto lanes = static_cast<std::uint64_t>(many.cache().shape().lanes());
  EXPECT_LE(many.cache().pool().peak(), alone + 64 * lanes);
}

// What a caller is told of why nothing was found.
TEST(PrefixStore, SaysWhy) {
  const TemporaryFile file(make_random_model(long_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  Counter queue(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27);
  const auto prompt = random_tokens(100, crowd_spec().vocab, 1);
  const auto miss = [&](const std::string& policy, const std::vector<TokenId>& tokens, const std::string& salt = "",
                        bool bypass = false) {
    RequestOptions options = request_of(policy, tokens, 1, 2);
    options.salt = salt;
    options.bypass = bypass;
    return queue.run(options).front().cache_miss;
  };
  EXPECT_EQ(miss("full", {1, 2, 3}), "too_short");
  EXPECT_EQ(miss("full", prompt), "unknown");
  EXPECT_EQ(miss("full", prompt), "");
  EXPECT_EQ(miss("full", prompt, "mine"), "unknown");
  EXPECT_EQ(miss("full", prompt, "", true), "bypass");
  EXPECT_EQ(miss("h2o:budget=40,recent=10", prompt), "policy");
  EXPECT_EQ(miss("h2o:budget=40,recent=10", prompt), "");
  auto longer = prompt;
  const auto more = random_tokens(100, crowd_spec().vocab, 2);
  longer.insert(longer.end(), more.begin(), more.end());
  EXPECT_EQ(miss("full", longer), "unknown");
  queue.queue().prefixes()->clear();
  EXPECT_EQ(miss("full", longer), "evicted");
  // A policy that leaves snapshots alone.
  const auto other = random_tokens(100, crowd_spec().vocab, 3);
  const std::string h2o = "h2o:budget=40,recent=10";
  EXPECT_EQ(miss(h2o, other), "unknown");
  EXPECT_EQ(miss(h2o, other), "");
  queue.queue().prefixes()->clear();
  EXPECT_EQ(miss(h2o, other), "evicted");
  EXPECT_EQ(miss(h2o, other), "");
  RequestOptions options = request_of("full", random_tokens(64, crowd_spec().vocab, 9), 1, 2);
  options.ttl = 1e-9;
  EXPECT_EQ(queue.run(options).front().cache_miss, "unknown");
  EXPECT_EQ(queue.run(options).front().cache_miss, "expired");
}

// What one codec has stored is never continued in another, exact pages and snapshots alike, and the caller is told.
TEST(PrefixStore, OfOneCodecServesNoOther) {
  const TemporaryFile file(make_random_model(long_spec()));
  const auto model = load(file.path(), {.threads = 1, .kv_types = {"q8", "q4", "q8,recent=40"}, .page_slots = 16});
  const std::vector<std::string> codecs = {"", "q8", "q4", "q8,recent=40"};
  for (const std::string policy : {"full", "h2o:budget=40,recent=10", "streaming:sinks=4,window=60"}) {
    Counter queue(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27);
    const auto prompt = random_tokens(200, crowd_spec().vocab, 1);
    for (const bool again : {false, true})
      for (std::size_t i = 0; i < codecs.size(); ++i) {
        SCOPED_TRACE(policy + ' ' + codecs[i] + (again ? " again" : ""));
        RequestOptions options = request_of(policy, prompt, 20, 3);
        options.codec = codecs[i];
        Counter cold(model, std::uint64_t{1} << 28, 0);
        const GenerateResult expected = cold.run(options).front();
        const GenerateResult result = queue.run(options).front();
        expect_same(result, expected);
        EXPECT_EQ(result.kv.codec, codecs[i].empty() ? "f16" : codecs[i]);
        EXPECT_EQ(result.cached > 0, again);
        if (!again) {
          EXPECT_EQ(result.kv.bytes, expected.kv.bytes);
          EXPECT_EQ(result.cache_miss, i == 0 ? "unknown" : "codec");
        }
        EXPECT_EQ(queue.queue().prefixes()->bytes(), queue.budget().used());
      }
  }
}

// Chats past their window: each turn continues the snapshot of the one before, shares its pages and leaves its own.
// What the cache says that it holds is what the budget says, so that its bound holds and idle memory counts as free.
TEST(PrefixStore, SnapshotsOfAConversationKeepTheBound) {
  const TemporaryFile file(make_random_model(long_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const std::string policy = "streaming:sinks=4,window=200";
  Counter probe(model, std::uint64_t{1} << 28, 0);
  const auto beginning = random_tokens(300, crowd_spec().vocab, 1);
  const std::uint64_t window = probe.run(request_of(policy, beginning, 5, 2)).front().kv.bytes;
  const std::uint64_t bound = window * 4;
  Counter queue(model, std::uint64_t{1} << 28, bound);
  const PrefixCache& cache = *queue.queue().prefixes();
  std::int64_t hits = 0;
  for (std::uint64_t chat = 0; chat < 6; ++chat) {
    auto text = random_tokens(300, crowd_spec().vocab, chat);
    for (std::uint64_t turn = 0; turn < 6; ++turn) {
      const GenerateResult result = queue.run(request_of(policy, text, 5, 2)).front();
      hits += result.cached_from == "snapshot" ? 1 : 0;
      const auto answer = ids_of(result);
      text.insert(text.end(), answer.begin(), answer.end());
      const auto more = random_tokens(10, crowd_spec().vocab, 100 * chat + turn);
      text.insert(text.end(), more.begin(), more.end());
      ASSERT_EQ(cache.bytes(), queue.budget().used());
      ASSERT_EQ(cache.evictable_bytes(), queue.budget().used() - cache.charged_bytes());
      ASSERT_LE(queue.budget().used(), bound);
    }
  }
  EXPECT_EQ(hits, 30) << "every turn but the first of each chat";
}

// The cache fills the memory to the last byte: other prefixes give way to the page tables of one that is continued.
TEST(PrefixStore, APrefixIsContinuedThoughTheCacheFillsTheMemory) {
  const TemporaryFile file(make_random_model(long_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  for (const std::string policy : {"full", "streaming:sinks=4,window=100", "h2o:budget=40,recent=10"}) {
    SCOPED_TRACE(policy);
    Counter cold(model, std::uint64_t{1} << 28, 0);
    Counter queue(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27);
    for (std::uint64_t i = 0; i < 4; ++i)
      queue.run(request_of("full", random_tokens(500, crowd_spec().vocab, i), 5, 2));
    RequestOptions options = request_of(policy, random_tokens(400, crowd_spec().vocab, 9), 5, 2);
    queue.run(options);
    const auto more = random_tokens(20, crowd_spec().vocab, 10);
    options.tokens.insert(options.tokens.end(), more.begin(), more.end());
    MemoryCharge rest(&queue.budget());
    ASSERT_TRUE(rest.try_resize(queue.budget().available()));
    const GenerateResult warm = queue.run(options).front();
    EXPECT_GE(warm.cached, 256);
    EXPECT_NE(warm.cache_miss, "no_room");
    expect_same(warm, cold.run(options).front());
    EXPECT_LE(queue.budget().peak(), queue.budget().capacity());
  }
}

// Chunks of a prompt are left before its logits show that a page holds NaN: nothing of it stays, and nothing else goes.
TEST(PrefixStore, DamagedPagesDoNotStay) {
  const TemporaryFile file(make_random_model(long_spec()));
  const auto model = load(file.path(), {.threads = 1, .kv_type = "f32", .page_slots = 16});
  for (const std::string policy : {"full", "h2o:budget=400,recent=10"}) {
    SCOPED_TRACE(policy);
    Counter cold(model, std::uint64_t{1} << 28, 0);
    Counter queue(model, std::uint64_t{1} << 28, std::uint64_t{1} << 27, {.prompt_rows = kChunk});
    const RequestOptions good = request_of(policy, random_tokens(200, crowd_spec().vocab, 1), 5, 2);
    queue.run(good);
    const RequestOptions options = request_of(policy, random_tokens(300, crowd_spec().vocab, 2), 5, 2);
    const RequestId damaged = queue.add(options);
    for (int polls = 0; polls < 6; ++polls) ASSERT_NO_FATAL_FAILURE(queue.poll());
    const PageId page = queue.queue().sequence_of(damaged, 0)->tables().table(0).pages().of(0)[0];
    const std::vector<std::byte> bytes(model->kv_shape.page.bytes(), std::byte{0xff});
    queue.cache().pool().store()->write(page, bytes);
    queue.expect_failure(damaged);
    ASSERT_NO_FATAL_FAILURE(queue.run_to_end());
    const GenerateResult again = queue.run(options).front();
    EXPECT_EQ(again.cached, 0);
    expect_same(again, cold.run(options).front());
    EXPECT_GT(queue.run(good).front().cached, 0) << "another beginning";
  }
}

// The pages that requests need are taken from prefixes before any request gives way.
TEST(PrefixStore, PrefixesGoBeforeRequests) {
  const TemporaryFile file(make_random_model(long_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  Counter probe(model, std::uint64_t{1} << 28, 0);
  const RequestOptions first = request_of("full", random_tokens(400, crowd_spec().vocab, 1), 10, 2);
  const std::uint64_t most = probe.run(first).front().kv.bytes_peak;
  Counter queue(model, most + most / 8, most * 2, {.ahead = 0});
  for (std::uint64_t i = 0; i < 5; ++i) {
    const RequestOptions options = request_of("full", random_tokens(400, crowd_spec().vocab, i), 10, 2);
    expect_same(queue.run(options).front(), probe.run(options).front());
  }
  EXPECT_EQ(queue.queue().counters().preempted, 0);
  EXPECT_EQ(queue.queue().counters().rejected, 0);
  EXPECT_LE(queue.budget().peak(), most + most / 8);
}

}  // namespace
}  // namespace kvasir::test
