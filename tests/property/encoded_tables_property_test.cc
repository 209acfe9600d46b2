// Random appends, plans, forks, compactions and saves of tables whose pages are encoded, with the bytes of their pages,
// against a list of tokens and what was written for each: every token stays in one place of the table, reads as what
// was written but for the codec's rounding, and is encoded again only where its page was packed.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "kv/kv_cache.h"
#include "kv/table.h"
#include "tensor/dtype.h"

namespace kvasir {
namespace {

constexpr int kDim = 32;
constexpr double kFrequencies[kDim / 2] = {1.0, 0.3, 0.05};  // the others do not turn

struct EncodedConfig {
  std::string name;
  std::string codec;
  int slots = 32;
  int lanes = 1;
  bool lists = true;
  bool original = false;
  std::vector<std::int64_t> runs = {};  // capacities of those behind the first
  int usual = 150;                      // tokens that stay
  bool dense = false;                   // few tokens leave at a time
};

void PrintTo(const EncodedConfig& config, std::ostream* out) {
  *out << config.name;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  int draw(int low, int high) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return low + static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return draw(0, 99) < percent; }

 private:
  std::uint64_t state_;
};

// Dimension d of a token's key, before it is rotated, or value.
float element(TokenIndex token, int lane, int d, bool value) {
  std::uint64_t x = static_cast<std::uint64_t>(token * 4096 + lane * 128 + d * 2 + (value ? 1 : 0)) + 1;
  for (int i = 0; i < 3; ++i) x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
}

std::array<float, kDim> key_at(TokenIndex token, int lane, Position position) {
  std::array<float, kDim> key;
  for (std::size_t i = 0; i < kDim / 2; ++i) {
    const double angle = static_cast<double>(position) * kFrequencies[i];
    const double a = element(token, lane, static_cast<int>(2 * i), false);
    const double b = element(token, lane, static_cast<int>(2 * i + 1), false);
    key[2 * i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    key[2 * i + 1] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
  }
  return key;
}

struct EncodedTwin {
  KvSequence real;
  std::vector<TokenIndex> tokens;  // retained
  TokenIndex next = 0;
  std::map<TokenIndex, int> run;  // of those that were handed on
};

class EncodedWorld {
 public:
  EncodedWorld(const EncodedConfig& config, std::uint64_t seed)
      : config_(config),
        random_(seed),
        codec_(parse_codec(config.codec).codec),
        store_(&generic_kernels(), &threads_, {Rotation{kDim, {std::begin(kFrequencies), std::end(kFrequencies)}, 1}}) {
    shape_ = {.layers = config.lanes,
              .kv_heads = 1,
              .page = {kDim, config.slots, codec_.key, codec_.value, codec_.hadamard_keys, codec_.hadamard_values},
              .recent = codec_.recent};
    layout_.table.lists = config.lists;
    layout_.table.original_positions = config.original;
    layout_.table.run_capacities = config.runs;
    cache_ = std::move(*KvCache::create(shape_, std::uint64_t{64} << 20, &store_));
    add();
  }

  void step() {
    EncodedTwin& twin = *twins_[static_cast<std::size_t>(random_.draw(0, static_cast<int>(twins_.size()) - 1))];
    const int choice = random_.draw(0, 99);
    if (choice < 88) {
      pass(twin, random_.chance(75) ? 1 : random_.draw(1, 3 * config_.slots));
    } else if (choice < 93) {
      fork(twin);
    } else if (choice < 95 && twins_.size() > 1) {
      twins_.erase(twins_.begin() + random_.draw(0, static_cast<int>(twins_.size()) - 1));
    } else if (choice < 97 && config_.lists && config_.runs.empty()) {
      if (random_.chance(50)) {
        twin.real.only_table().compact();
        if (!twin.real.only_table().tokens().original) {
          EXPECT_LE(twin.real.only_table().frames().size(), std::size_t{PageTable::kPackedFrames});
        }
      } else {
        twin.real.only_table().make_positions_compact();
      }
    } else {
      save_and_restore(twin);
    }
  }

  void verify() {
    std::vector<const KvSequence*> all;
    for (const auto& twin : twins_) all.push_back(&twin->real);
    cache_->check_invariants(all);
    for (const auto& twin : twins_) ASSERT_NO_FATAL_FAILURE(verify(*twin));
  }

  std::map<std::string, int> counts;

 private:
  void add() { twins_.push_back(std::make_unique<EncodedTwin>(EncodedTwin{cache_->new_sequence(layout_), {}, 0, {}})); }

  void store(std::byte* open, int slot, TokenIndex token, int lane, Position rotation) {
    std::array<float, kDim> key = key_at(token, lane, rotation), value;
    for (int d = 0; d < kDim; ++d) value[static_cast<std::size_t>(d)] = element(token, lane, d, true);
    if (codec_.hadamard_keys) hadamard(key.data(), 1, kDim);
    if (codec_.hadamard_values) hadamard(value.data(), 1, kDim);
    generic_kernels().store_kv(shape_.page.open(), open, slot, key.data(), value.data());
  }

  // What a pass writes: to open pages, which are encoded where the table seals them.
  void write(EncodedTwin& twin, int tokens) {
    PageTable& table = twin.real.only_table();
    std::map<std::uint32_t, const PassSeals::Seal*> seals;
    for (const PassSeals::Seal& seal : table.seals().all()) seals[seal.column] = &seal;
    std::map<std::pair<std::uint32_t, int>, std::vector<std::byte>> rooms;  // columns that the pass begins and seals
    const std::size_t open_bytes = shape_.page.open().bytes();
    const auto open_of = [&](std::uint32_t column, int lane) -> std::byte* {
      const auto seal = seals.find(column);
      if (seal == seals.end()) return store_.data(table.pages().of(column)[static_cast<std::size_t>(lane)]);
      if (const int open = seal->second->open; open >= 0)
        return store_.data(table.seals().open_pages()[static_cast<std::size_t>(open * config_.lanes + lane)]);
      std::vector<std::byte>& room = rooms[{column, lane}];
      room.resize(open_bytes);
      return room.data();
    };
    for (const test::LiveToken& place : test::live_tokens(table)) {
      if (place.id < twin.next - tokens) continue;
      const PageTable::Frame& frame = table.frames()[static_cast<std::size_t>(place.frame)];
      for (int lane = 0; lane < config_.lanes; ++lane)
        store(open_of(place.column, lane), place.slot, place.id, lane,
              table.tokens().stored_rotation(place.column, place.slot, frame));
    }
    for (const auto& [column, seal] : seals) {
      ++counts["seals"];
      for (int lane = 0; lane < config_.lanes; ++lane)
        encode_page(shape_.page, open_of(column, lane), table.columns()[column].live,
                    store_.data(table.pages().of(column)[static_cast<std::size_t>(lane)]));
    }
  }

  void pass(EncodedTwin& twin, int tokens) {
    SCOPED_TRACE(fmt::format("pass of {}", tokens));
    ASSERT_TRUE(twin.real.append(tokens).ok());
    for (int i = 0; i < tokens; ++i) twin.tokens.push_back(twin.next++);
    write(twin, tokens);
    twin.real.end_pass();
    ASSERT_NO_FATAL_FAILURE(verify(twin));
    if (random_.chance(30) && tokens < config_.slots) return;
    prune(twin);
  }

  void prune(EncodedTwin& twin) {
    KeepPlan plan;
    std::vector<TokenIndex> kept;
    const int excess = static_cast<int>(twin.tokens.size()) - config_.usual;
    if (!config_.runs.empty()) {
      hand_on(twin, plan, kept);
    } else if (!config_.lists) {
      if (excess <= 0) return;
      // Behind the sinks.
      plan.drop.push_back({4, twin.tokens[static_cast<std::size_t>(3 + excess)] + 1});
      if (config_.dense) plan.realign = Realign::kRotate;
      for (const TokenIndex token : twin.tokens)
        if (token < 4 || token >= plan.drop[0].end) kept.push_back(token);
    } else {
      const int most = config_.dense ? std::max(excess, 1) : std::max(excess, random_.draw(1, 40));
      std::set<TokenIndex> leave;
      for (int i = 0; i < most && leave.size() + 4 < twin.tokens.size(); ++i) {
        const int at = random_.draw(0, static_cast<int>(twin.tokens.size()) - 1);
        leave.insert(twin.tokens[static_cast<std::size_t>(at)]);
        // Now and then neighbours leave together.
        for (int next = 1; random_.chance(25) && at + next < static_cast<int>(twin.tokens.size()) && i < most;
             ++next, ++i)
          leave.insert(twin.tokens[static_cast<std::size_t>(at + next)]);
      }
      for (const TokenIndex token : twin.tokens)
        if (leave.contains(token)) {
          plan.add_drop({token, token + 1});
        } else {
          kept.push_back(token);
        }
    }
    if (plan.empty()) return;
    PageTable& table = twin.real.only_table();
    const auto before = pages(table);
    const std::uint64_t again = table.columns().all_encodings().again;
    if (plan.realign == Realign::kRotate) {
      ASSERT_TRUE(table.unshare({plan.drop.front().end, twin.next}).ok());
    }
    ASSERT_TRUE(table.apply(plan).ok());
    twin.tokens = kept;
    if (table.columns().all_encodings().again > again) ++counts["prunes that encode again"];
    ++counts["prunes"];
    if (config_.lists && config_.runs.empty()) {
      // Few dead slots, or too few tokens to fill their columns.
      const std::int64_t written = table.length() + table.tokens().dead_slots();
      EXPECT_TRUE(table.tokens().dead_slots() * 4 <= written ||
                  table.columns().count() <= (table.length() + config_.slots - 1) / config_.slots + 1)
          << table.tokens().dead_slots() << " of " << written;
      EXPECT_LE(table.columns().count(), (table.length() * 4 / 3 + config_.slots - 1) / config_.slots + 1);
    }
    // A page of the same tokens at the same place is the same page.
    for (const auto& [place, bytes] : pages(table))
      if (const auto found = before.find(place); found != before.end()) {
        EXPECT_EQ(found->second, bytes);
        ++counts["sealed columns that stayed"];
      }
  }

  // What the sealed columns hold, by the tokens of all of their slots, where these lie and how often they were encoded.
  std::map<std::string, std::string> pages(const PageTable& table) const {
    std::map<std::uint32_t, std::string> names;
    for (const test::LiveToken& token : test::live_tokens(table)) {
      if (!table.columns()[token.column].sealed) continue;
      std::string& name = names[token.column];
      if (!name.empty()) continue;
      for (int slot = 0; slot < config_.slots; ++slot)
        name += fmt::format(" {}x{}", table.columns().index(token.column, slot),
                            table.columns().encodings(token.column)[static_cast<std::size_t>(slot)]);
    }
    std::map<std::string, std::string> all;
    for (const auto& [column, name] : names)
      for (int lane = 0; lane < config_.lanes; ++lane) {
        const std::byte* page = store_.data(table.pages().of(column)[static_cast<std::size_t>(lane)]);
        all[fmt::format("{}:{}", lane, name)].assign(reinterpret_cast<const char*>(page), shape_.page.bytes());
      }
    return all;
  }

  // As a cascade: what is too much for a run goes to the next one, or leaves.
  void hand_on(EncodedTwin& twin, KeepPlan& plan, std::vector<TokenIndex>& kept) {
    std::vector<std::vector<TokenIndex>> runs(config_.runs.size() + 1);
    for (const TokenIndex token : twin.tokens) {
      const auto of = twin.run.find(token);
      runs[of == twin.run.end() ? 0 : static_cast<std::size_t>(of->second)].push_back(token);
    }
    const auto size = static_cast<std::size_t>(config_.slots);
    const auto capacity = [&](std::size_t r) { return r == 0 ? size : static_cast<std::size_t>(config_.runs[r - 1]); };
    std::map<TokenIndex, int> moved;
    std::set<TokenIndex> left;
    std::vector<TokenIndex> passed;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      runs[r].insert(runs[r].end(), passed.begin(), passed.end());
      for (const TokenIndex token : passed) moved[token] = static_cast<int>(r);
      passed.clear();
      const std::size_t excess = runs[r].size() - std::min(runs[r].size(), capacity(r));
      for (std::size_t i = 0; i < excess; ++i) {
        // Every other one goes on.
        if (r + 1 < runs.size() && i % 2 == 0) {
          passed.push_back(runs[r][i]);
        } else {
          left.insert(runs[r][i]);
          moved.erase(runs[r][i]);
        }
      }
    }
    for (const TokenIndex token : twin.tokens) {
      if (left.contains(token)) {
        plan.add_drop({token, token + 1});
      } else {
        kept.push_back(token);
      }
    }
    for (const auto& [token, run] : moved) {
      plan.moves.push_back({token, run});
      twin.run[token] = run;
    }
  }

  void fork(const EncodedTwin& twin) {
    if (twins_.size() >= 3) return;
    auto copy = cache_->fork(twin.real);
    ASSERT_TRUE(copy.ok());
    ++counts["forks"];
    twins_.push_back(std::make_unique<EncodedTwin>(EncodedTwin{std::move(*copy), twin.tokens, twin.next, twin.run}));
  }

  void save_and_restore(EncodedTwin& twin) {
    std::vector<std::byte> bytes;
    ByteWriter out(&bytes);
    PageTable& table = twin.real.only_table();
    table.save(out);
    KvSequence fresh = cache_->new_sequence(layout_);
    ByteReader in(bytes);
    ASSERT_TRUE(fresh.only_table().restore(in).ok());
    const std::vector<std::uint32_t> from = table.columns().in_order();
    const std::vector<std::uint32_t> to = fresh.only_table().columns().in_order();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t c = 0; c < from.size(); ++c)
      store_.copy(table.pages().of(from[c]), fresh.only_table().pages().of(to[c]));
    const TableColumns::Encodings a = table.columns().all_encodings(), b = fresh.only_table().columns().all_encodings();
    EXPECT_EQ(a.sum, b.sum);
    EXPECT_EQ(a.most, b.most);
    twin.real = std::move(fresh);
    ++counts["restores"];
  }

