// The tree of blocks and snapshots against a plain list of what was put in.
#include "prefix/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "support/scaling.h"

namespace kvasir {
namespace {

constexpr int kSlots = 16;

KvCacheShape shape() {
  return {.layers = 2, .kv_heads = 2, .page = PageFormat{.head_dim = 8, .slots = kSlots}};
}

// A snapshot of so many bytes that knows when it went.
class Marker final : public PrefixSnapshot {
 public:
  Marker(int* alive, std::uint64_t bytes) : alive_(alive), bytes_(bytes) { ++*alive_; }
  ~Marker() override { --*alive_; }
  std::uint64_t own_bytes() const override { return bytes_; }

 private:
  int* alive_;
  std::uint64_t bytes_;
};

// A snapshot that shares the pages of a sequence.
class Fork final : public PrefixSnapshot {
 public:
  Fork(KvCache& kv, const KvSequence& sequence) : copy_(*kv.fork(sequence)) { copy_.mark_cached(); }
  std::uint64_t own_bytes() const override { return copy_.table_bytes(); }

 private:
  KvSequence copy_;
};

class Events final : public PrefixListener {
 public:
  void stored(std::uint64_t hash, std::uint64_t parent, std::span<const TokenId> tokens, std::string_view,
              std::string_view, std::string_view) override {
    EXPECT_TRUE(parent == 0 || blocks.count(parent) == 1) << "a block before its parent";
    EXPECT_EQ(tokens.size(), std::size_t{kSlots});
    EXPECT_TRUE(blocks.insert({hash, parent}).second) << "stored twice";
  }
  void removed(std::uint64_t hash) override {
    EXPECT_EQ(blocks.erase(hash), 1u);
    for (const auto& [other, parent] : blocks) EXPECT_NE(parent, hash) << "a block behind it is left";
  }
  std::map<std::uint64_t, std::uint64_t> blocks;
};

struct Text {
  std::string salt;
  std::vector<TokenId> tokens;
};

PrefixQuery query_of(const Text& text, std::string_view lineage = "a") {
  PrefixQuery query;
  query.salt = text.salt;
  query.lineage = lineage;
  query.tokens = text.tokens;
  query.most_exact = query.most_snapshot = std::ssize(text.tokens) - 1;
  return query;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  explicit PrefixCacheTest(std::uint64_t pages = 4096)
      : kv_(*KvCache::create(shape(), pages * (shape().page.bytes() + PagePool::kPageOverhead) + (1 << 20))) {}

  // A sequence that has run the text.
  KvSequence run(const Text& text) {
    KvSequence sequence = kv_->new_sequence();
    EXPECT_TRUE(sequence.append(static_cast<int>(text.tokens.size())).ok());
    return sequence;
  }

  std::unique_ptr<KvCache> kv_;
};

std::int64_t common(const Text& a, const Text& b) {
  if (a.salt != b.salt) return 0;
  return std::ranges::mismatch(a.tokens, b.tokens).in1 - a.tokens.begin();
}

// Random texts that begin alike, of few token ids, so that beginnings repeat.
TEST_F(PrefixCacheTest, FindsTheLongestBeginning) {
  std::mt19937_64 random(1);
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  Events events;
  cache.set_listener(&events);
  std::vector<Text> known;
  std::vector<KvSequence> sequences;
  std::int64_t hits = 0;
  for (int i = 0; i < 120; ++i) {
    Text text;
    text.salt = random() % 3 == 0 ? "one" : "two";
    if (!known.empty() && random() % 4 != 0) {
      const Text& old = known[random() % known.size()];
      text.tokens.assign(old.tokens.begin(), old.tokens.begin() + static_cast<int>(random() % old.tokens.size()));
    }
    for (auto more = 1 + random() % 60; more > 0; --more) text.tokens.push_back(static_cast<TokenId>(random() % 3));
    std::int64_t most = 0;
    for (const Text& old : known)
      most = std::max(most, std::min(common(old, text) / kSlots, std::ssize(old.tokens) / kSlots) * kSlots);
    most = std::min(most, (std::ssize(text.tokens) - 1) / kSlots * kSlots);
    const PrefixMatch match = cache.find(query_of(text));
    ASSERT_EQ(match.tokens, most);
    ASSERT_EQ(match.snapshot, nullptr);
    hits += most;
    if (most > 0) {
      KvSequence adopted = kv_->new_sequence();
      ASSERT_TRUE(adopted.adopt(cache.pages(query_of(text), most)).ok());
      ASSERT_EQ(adopted.next_index(), most);
    }
    sequences.push_back(run(text));
    cache.add_pages(text.salt, text.tokens, sequences.back(), {});
    known.push_back(text);
    cache.check_invariants();
  }
  EXPECT_GT(hits, 500);
  sequences.clear();
  PageCounts references;
  cache.count_references(references);
  ASSERT_EQ(references.size(), kv_->pool().in_use());
  for (const auto& [page, count] : references) ASSERT_EQ(count, kv_->pool().references(page));
  cache.clear();
  cache.check_invariants();
  EXPECT_TRUE(events.blocks.empty());
  EXPECT_EQ(kv_->budget().used(), 0u);
}

TEST_F(PrefixCacheTest, PagesAreThoseOfTheSequence) {
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  Text text{"", std::vector<TokenId>(3 * kSlots + 5, 7)};
  const KvSequence sequence = run(text);
  cache.add_pages("", text.tokens, sequence, {});
  const std::vector<PageId> pages = cache.pages(query_of(text), 3 * kSlots);
  std::vector<PageId> expected;
  for (int column = 0; column < 3; ++column) sequence.add_pages_of_whole(column, expected);
  EXPECT_EQ(pages, expected);
  // Held apart by layer and head, too.
  for (const PolicyScope scope : {PolicyScope::kLayer, PolicyScope::kHead}) {
    KvSequence adopted = kv_->new_sequence({.scope = scope, .table = {.lists = true}});
    ASSERT_TRUE(adopted.adopt(pages).ok());
    std::vector<PageId> again;
    for (int column = 0; column < 3; ++column) adopted.add_pages_of_whole(column, again);
    EXPECT_EQ(again, expected);
  }
}

// Against a list in order of use.
TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirstAndPinnedOnesLast) {
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  std::vector<Text> texts;
  for (int i = 0; i < 6; ++i) texts.push_back({"", std::vector<TokenId>(kSlots + 1, i)});
  for (int i = 0; i < 6; ++i)
    cache.add_pages("", texts[static_cast<std::size_t>(i)].tokens, run(texts[static_cast<std::size_t>(i)]),
                    {.pinned = i == 1});
  static_cast<void>(cache.pages(query_of(texts[0]), kSlots));
  std::vector<int> order;
  const auto has = [&](int i) { return cache.find(query_of(texts[static_cast<std::size_t>(i)])).tokens > 0; };
  std::vector<bool> there(6, true);
  while (cache.evict_one()) {
    for (int i = 0; i < 6; ++i) {
      if (!there[static_cast<std::size_t>(i)] || has(i)) continue;
      there[static_cast<std::size_t>(i)] = false;
      order.push_back(i);
      EXPECT_EQ(cache.find(query_of(texts[static_cast<std::size_t>(i)])).miss, PrefixMiss::kEvicted);
    }
  }
  EXPECT_EQ(order, (std::vector<int>{2, 3, 4, 5, 0, 1}));
}

TEST_F(PrefixCacheTest, WhatSequencesShareIsNotGivenBackForNothing) {
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  const Text text{"", std::vector<TokenId>(4 * kSlots, 1)};
  {
    const KvSequence sequence = run(text);
    cache.add_pages("", text.tokens, sequence, {});
    EXPECT_EQ(cache.evictable_bytes(), 0u);
    EXPECT_FALSE(cache.evict_one());
    EXPECT_EQ(cache.find(query_of(text)).tokens, 3 * kSlots);
  }
  const std::uint64_t bytes = cache.evictable_bytes();
  EXPECT_EQ(bytes, 4u * 4u * kv_->pool().page_cost());
  const std::uint64_t used = kv_->budget().used();
  while (cache.evict_one()) {
  }
  EXPECT_GE(used - kv_->budget().used(), bytes);
}

// Snapshots that share most pages with each other, with blocks and with a sequence that goes on: what the cache says of
// its bytes is what the budget says once the sequence is gone, and what comes free.
TEST_F(PrefixCacheTest, PagesOfSeveralHoldersCountOnce) {
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  const Text text{"", std::vector<TokenId>(10 * kSlots, 1)};
  {
    KvSequence sequence = kv_->new_sequence();
    for (int turn = 1; turn <= 5; ++turn) {
      ASSERT_TRUE(sequence.append(2 * kSlots).ok());
      const auto tokens = std::span(text.tokens).first(static_cast<std::size_t>(turn * 2 * kSlots));
      cache.add_snapshot("", "a", tokens, std::make_unique<Fork>(*kv_, sequence), {});
      cache.check_invariants();
    }
    cache.add_pages("", std::span(text.tokens).first(3 * kSlots), sequence, {});
    EXPECT_EQ(cache.bytes(), kv_->budget().used() - sequence.table_bytes());
    EXPECT_EQ(kv_->pool().cached().only_pages, 0u) << "the sequence holds them";
  }
  EXPECT_EQ(cache.bytes(), kv_->budget().used());
  EXPECT_EQ(cache.evictable_bytes(), kv_->budget().used() - cache.charged_bytes());
  while (cache.evict_one()) EXPECT_EQ(cache.bytes(), kv_->budget().used());
  EXPECT_EQ(cache.evictable_bytes(), 0u);
  EXPECT_EQ(kv_->budget().used(), 0u);
}

// Turn after turn of conversations, each a snapshot that shares its pages with the one before.
TEST_F(PrefixCacheTest, TheBoundHoldsForPagesThatSnapshotsShare) {
  const std::uint64_t bound = 200 * kv_->pool().page_cost();
  PrefixCache cache(kv_.get(), bound);
  for (int chat = 0; chat < 20; ++chat) {
    KvSequence sequence = kv_->new_sequence();
    const std::vector<TokenId> tokens(6 * kSlots, chat);
    for (std::size_t turn = 1; turn <= 6; ++turn) {
      ASSERT_TRUE(sequence.append(kSlots).ok());
      cache.add_snapshot("", "a", std::span(tokens).first(turn * kSlots), std::make_unique<Fork>(*kv_, sequence), {});
    }
    const std::uint64_t others = sequence.table_bytes();
    ASSERT_LE(kv_->budget().used(), bound + others + 6 * 4 * kv_->pool().page_cost());
  }
  EXPECT_LE(kv_->budget().used(), bound);
  EXPECT_FALSE(cache.empty());
}

TEST_F(PrefixCacheTest, SnapshotsServeTheirOwnLineage) {
  int alive = 0;
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  std::vector<TokenId> tokens(100);
  for (int i = 0; i < 100; ++i) tokens[static_cast<std::size_t>(i)] = i;
  const Text text{"", tokens};
  cache.add_snapshot("", "a", std::span(tokens).first(40), std::make_unique<Marker>(&alive, 1), {});
  cache.add_snapshot("", "a", std::span(tokens).first(70), std::make_unique<Marker>(&alive, 1), {});
  cache.add_snapshot("", "b", std::span(tokens).first(90), std::make_unique<Marker>(&alive, 1), {});
  cache.check_invariants();
  EXPECT_EQ(alive, 3);
  EXPECT_EQ(cache.find(query_of(text)).tokens, 70);
  EXPECT_EQ(cache.find(query_of(text)).miss, PrefixMiss::kPolicy);
  EXPECT_EQ(cache.find(query_of(text, "b")).tokens, 90);
  EXPECT_EQ(cache.find(query_of(text, "c")).tokens, 0);
  PrefixQuery query = query_of(text);
  query.most_snapshot = 69;
  EXPECT_EQ(cache.find(query).tokens, 40);
  Text other = text;
  other.tokens[69] = 500;
  EXPECT_EQ(cache.find(query_of(other)).tokens, 40);
  cache.add_snapshot("", "a", std::span(tokens).first(70), std::make_unique<Marker>(&alive, 1), {});
  EXPECT_EQ(alive, 3) << "one of the same place is replaced";
  cache.check_invariants();
  cache.clear();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(kv_->budget().used(), 0u);
}

// Snapshots alone, as policies leave them that look at attention: the whole way to them is remembered, with the newest
// reason, and is forgotten once they are back.
TEST_F(PrefixCacheTest, SaysWhySnapshotsWent) {
  int alive = 0;
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  std::vector<TokenId> tokens(6 * kSlots);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
  const Text text{"", tokens};
  const auto leave = [&](std::int64_t blocks, double until) {
    cache.add_snapshot("", "a", std::span(tokens).first(static_cast<std::size_t>(blocks * kSlots)),
                       std::make_unique<Marker>(&alive, 1), {.until = until});
  };
  const auto miss_at = [&](double now, std::size_t blocks) {
    const Text part{"", {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(blocks * kSlots)}};
    PrefixQuery query = query_of(part);
    query.now = now;
    return cache.find(query).miss;
  };
  EXPECT_EQ(miss_at(0, 6), PrefixMiss::kUnknown);
  leave(4, 10);
  EXPECT_EQ(miss_at(9, 6), PrefixMiss::kUnknown) << "behind what was found";
  EXPECT_EQ(miss_at(10, 6), PrefixMiss::kExpired) << "still there";
  cache.expire(10);
  EXPECT_EQ(miss_at(10, 6), PrefixMiss::kExpired);
  leave(4, 100);
  EXPECT_EQ(miss_at(10, 6), PrefixMiss::kUnknown) << "it is back";
  cache.clear();
  EXPECT_EQ(miss_at(10, 6), PrefixMiss::kEvicted) << "the newer reason";
  cache.check_invariants();
  // The way stays while a longer one is there, which a shorter prompt cannot use.
  leave(2, 20);
  leave(5, 100);
  cache.expire(20);
  EXPECT_EQ(alive, 1);
  EXPECT_EQ(miss_at(20, 3), PrefixMiss::kExpired);
  EXPECT_EQ(miss_at(20, 6), PrefixMiss::kNone);
  cache.check_invariants();
}

TEST_F(PrefixCacheTest, TheBoundHolds) {
  int alive = 0;
  const std::uint64_t bound = 60 * kv_->pool().page_cost();
  PrefixCache cache(kv_.get(), bound);
  std::mt19937_64 random(4);
  for (int i = 0; i < 200; ++i) {
    Text text{"", {}};
    for (auto length = random() % 100; length > 0; --length) text.tokens.push_back(static_cast<TokenId>(random() % 2));
    if (random() % 3 == 0) {
      cache.add_snapshot("", "a", text.tokens, std::make_unique<Marker>(&alive, random() % 2000), {});
    } else {
      cache.add_pages("", text.tokens, text.tokens.empty() ? kv_->new_sequence() : run(text),
                      {.pinned = random() % 5 == 0});
    }
    ASSERT_LE(cache.bytes(), bound);
    cache.check_invariants();
  }
  EXPECT_FALSE(cache.empty());
}

TEST_F(PrefixCacheTest, TimesToLiveEnd) {
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  Text brief{"", std::vector<TokenId>(2 * kSlots + 1, 1)};
  Text lasting{"", std::vector<TokenId>(2 * kSlots + 1, 2)};
  cache.add_pages("", brief.tokens, run(brief), {.until = 10});
  cache.add_pages("", lasting.tokens, run(lasting), {});
  PrefixQuery query = query_of(brief);
  query.now = 9.9;
  EXPECT_EQ(cache.find(query).tokens, 2 * kSlots);
  query.now = 10;
  EXPECT_EQ(cache.find(query).tokens, 0);
  EXPECT_EQ(cache.find(query).miss, PrefixMiss::kExpired);
  const std::uint64_t pages = kv_->pool().in_use();
  cache.expire(10);
  cache.check_invariants();
  EXPECT_EQ(kv_->pool().in_use(), pages / 2);
  EXPECT_EQ(cache.find(query_of(lasting)).tokens, 2 * kSlots);
}

// A pin ends with the time that it was asked for, whatever others ask for the same text without one.
TEST_F(PrefixCacheTest, APinEndsWithItsTimeToLive) {
  int alive = 0;
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  const Text pinned{"", std::vector<TokenId>(3 * kSlots + 1, 1)};
  const Text other{"", std::vector<TokenId>(kSlots + 1, 2)};
  cache.add_pages("", pinned.tokens, run(pinned), {.pinned = true, .until = 60});
  cache.add_pages("", pinned.tokens, run(pinned), {});
  const std::vector<TokenId> tokens(kSlots, 3);
  cache.add_snapshot("", "a", tokens, std::make_unique<Marker>(&alive, 1), {.pinned = true, .until = 60});
  cache.add_snapshot("", "a", tokens, std::make_unique<Marker>(&alive, 1), {});
  cache.check_invariants();
  EXPECT_GT(cache.pinned_bytes(), 0u);
  cache.add_pages("", other.tokens, run(other), {});
  ASSERT_TRUE(cache.evict_one());
  EXPECT_EQ(cache.find(query_of(other)).tokens, 0) << "it was used last, but is not pinned";
  cache.add_pages("", other.tokens, run(other), {});
  cache.expire(60);
  cache.check_invariants();
  EXPECT_EQ(cache.find(query_of(pinned)).tokens, 3 * kSlots);
  EXPECT_EQ(alive, 1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache.evict_one());
    cache.expire(60);
    cache.check_invariants();
  }
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(cache.find(query_of(pinned)).tokens, 0);
  EXPECT_EQ(cache.find(query_of(other)).tokens, kSlots) << "used last";
  EXPECT_EQ(cache.pinned_bytes(), 0u);
}

