// Requests whose prefixes come from outside memory: the same answers, whatever the places do.
#include "prefix_store/prefix_tiers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include "base/check.h"
#include "prefix_store/snapshot_image.h"
#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "sequence/crowd.h"
#include "sequence/sequence_runner.h"
#include "tiers/disk_store.h"
#include "tiers/faulty_blobs.h"

namespace kvasir::test {
namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 26;

RandomModelSpec tier_spec() {
  RandomModelSpec spec = small_spec();
  spec.context = 2048;
  return spec;
}

class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "kvasir-tiers-XXXXXX").string()) {
    KVASIR_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A queue of one process, as it were: its memory is gone with it, the stores' content is not.
class Process {
 public:
  Process(std::shared_ptr<LoadedModel> model, std::vector<std::unique_ptr<BlobStore>> stores)
      : model_(std::move(model)),
        runner_(std::make_shared<BatchRunner>(model_, *new_cache(model_, kMemory))),
        queue_(runner_, {}) {
    queue_.cache_prefixes(kMemory);
    queue_.store_prefixes(std::move(stores), [this](const std::string& line) { said_.push_back(line); });
  }

  RequestId add(const RequestOptions& options) {
    auto text = encode_request(*model_, options);
    EXPECT_TRUE(text.ok()) << text.status().message();
    std::optional<KvCodec> codec;
    if (!options.codec.empty()) codec = parse_codec(options.codec).codec;
    return queue_.add(options, std::move(*text), std::move(*make_policy(options.policy)), 64, codec);
  }
  void run_to_end() {
    run_until([this] { return queue_.unfinished() == 0; });
  }
  void run_until_finished(RequestId id) {
    run_until([&] { return results_.contains(id); });
  }
  void run_until(const std::function<bool()>& ended) {
    for (int polls = 0; !ended(); ++polls) {
      ASSERT_LT(polls, 100000) << "no end";
      const auto events = queue_.poll();
      ASSERT_TRUE(events.ok()) << events.status().message();
      for (const Event& event : *events) {
        ASSERT_NE(event.kind, Event::Kind::kFailed) << event.status.message();
        if (event.kind == Event::Kind::kFinished) results_[event.request] = event.result;
      }
      queue_.prefixes()->check_invariants();
    }
  }
  GenerateResult run(const RequestOptions& options) {
    const RequestId id = add(options);
    run_to_end();
    return results_[id];
  }
  const GenerateResult& result(RequestId id) { return results_[id]; }
  PrefixTierReport report(std::size_t tier = 0) const { return queue_.tier_report().at(tier); }
  // Until what was left has been written.
  void settle(std::int64_t stores, std::size_t tier = 0) {
    for (int i = 0; i < 2000 && (queue_.settling() || report(tier).stores + report(tier).failures < stores); ++i) {
      (void)queue_.poll();
      queue_.settle_tiers(std::chrono::milliseconds(5));
    }
  }
  RequestQueue& queue() { return queue_; }
  const std::vector<std::string>& said() const { return said_; }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<BatchRunner> runner_;
  std::vector<std::string> said_;
  RequestQueue queue_;
  std::map<RequestId, GenerateResult> results_;
};

RequestOptions request(const std::string& policy, int tokens = 900, std::uint64_t seed = 1) {
  RequestOptions options;
  options.tokens = random_tokens(tokens, tier_spec().vocab, seed);
  options.policy = policy;
  options.generate.max_tokens = 12;
  options.generate.ignore_eos = true;
  options.generate.logprobs = 1;
  options.generate.sampling.temperature = 0;
  return options;
}

std::vector<double> bits_of(const GenerateResult& result) {
  std::vector<double> bits;
  for (const GeneratedToken& token : result.choices) {
    bits.push_back(token.token.id);
    bits.push_back(token.token.log_probability);
  }
  return bits;
}

class PrefixTiersTest : public testing::Test {
 protected:
  std::shared_ptr<LoadedModel> load_model_of(const std::string& codec = "f16") {
    return load(file_.path(), {.threads = 1, .kv_type = codec, .page_slots = 16});
  }
  std::vector<double> cold(const std::shared_ptr<LoadedModel>& model, const RequestOptions& options) {
    Process process(model, {});
    const GenerateResult result = process.run(options);
    EXPECT_EQ(result.cached, 0);
    return bits_of(result);
  }
  static std::vector<std::unique_ptr<BlobStore>> disk(const std::string& folder,
                                                      std::unique_ptr<BlobFiles> files = {}) {
    std::vector<std::unique_ptr<BlobStore>> stores;
    auto store = open_disk_store({folder, std::uint64_t{1} << 28, {}}, std::move(files));
    EXPECT_TRUE(store.ok()) << store.status().message();
    stores.push_back(std::move(*store));
    return stores;
  }
  static std::vector<std::unique_ptr<BlobStore>> far(const std::shared_ptr<FarStore::Content>& content) {
    std::vector<std::unique_ptr<BlobStore>> stores;
    stores.push_back(std::make_unique<FarStore>(content));
    return stores;
  }

