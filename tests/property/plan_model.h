// The naive side of tests of keep plans: lists of tokens, what was written for each, and random plans for them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kv/page_table.h"
#include "kv/table.h"

namespace kvasir::test {

struct Token {
  TokenIndex id = 0;
  std::uint32_t tag = 0;  // names the write of its key and value
  int run = 0;
};

// What is expected of one table.
struct PlanModel {
  std::vector<Token> tokens;  // retained, by id
  TokenIndex next = 0;
  TokenIndex planned = 0;  // tokens from here on have not been through a plan
  bool original = false;
  int most_columns = 0;  // there ever were
};

inline constexpr int kHeadDim = 6;
inline constexpr int kPairs = kHeadDim / 2;

// Keys and values that no other write has. Keys turn as they do in a model, in double.
class Content {
 public:
  struct Turn {
    double cosine = 1;
    double sine = 0;
  };
  using Turns = std::array<Turn, kPairs>;

  // Dimension d of what a write put into a lane, in [-1, 1).
  static float element(std::uint32_t tag, int lane, int d, bool value) {
    std::uint64_t x = tag * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(lane * 64 + d * 2 + (value ? 1 : 0));
    for (int i = 0; i < 2; ++i) x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
    return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
  }

  // The slowest still turns by far more than any rounding for one position.
  static constexpr std::array<double, kPairs> kFrequencies = {1.0, 0.21, 0.043};

  const Turns& turns(Position position) {
    const auto [at, added] = turns_.try_emplace(position);
    for (std::size_t i = 0; added && i < kPairs; ++i) {
      const double angle = static_cast<double>(position) * kFrequencies[i];
      at->second[i] = {std::cos(angle), std::sin(angle)};
    }
    return at->second;
  }

  // A write's key in a lane, rotated to a position.
  std::array<double, kHeadDim> key_at(std::uint32_t tag, int lane, Position position) {
    std::array<double, kHeadDim> key;
    const Turns& turns = this->turns(position);
    for (std::size_t i = 0; i < kPairs; ++i) {
      const double a = double{element(tag, lane, static_cast<int>(2 * i), false)};
      const double b = double{element(tag, lane, static_cast<int>(2 * i + 1), false)};
      key[2 * i] = a * turns[i].cosine - b * turns[i].sine;
      key[2 * i + 1] = a * turns[i].sine + b * turns[i].cosine;
    }
    return key;
  }

 private:
  std::map<Position, Turns> turns_;
};

// What a single run's columns would be if some tokens were masked, and whether that asks for compaction.
struct MaskedColumns {
  struct Part {
    std::uint32_t column = 0;
    Position base = 0;
    int used = 0;
    SlotMask live = 0;
  };
  std::vector<Part> parts;

  MaskedColumns(const PageTable& table, const std::vector<TokenIndex>& drop) {
    for (const std::uint32_t c : columns_of(table)) {
      const PageTable::Column& column = table.columns()[c];
      Part part{c, column.base, column.used, 0};
      for (int s = 0; s < column.used; ++s)
        if ((column.live >> s & 1) != 0 && !std::ranges::binary_search(drop, table.columns().index(c, s)))
          part.live |= SlotMask{1} << s;
      if (part.live != 0) parts.push_back(part);
    }
    // The newest column's dead end is free again.
    if (!parts.empty()) parts.back().used = static_cast<int>(std::bit_width(parts.back().live));
  }

  std::int64_t written() const {
    std::int64_t sum = 0;
    for (const Part& part : parts) sum += part.used;
    return sum;
  }
  std::int64_t dead() const {
    std::int64_t sum = written();
    for (const Part& part : parts) sum -= std::popcount(part.live);
    return sum;
  }
  // Why the table has to be compacted; empty if it need not.
  std::string due(bool original) const {
    if (dead() * 4 > written()) return "dead";
    if (original) return "";
    std::int64_t entries = 0, frames = 0;
    int most = 0;
    Position position = 0, origin = 0;
    for (const Part& part : parts) {
      int own = 0;
      for (int s = 0; s < part.used; ++s) {
        if ((part.live >> s & 1) == 0) continue;
        if (s == 0 || (part.live >> (s - 1) & 1) == 0) ++own;
        if (frames == 0 || position - (part.base + s) != origin) ++frames;
        origin = position - (part.base + s);
        ++position;
      }
      entries += own;
      most = std::max(most, own);
    }
    if (frames > PageTableLayout::kMaxFrames) return "frames";
    if (most > PageTableLayout::kMaxColumnEntries) return "column entries";
    return entries > 2 * static_cast<std::int64_t>(parts.size()) ? "entries" : "";
  }