// However much a tenant pins, and however many do, the entries of others find room and stay.
TEST_F(PrefixCacheTest, PinsLeaveRoomForOthers) {
  const std::uint64_t bound = 400 * kv_->pool().page_cost();
  PrefixCache cache(kv_.get(), bound);
  const auto leave = [&](int id, const PrefixKeep& keep) {
    const Text text{"", std::vector<TokenId>(2 * kSlots + 1, id)};
    cache.add_pages("", text.tokens, run(text), keep);
    cache.check_invariants();
    EXPECT_LE(cache.bytes(), bound);
  };
  const auto has = [&](int id) {
    const Text text{"", std::vector<TokenId>(2 * kSlots + 1, id)};
    return cache.find(query_of(text)).tokens > 0;
  };
  for (int id = 0; id < 200; ++id) leave(id, {.pinned = true, .tenant = 1});
  EXPECT_LE(cache.pinned_bytes(), bound / 2);
  EXPECT_GT(cache.pinned_bytes(), bound / 3);
  const std::uint64_t first = cache.pinned_bytes();
  for (int id = 200; id < 205; ++id) leave(id, {});
  for (int id = 200; id < 205; ++id) EXPECT_TRUE(has(id));
  leave(300, {.pinned = true, .tenant = 2});
  EXPECT_GT(cache.pinned_bytes(), first) << "another tenant may pin, too";
  for (int id = 400; id < 500; ++id) leave(id, {.tenant = 1});
  EXPECT_TRUE(has(0)) << "pinned";
  EXPECT_TRUE(has(300)) << "pinned";
  EXPECT_FALSE(has(200));
}