  TemporaryFile file_{make_random_model(tier_spec())};
};

TEST_F(PrefixTiersTest, AnotherProcessGoesOnWithTheSameBits) {
  for (const char* codec : {"f16", "q4"}) {
    const auto model = load_model_of(codec);
    for (const std::string policy :
         {"full", "streaming:sinks=4,window=600", "snapkv:budget=64,window=16", "h2o:budget=64"}) {
      SCOPED_TRACE(policy + " " + codec);
      const std::vector<double> expected = cold(model, request(policy));
      const Folder folder;
      {
        Process first(model, disk(folder.path()));
        EXPECT_EQ(bits_of(first.run(request("full"))), cold(model, request("full")));
        first.settle(3);
        EXPECT_EQ(first.report().stores, 3) << "900 tokens are three parts of 256";
      }
      Process second(model, disk(folder.path()));
      const GenerateResult result = second.run(request(policy));
      EXPECT_EQ(bits_of(result), expected);
      if (policy.starts_with("h2o")) {
        EXPECT_EQ(result.cached, 0) << "it must see every row's attention";
        EXPECT_EQ(second.report().loads, 0);
        continue;
      }
      EXPECT_GE(result.cached, 256);
      EXPECT_EQ(result.cached_from, "disk");
      EXPECT_EQ(second.report().tokens_loaded, result.cached);
      EXPECT_EQ(second.report().failures, 0);
      const GenerateResult again = second.run(request(policy));
      EXPECT_EQ(bits_of(again), expected);
      EXPECT_NE(again.cached_from, "disk") << "it is in memory now";
    }
  }
}

TEST_F(PrefixTiersTest, OthersFindNothing) {
  const auto content = std::make_shared<FarStore::Content>();
  const auto model = load_model_of();
  {
    Process first(model, far(content));
    first.run(request("full"));
    first.settle(3);
    EXPECT_EQ(content->blobs.size(), 3u);
  }
  RequestOptions salted = request("full");
  salted.salt = "somebody";
  for (const auto& [who, options] : std::vector<std::pair<std::shared_ptr<LoadedModel>, RequestOptions>>{
           {model, salted}, {model, request("full", 900, 2)}, {load_model_of("q4"), request("full")}}) {
    Process other(who, far(content));
    EXPECT_EQ(other.run(options).cached, 0);
    EXPECT_EQ(other.report().loads, 0);
  }
  RequestOptions passing = request("full", 900, 3);
  passing.ttl = 60;
  Process other(model, far(content));
  other.run(passing);
  other.settle(1);
  EXPECT_EQ(other.report().stores, 0) << "what has a time to live ends in memory";
}

// One folder, one process, two codecs: each finds its own, and what a process of that codec alone has stored.
TEST_F(PrefixTiersTest, CodecsOfOneProcessAreKeptApart) {
  const auto both = load(file_.path(), {.threads = 1, .kv_types = {"q4", "q8,recent=20"}, .page_slots = 16});
  const auto q4 = load_model_of("q4");
  const Folder folder;
  RequestOptions in_q4 = request("full");
  in_q4.codec = "q4";
  RequestOptions recent = request("full");
  recent.codec = "q8,recent=20";
  const std::vector<double> expected = cold(q4, request("full"));
  {
    Process first(both, disk(folder.path()));
    first.run(request("full"));
    first.settle(3);
    EXPECT_EQ(bits_of(first.run(in_q4)), expected);
    EXPECT_EQ(first.report().loads, 0) << "what f16 pages hold is no use";
    first.settle(6);
    EXPECT_EQ(first.report().stores, 6);
    first.run(recent);  // leaves nothing exact: snapshots at 64, 192, 448 and 896 tokens
    first.settle(10);
    EXPECT_EQ(first.report().stores, 10);
    const std::uint64_t buffers = first.queue().tier_buffers();
    EXPECT_GT(buffers, 0u);
    EXPECT_LE(buffers, PrefixTiers::kMostBufferBytes);
  }
  {
    Process second(both, disk(folder.path()));
    const GenerateResult result = second.run(in_q4);
    EXPECT_EQ(bits_of(result), expected);
    EXPECT_EQ(result.cached_from, "disk");
    EXPECT_EQ(bits_of(second.run(request("full"))), cold(both, request("full")));
    EXPECT_EQ(second.report().loads, 6);
    const GenerateResult of_snapshot = second.run(recent);
    EXPECT_EQ(bits_of(of_snapshot), cold(both, recent));
    EXPECT_EQ(of_snapshot.cached, 896);
    EXPECT_EQ(of_snapshot.cached_from, "disk");
    EXPECT_EQ(second.report().loads, 7);
    EXPECT_EQ(second.report().failures, 0);
  }
  Process alone(q4, disk(folder.path()));
  const GenerateResult result = alone.run(request("full"));
  EXPECT_EQ(bits_of(result), expected);
  EXPECT_EQ(result.cached_from, "disk");
}

// What a policy has made of a text outlives the process, too: no exact pages could stand in for it.
TEST_F(PrefixTiersTest, SnapshotsGoOnInAnotherProcess) {
  const std::vector<std::string> policies = {"h2o:budget=64", "streaming:sinks=4,window=100",
                                             "tova:budget=64,pos=compact", "lethe:tau=2,start=64,sinks=2",
                                             "cascade:size=64,n=4,sinks=4"};
  for (const char* codec : {"f16", "q4"}) {
    const auto model = load_model_of(codec);
    for (const std::string& policy : policies) {
      SCOPED_TRACE(policy + " " + codec);
      const Folder folder;
      {
        Process first(model, disk(folder.path()));
        first.run(request(policy));
        first.settle(4);
      }
      RequestOptions longer = request(policy);
      const auto more = random_tokens(150, tier_spec().vocab, 50);
      longer.tokens.insert(longer.tokens.end(), more.begin(), more.end());
      {
        Process second(model, disk(folder.path()));
        for (const RequestOptions& options : {longer, request(policy)}) {
          const GenerateResult result = second.run(options);
          EXPECT_EQ(bits_of(result), cold(model, options));
          EXPECT_EQ(result.cached, 896);
          EXPECT_EQ(result.cached_from, options.tokens.size() > 900 ? "disk" : "snapshot") << "it is in memory now";
        }
        EXPECT_EQ(second.report().loads, 1);
        EXPECT_EQ(second.report().tokens_loaded, 896);
        EXPECT_EQ(second.report().failures, 0);
      }
      // Of another policy, salt or chunk there is nothing.
      Process third(model, disk(folder.path()));
      RequestOptions salted = request(policy);
      salted.salt = "somebody";
      third.run(salted);
      third.run(request(policy.starts_with("h2o") ? "h2o:budget=65" : "h2o:budget=64"));
      EXPECT_EQ(third.report().loads, 0);
    }
  }
}

// Several requests wait for one snapshot of a far store, and one asks for nothing that it would not use.
TEST_F(PrefixTiersTest, RequestsShareASnapshot) {
  const auto content = std::make_shared<FarStore::Content>();
  const auto model = load_model_of();
  {
    Process first(model, far(content));
    first.run(request("h2o:budget=64"));
    first.settle(4);
    EXPECT_EQ(content->blobs.size(), 4u);
  }
  Process second(model, far(content));
  std::vector<RequestId> ids;
  std::vector<RequestOptions> all;
  for (std::uint64_t i = 0; i < 4; ++i) {
    all.push_back(request("h2o:budget=64"));
    all.back().tokens.resize(890 - i * 20);
    const auto more = random_tokens(30, tier_spec().vocab, 50 + i);
    all.back().tokens.insert(all.back().tokens.end(), more.begin(), more.end());
    ids.push_back(second.add(all.back()));
  }
  second.run_to_end();
  EXPECT_EQ(second.report().loads, 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(bits_of(second.result(ids[i])), cold(model, all[i]));
    EXPECT_EQ(second.result(ids[i]).cached, 448);
    EXPECT_EQ(second.result(ids[i]).cached_from, "redis");
  }
}

TEST_F(PrefixTiersTest, ADamagedSnapshotIsNotUsed) {
  const auto model = load_model_of();
  const RequestOptions options = request("h2o:budget=64");
  const std::vector<double> expected = cold(model, options);
  for (const BlobFault fault : {BlobFault::kError, BlobFault::kShort, BlobFault::kDamaged})
    for (const bool in_reads : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(fault) << (in_reads ? " read" : " write"));
      const BlobFaultPlan plan = [=](bool reads, int) { return reads == in_reads ? fault : BlobFault::kNone; };
      const Folder folder;
      FaultyFiles::Content content;
      {
        Process first(model, disk(folder.path(), std::make_unique<FaultyFiles>(&content, plan)));
        EXPECT_EQ(bits_of(first.run(options)), expected);
        first.settle(4);
      }
      Process second(model,
                     disk(folder.path(), std::make_unique<FaultyFiles>(&content, in_reads ? plan : no_blob_fault)));
      const GenerateResult result = second.run(options);
      EXPECT_EQ(bits_of(result), expected);
      EXPECT_EQ(result.cached, 0);
    }
}