  void verify(const EncodedTwin& twin) {
    const PageTable& table = twin.real.only_table();
    ASSERT_EQ(test::retained_ids(table), twin.tokens);
    ASSERT_EQ(table.next_index(), twin.next);
    std::uint64_t encoded = 0, sum = 0;
    std::map<std::pair<std::uint32_t, int>, std::vector<std::byte>> opened;
    for (const test::LiveToken& token : test::live_tokens(table)) {
      const PageTable::Column& column = table.columns()[token.column];
      const int encodings = table.columns().encodings(token.column)[static_cast<std::size_t>(token.slot)];
      ASSERT_TRUE(!column.sealed || encodings >= 1);
      encoded += encodings > 0;
      sum += static_cast<std::uint64_t>(encodings);
      counts["most encodings"] = std::max(counts["most encodings"], encodings);
      const PageTable::Frame& frame = table.frames()[static_cast<std::size_t>(token.frame)];
      for (int lane = 0; lane < config_.lanes; ++lane) {
        std::vector<std::byte>& open = opened[{token.column, lane}];
        const std::byte* page = store_.data(table.pages().of(token.column)[static_cast<std::size_t>(lane)]);
        if (open.empty()) {
          open.resize(shape_.page.open().bytes());
          if (column.sealed) {
            decode_to_open(shape_.page, page, open.data());
          } else {
            std::memcpy(open.data(), page, open.size());
          }
        }
        const auto at = [&](std::size_t i) {
          std::uint16_t bits = 0;
          std::memcpy(&bits, open.data() + 2 * i, 2);
          return f16_to_f32(bits);
        };
        std::array<float, kDim> key, value;
        for (std::size_t d = 0; d < kDim; ++d) {
          const auto slots = static_cast<std::size_t>(config_.slots), slot = static_cast<std::size_t>(token.slot);
          key[d] = at(d * slots + slot);
          value[d] = at(kDim * slots + slot * kDim + d);
        }
        if (codec_.hadamard_keys) hadamard(key.data(), 1, kDim);
        if (codec_.hadamard_values) hadamard(value.data(), 1, kDim);
        const auto right = key_at(token.id, lane, table.tokens().stored_rotation(token.column, token.slot, frame));
        double key_error = 0, value_error = 0;
        for (std::size_t d = 0; d < kDim; ++d) {
          key_error += std::pow(key[d] - right[d], 2) / kDim;
          value_error += std::pow(value[d] - element(token.id, lane, static_cast<int>(d), true), 2) / kDim;
        }
        // A step's uniform rounding, for each encoding; strangers differ by 0.8.
        ASSERT_LE(std::sqrt(key_error), 0.002 + step(codec_.key) * std::sqrt(encodings)) << token.id;
        ASSERT_LE(std::sqrt(value_error), 0.002 + step(codec_.value) * std::sqrt(encodings)) << token.id;
      }
    }
    const TableColumns::Encodings all = table.columns().all_encodings();
    ASSERT_EQ(all.tokens, encoded);
    ASSERT_EQ(all.sum, sum);
  }