// Two tenants, one of which adds without end.
TEST_F(PrefixCacheTest, ATenantPushesOutNobodyWhoHoldsLess) {
  const std::uint64_t bound = 400 * kv_->pool().page_cost();
  PrefixCache cache(kv_.get(), bound);
  const auto text_of = [](int tenant, int id) {
    return Text{std::to_string(tenant) + (id % 2 == 0 ? "" : "x"), std::vector<TokenId>(2 * kSlots + 1, id)};
  };
  const auto leave = [&](int tenant, int id) {
    const Text text = text_of(tenant, id);
    cache.add_pages(text.salt, text.tokens, run(text), {.tenant = tenant});
    cache.check_invariants();
    EXPECT_LE(cache.bytes(), bound);
  };
  const auto has = [&](int tenant, int id) { return cache.find(query_of(text_of(tenant, id))).tokens == 2 * kSlots; };
  for (int id = 0; id < 8; ++id) leave(2, id);
  const std::uint64_t held = cache.bytes_of(2);
  EXPECT_EQ(held, cache.bytes()) << "it is alone";
  ASSERT_LT(held, bound / 4);
  for (int id = 0; id < 500; ++id) leave(1, id);
  for (int id = 0; id < 8; ++id) EXPECT_TRUE(has(2, id)) << id;
  EXPECT_EQ(cache.bytes_of(2), held);
  EXPECT_FALSE(has(1, 0));
  EXPECT_TRUE(has(1, 499));
  // The other takes what is its equal part, and no more.
  for (int id = 0; id < 500; ++id) leave(2, id);
  const std::uint64_t part = 2 * static_cast<std::uint64_t>(kv_->shape().lanes()) * kv_->pool().page_cost() * 2;
  EXPECT_NEAR(static_cast<double>(cache.bytes_of(2)), static_cast<double>(bound) / 2, static_cast<double>(part));
  EXPECT_NEAR(static_cast<double>(cache.bytes_of(1)), static_cast<double>(bound) / 2, static_cast<double>(part));
  EXPECT_TRUE(has(1, 499));
}