// Images are refused in any length but their own, with any byte changed, and as those of another key or text.
TEST_F(PrefixTiersTest, OnlyWholeImagesAreRead) {
  const auto model = load_model_of();
  const auto cache = *new_cache(model, kMemory);
  const auto policy = *make_policy("h2o:budget=32,recent=8");
  const auto tokens = random_tokens(100, tier_spec().vocab, 7);
  SequenceRunner runner(model, cache, policy->clone());
  ASSERT_TRUE(runner.feed(tokens, 32, Logits::kNone, {}).ok());
  const KvCodec codec = cache->shape().codec();
  const BlobKey key = text_key(image_lineage(*model, cache->shape(), "h2o"), "salt", tokens);
  const ImageWriter writer(runner.whole());
  std::vector<std::byte> image(writer.bytes(tokens));
  writer.write(key, tokens, image);
  const auto parts = read_image(key, tokens, image);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  const auto restored = restore_image(*parts, 100, model, cache, policy->clone(), codec);
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ((*restored)->tables().next_index(), 100);
  EXPECT_FALSE(restore_image(*parts, 99, model, cache, policy->clone(), codec).ok());
  const ImageParts shorter{parts->state, parts->pages.first(parts->pages.size() - 1)};
  EXPECT_FALSE(restore_image(shorter, 100, model, cache, policy->clone(), codec).ok());
  for (std::size_t cut = 0; cut < image.size(); cut += cut < 1000 ? 1 : 997)
    EXPECT_FALSE(read_image(key, tokens, std::span(image).first(cut)).ok()) << cut;
  // With a checksum that is right again: the head and the tokens must be those that were asked for.
  const std::size_t known = 80 + tokens.size() * sizeof(TokenId);
  for (std::size_t at = 0; at < known; ++at) {
    std::vector<std::byte> changed = image;
    changed[at] ^= std::byte{0x40};
    EXPECT_FALSE(read_image(key, tokens, changed).ok()) << at;
    seal_part(changed);
    EXPECT_FALSE(read_image(key, tokens, changed).ok()) << at;
  }
  BlobKey other = key;
  other.salt.low ^= 1;
  EXPECT_FALSE(read_image(other, tokens, image).ok());
  // And a state that is anything is refused or sound.
  const std::size_t state = known;
  for (std::size_t at = 0; at < parts->state.size(); ++at) {
    std::vector<std::byte> changed = image;
    changed[state + at] ^= std::byte{0x11};
    seal_part(changed);
    const auto read = read_image(key, tokens, changed);
    ASSERT_TRUE(read.ok());
    (void)restore_image(*read, 100, model, cache, policy->clone(), codec);
  }
}