  static double step(KvType type) {
    switch (type) {
      case KvType::kQ8: return 0.012;
      case KvType::kQ4: return 0.12;
      case KvType::kQ4O: return 0.12;
      case KvType::kQ3: return 0.2;
      default: return type == KvType::kF16 ? 0.0 : 0.45;
    }
  }

  EncodedConfig config_;
  Random random_;
  KvCodec codec_;
  ThreadPool threads_{1};
  CpuPageStore store_;
  KvCacheShape shape_;
  SequenceLayout layout_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::unique_ptr<EncodedTwin>> twins_;
};

class EncodedTables : public ::testing::TestWithParam<EncodedConfig> {};

TEST_P(EncodedTables, KeepWhatWasWritten) {
  std::map<std::string, int> counts;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    EncodedWorld world(GetParam(), seed);
    for (int i = 0; i < 250; ++i) {
      SCOPED_TRACE(fmt::format("seed {} step {}", seed, i));
      ASSERT_NO_FATAL_FAILURE(world.step());
      ASSERT_NO_FATAL_FAILURE(world.verify());
      if (HasFailure()) return;
    }
    for (const auto& [name, count] : world.counts) counts[name] += count;
  }
  EXPECT_GT(counts["seals"], 10);
  EXPECT_GT(counts["prunes"], 50);
  EXPECT_GT(counts["forks"], 3);
  EXPECT_GT(counts["restores"], 3);
  const bool ranges = !GetParam().lists;
  EXPECT_GT(counts["sealed columns that stayed"], ranges ? 0 : 50);
  if (ranges && !GetParam().dense) {
    EXPECT_EQ(counts["prunes that encode again"], 0);
  } else if (GetParam().runs.empty()) {
    EXPECT_GT(counts["prunes that encode again"], 5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, EncodedTables,
    ::testing::Values(
        EncodedConfig{.name = "Compact16", .codec = "q8", .slots = 16, .lanes = 2},
        EncodedConfig{.name = "Compact32Dense", .codec = "k=q8,v=q4,rotate=off", .usual = 400, .dense = true},
        EncodedConfig{.name = "Compact32Recent", .codec = "q8,recent=40,rotate=kv", .usual = 200},
        EncodedConfig{.name = "Compact64", .codec = "q8,rotate=k", .slots = 64, .usual = 300, .dense = true},
        EncodedConfig{.name = "CompactValues", .codec = "k=f16,v=q3,rotate=off", .slots = 16},
        EncodedConfig{.name = "Original16", .codec = "q8", .slots = 16, .lanes = 2, .original = true},
        EncodedConfig{.name = "Original32", .codec = "q4o", .original = true, .usual = 300, .dense = true},
        EncodedConfig{.name = "Original64Recent", .codec = "q8,recent=70", .slots = 64, .original = true},
        EncodedConfig{.name = "Cascade", .codec = "q8", .slots = 16, .runs = {40, 40}},
        EncodedConfig{.name = "Streaming", .codec = "q8", .lanes = 2, .lists = false, .usual = 70},
        EncodedConfig{.name = "StreamingRotated", .codec = "q8", .slots = 16, .lists = false, .dense = true},
        EncodedConfig{.name = "StreamingOfTwoBits", .codec = "q2,recent=20,rotate=kv", .lists = false}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace kvasir