// A long text that expires beside many others, of which one continues it and lives longer.
TEST_F(PrefixCacheTest, AChainExpiresFromItsEndToWhatIsStillNeeded) {
  PrefixCache cache(kv_.get(), std::uint64_t{1} << 40);
  Text text{"", {}};
  for (int i = 0; i < 200 * kSlots; ++i) text.tokens.push_back(i);
  Text branch{"", {text.tokens.begin(), text.tokens.begin() + 50 * kSlots}};
  branch.tokens.insert(branch.tokens.end(), kSlots, 7);
  cache.add_pages("", text.tokens, run(text), {.until = 10});
  cache.add_pages("", branch.tokens, run(branch), {.until = 20});
  for (int i = 0; i < 100; ++i) {
    const Text other{"", std::vector<TokenId>(kSlots, -1 - i)};
    cache.add_pages("", other.tokens, run(other), {.until = 15.0 + i % 2 * 10});
  }
  const auto blocks = [&] { return kv_->pool().in_use() / 4; };
  ASSERT_EQ(blocks(), 301u);
  cache.expire(9.9);
  EXPECT_EQ(blocks(), 301u);
  cache.expire(10);
  cache.check_invariants();
  EXPECT_EQ(blocks(), 151u) << "the branch needs the first 50";
  cache.expire(15);
  EXPECT_EQ(blocks(), 101u);
  EXPECT_EQ(cache.find(query_of(branch)).tokens, 50 * kSlots);
  cache.expire(20);
  EXPECT_EQ(blocks(), 50u);
  cache.expire(25);
  EXPECT_TRUE(cache.empty());
  cache.check_invariants();
  EXPECT_EQ(kv_->budget().used(), 0u);
}

TEST(PrefixCacheTime, ALongTextExpiresInTimeLinearInItsLength) {
  const auto work = [](int blocks) {
    const auto kv = *KvCache::create(shape(), std::uint64_t{1} << 30);
    PrefixCache cache(kv.get(), std::uint64_t{1} << 40);
    const auto add = [&](const std::vector<TokenId>& tokens, double until) {
      KvSequence sequence = kv->new_sequence();
      ASSERT_TRUE(sequence.append(static_cast<int>(tokens.size())).ok());
      cache.add_pages("", tokens, sequence, {.until = until});
    };
    add(std::vector<TokenId>(static_cast<std::size_t>(blocks * kSlots), 1), 10);
    for (int i = 0; i < blocks; ++i) add(std::vector<TokenId>(kSlots, -i), 20);
    cache.expire(10);
    EXPECT_EQ(kv->pool().in_use(), static_cast<std::uint64_t>(blocks) * 4);
  };
  test::expect_linear(
      4, [&] { work(1000); }, [&] { work(4000); });
}

}  // namespace
}  // namespace kvasir