// A text that goes on differently finds the parts before that place, and several that begin alike wait for one fetch.
TEST_F(PrefixTiersTest, RequestsShareAFetch) {
  const auto content = std::make_shared<FarStore::Content>();
  const auto model = load_model_of();
  {
    Process first(model, far(content));
    first.run(request("full"));
    first.settle(3);
  }
  content->milliseconds = 3;
  Process second(model, far(content));
  std::vector<RequestOptions> all;
  std::vector<RequestId> ids;
  for (std::uint64_t i = 0; i < 6; ++i) {
    all.push_back(request("full"));
    all.back().tokens.resize(600 + i * 20);
    const auto more = random_tokens(100, tier_spec().vocab, 50 + i);
    all.back().tokens.insert(all.back().tokens.end(), more.begin(), more.end());
    ids.push_back(second.add(all.back()));
  }
  second.run_to_end();
  EXPECT_EQ(second.report().loads, 2);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(bits_of(second.result(ids[i])), cold(model, all[i]));
    EXPECT_GE(second.result(ids[i]).cached, 512);
    // Those that waited for another's fetch find its pages in memory.
    EXPECT_THAT(second.result(ids[i]).cached_from, testing::AnyOf("redis", "pages"));
  }
  EXPECT_TRUE(std::ranges::any_of(ids, [&](RequestId id) { return second.result(id).cached_from == "redis"; }));
}