  // The columns into which compaction writes: those where some slot comes to hold another key or value. `to_original`:
  // the positions that keys have afterwards.
  std::set<std::uint32_t> written_by_compaction(const PageTable& table, int slots, bool to_original) const {
    std::set<std::uint32_t> written;
    std::size_t at = 0;  // of the tokens that stay
    Position offset = 0;
    for (const Part& part : parts)
      for (int s = 0; s < part.used; ++s) {
        if ((part.live >> s & 1) == 0) continue;
        const Position before = table.tokens().original ? table.columns().index(part.column, s) : part.base + s;
        if (at == 0) offset = before;
        const Position after = to_original ? before : offset + static_cast<Position>(at);
        const std::uint32_t to = parts[at / static_cast<std::size_t>(slots)].column;
        const int to_slot = static_cast<int>(at % static_cast<std::size_t>(slots));
        if (to != part.column || to_slot != s || after != before) written.insert(to);
        ++at;
      }
    return written;
  }
};

class RandomPlans {
 public:
  explicit RandomPlans(std::uint64_t seed) : random_(seed) {}

  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(0, 99) < percent; }

  // What stays of a table with one run; mostly `usual` tokens, chosen at random, if that is not 0.
  std::vector<Token> subset(const PlanModel& model, int slots, int usual) {
    const std::vector<Token>& all = model.tokens;
    const auto n = static_cast<int>(all.size());
    if (n == 0) return {};
    std::vector<bool> drop(all.size());
    const auto drop_range = [&](int begin, int end) {
      for (int i = std::max(begin, 0); i < std::min(end, n); ++i) drop[static_cast<std::size_t>(i)] = true;
    };
    const auto drop_down_to = [&](int budget) {
      for (int left = n; left > budget; --left) {
        int i = draw(0, n - 1);
        while (drop[static_cast<std::size_t>(i)]) i = (i + 1) % n;
        drop[static_cast<std::size_t>(i)] = true;
      }
    };
    switch (usual > 0 && chance(98) ? 9 : draw(0, 8)) {
      case 0: {
        const int percent = std::array{2, 10, 30, 70, 97}[static_cast<std::size_t>(draw(0, 4))];
        for (std::size_t i = 0; i < drop.size(); ++i) drop[i] = chance(percent);
        break;
      }
      case 1: {
        const int begin = draw(0, n - 1);
        drop_range(begin, begin + draw(1, 2 * slots));
        break;
      }
      case 2: drop_range(n - draw(1, 5), n); break;  // the newest
      case 3: {                                      // behind sinks
        const int end = draw(0, n);
        drop_range(draw(0, 4), end);
        break;
      }
      case 4: drop_range(0, chance(30) ? n : 1); break;
      case 5: {
        const int every = draw(5, 40);
        for (int i = draw(0, every); i < n; i += every) drop[static_cast<std::size_t>(i)] = true;
        break;
      }
      case 6: drop_down_to(draw(1, 3 * slots)); break;
      case 7: break;  // nothing
      case 8: drop_down_to(n - 1); break;
      case 9: drop_down_to(usual); break;
    }
    std::vector<Token> kept;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (!drop[i]) kept.push_back(all[i]);
    return kept;
  }

  // What stays, and in which run, of a table with a run for each of `capacities`: tokens that came since the last plan
  // go down a cascade that accepts, replaces and drops at random.
  std::vector<Token> cascade(const PlanModel& model, const std::vector<std::int64_t>& capacities, std::int64_t sinks) {
    std::vector<std::vector<Token>> runs(capacities.size());
    std::vector<Token> kept, fresh;
    for (const Token& token : model.tokens) {
      if (token.id < sinks)
        kept.push_back(token);
      else if (token.id >= model.planned)
        fresh.push_back(token);
      else
        runs[static_cast<std::size_t>(token.run)].push_back(token);
    }
    for (const Token& token : fresh) offer(token, runs, capacities);
    // Losses that no cascade has: of the oldest or the newest of a run, or of all of it; of sinks.
    if (chance(15)) {
      std::vector<Token>& run = runs[static_cast<std::size_t>(draw(0, static_cast<int>(runs.size()) - 1))];
      const auto count = static_cast<int>(run.size());
      const int gone = chance(20) ? count : std::min(count, draw(0, 3));
      if (chance(50))
        run.erase(run.begin(), run.begin() + gone);
      else
        run.resize(run.size() - static_cast<std::size_t>(gone));
    }
    if (chance(1) && !kept.empty()) kept.pop_back();
    for (std::size_t i = runs.size(); i-- > 0;)
      for (Token token : runs[i]) {
        token.run = static_cast<int>(i);
        kept.push_back(token);
      }
    return kept;
  }

 private:
  void offer(Token token, std::vector<std::vector<Token>>& runs, const std::vector<std::int64_t>& capacities) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      std::vector<Token>& run = runs[i];
      const bool accepts = i == 0 || chance(60);
      if (run.empty() || (accepts && static_cast<std::int64_t>(run.size()) < capacities[i])) {
        run.push_back(token);
        return;
      }
      if (!accepts) {
        if (chance(50)) run.back() = token;
        return;
      }
      run.push_back(token);
      token = run.front();
      run.erase(run.begin());
    }
  }

  std::mt19937_64 random_;
};

}  // namespace kvasir::test