// While one request asks a store that has nothing, another computes the same tokens: they come from memory's pages. A
// store is asked only where measurements say that it is faster than to compute, which a busy machine may deny: then the
// case is set up again.
TEST_F(PrefixTiersTest, WhatWasComputedDuringAFetchComesFromPages) {
  const auto model = load_model_of();
  RequestOptions longer = request("full", 200);
  const auto more = random_tokens(500, tier_spec().vocab, 50);
  longer.tokens.insert(longer.tokens.end(), more.begin(), more.end());
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto content = std::make_shared<FarStore::Content>();
    Process process(model, far(content));
    process.run(request("full", 300, 2));  // from now on the store is fast
    process.settle(1);
    content->holds = true;
    const RequestId id = process.add(longer);
    ASSERT_TRUE(process.queue().poll().ok());
    const bool waits = process.queue().find(id, 0)->is(RequestState::kFetching);  // for the store's answer
    EXPECT_EQ(process.queue().find(id, 0)->holds_pages(), !waits);
    if (waits) process.run_until_finished(process.add(request("full", 200)));  // less than a part: asks for nothing
    content->holds = false;
    process.run_to_end();
    if (!waits) continue;
    EXPECT_EQ(process.report().loads, 0);
    EXPECT_GT(process.result(id).cached, 0);
    EXPECT_EQ(process.result(id).cached_from, "pages");
    return;
  }
  FAIL() << "the store was never asked";
}

// Each write and each read goes wrong once; then all of them do. It costs time alone, and what is found is right.
TEST_F(PrefixTiersTest, EveryWriteAndEveryReadFailsOnce) {
  const auto model = load_model_of();
  const std::vector<double> expected = cold(model, request("full"));
  for (const BlobFault fault : {BlobFault::kError, BlobFault::kShort, BlobFault::kDamaged})
    for (const bool in_reads : {false, true})
      for (const int number : {0, 1, 2, -1}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(fault) << (in_reads ? " read " : " write ") << number);
        const BlobFaultPlan plan = [=](bool reads, int at) {
          return reads == in_reads && (number < 0 || at == number) ? fault : BlobFault::kNone;
        };
        const Folder folder;
        FaultyFiles::Content content;
        {
          Process first(model, disk(folder.path(), std::make_unique<FaultyFiles>(&content, plan)));
          EXPECT_EQ(bits_of(first.run(request("full"))), expected);
          first.settle(3);
          EXPECT_EQ(first.report().failures > 0, !in_reads && fault == BlobFault::kError);
        }
        Process second(model, disk(folder.path(), std::make_unique<FaultyFiles>(
                                                      &content, in_reads ? plan : BlobFaultPlan(no_blob_fault))));
        const GenerateResult result = second.run(request("full"));
        EXPECT_EQ(bits_of(result), expected);
        // A write that failed with an error may have been tried again when the request ended.
        const std::int64_t before = number < 0 ? 0 : number * 256;
        if (!in_reads && number >= 0 && fault == BlobFault::kError) {
          EXPECT_THAT(result.cached, testing::AnyOf(before, 768));
        } else {
          EXPECT_EQ(result.cached, before) << "the parts before the one that fails";
        }
        if (in_reads || fault == BlobFault::kDamaged) {
          EXPECT_GT(second.report().failures, 0);
        }
        if (fault == BlobFault::kDamaged) {
          EXPECT_THAT(second.said(), testing::Contains(testing::HasSubstr("removed")));
        }
        // Written anew, unless writing is what fails.
        second.settle(1);
        Process third(model, disk(folder.path() + "/third", std::make_unique<FaultyFiles>(&content, no_blob_fault)));
        EXPECT_EQ(bits_of(third.run(request("full"))), expected);
      }
}

TEST_F(PrefixTiersTest, ASlowOrDeadPlaceCostsWhatItHolds) {
  const auto content = std::make_shared<FarStore::Content>();
  const auto model = load_model_of();
  const std::vector<double> expected = cold(model, request("full"));
  {
    Process first(model, far(content));
    first.run(request("full"));
    first.settle(3);
  }
  content->fails = true;
  Process dead(model, far(content));
  const GenerateResult without = dead.run(request("full"));
  EXPECT_EQ(bits_of(without), expected);
  EXPECT_EQ(without.cached, 0);
  EXPECT_GT(dead.report().failures, 0);
  EXPECT_THAT(dead.said(), testing::Contains(testing::HasSubstr("no connection")));
  content->fails = false;
  content->milliseconds = 300;
  content->holds = true;
  Process slow(model, far(content));
  EXPECT_EQ(bits_of(slow.run(request("full"))), expected) << "it is there before the store says anything";
  EXPECT_EQ(slow.report().abandoned, 1);
  content->holds = false;
  // As measured, it is not worth asking.
  content->milliseconds = 0;
  slow.settle(0);
  for (std::uint64_t seed = 20; seed < 23; ++seed) slow.run(request("full", 300, seed));
  EXPECT_GT(slow.report().latency, 0.01);
}

TEST_F(PrefixTiersTest, ARequestMayBeCancelledWhileItWaits) {
  const auto content = std::make_shared<FarStore::Content>();
  const auto model = load_model_of();
  {
    Process first(model, far(content));
    first.run(request("full"));
    first.settle(3);
  }
  content->milliseconds = 30;
  Process second(model, far(content));
  const RequestId id = second.add(request("full"));
  ASSERT_TRUE(second.queue().poll().ok());
  ASSERT_TRUE(second.queue().cancel(id).ok());
  second.run_to_end();
  EXPECT_EQ(second.queue().unfinished(), 0);
  content->milliseconds = 0;
  EXPECT_EQ(bits_of(second.run(request("full"))), cold(model, request("full")));
}

}  // namespace
}  // namespace kvasir::test
