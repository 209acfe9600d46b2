// Drives policies that may drop any token, without a model: keeps the tables, hands over masses, applies plans, and
// checks that every plan can be applied.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "retention/query_accumulator.h"
#include "retention/registry.h"

namespace kvasir::test {

// The reduced mass that token `query` puts on token `key` in a table. Need not sum to one.
using MassSource = std::function<double(int table, TokenIndex query, TokenIndex key)>;

// A number in [0, 1) that depends on all arguments; one of `levels` values if that is not 0, so that ties happen.
inline double hashed(std::uint64_t seed, std::uint64_t table, std::uint64_t query, std::uint64_t key, int levels = 0) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + table * 0xBF58476D1CE4E5B9u + query * 0x94D049BB133111EBu + key;
  for (int i = 0; i < 3; ++i) x = (x ^ (x >> 29)) * 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  if (levels > 0) return static_cast<double>(x % static_cast<std::uint64_t>(levels)) / levels;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

inline MassSource random_mass(std::uint64_t seed, int levels = 0) {
  return [=](int table, TokenIndex query, TokenIndex key) {
    return hashed(seed, static_cast<std::uint64_t>(table), static_cast<std::uint64_t>(query),
                  static_cast<std::uint64_t>(key), levels);
  };
}

// A few keys draw most of the mass, whatever the query: what attention looks like.
inline MassSource skewed_mass(std::uint64_t seed) {
  return [=](int table, TokenIndex query, TokenIndex key) {
    const double weight = hashed(seed, static_cast<std::uint64_t>(table), 7, static_cast<std::uint64_t>(key));
    const double noise = hashed(seed + 1, static_cast<std::uint64_t>(table), static_cast<std::uint64_t>(query),
                                static_cast<std::uint64_t>(key));
    return weight * weight * weight * weight * (0.5 + noise);
  };
}

inline std::unique_ptr<RetentionPolicy> policy_of_tables(const std::string& spec, const TableLayout& layout = {}) {
  auto policy = make_policy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  if (!policy.ok()) return nullptr;
  EXPECT_TRUE((*policy)->traits().compacts) << spec;
  (*policy)->begin(layout);
  return std::move(*policy);
}

// An element of the key that a token has in a table of one lane.
inline float key_element(int table, TokenIndex token, int i) {
  return static_cast<float>(
      hashed(99, static_cast<std::uint64_t>(table), static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(i)) -
      0.3);
}

// The same of the query of a head.
inline float query_element(int table, int head, TokenIndex token, int i) {
  return static_cast<float>(hashed(97 + static_cast<std::uint64_t>(head), static_cast<std::uint64_t>(table),
                                   static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(i)) -
                            0.4);
}

// The same for its value.
inline float value_element(int table, TokenIndex token, int i) {
  return static_cast<float>(
      hashed(98, static_cast<std::uint64_t>(table), static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(i)) -
      0.6);
}

// The same for the norm of what the output projection makes of its value.
inline double projected_norm(int table, TokenIndex token) {
  return 0.1 + hashed(96, static_cast<std::uint64_t>(table), static_cast<std::uint64_t>(token), 0);
}

// Keys and values of the tokens that a table of one lane holds, in blocks of seven.
class DrivenKv final : public HeldKv {
 public:
  DrivenKv(int table, int head_dim, std::vector<TokenIndex> tokens)
      : table_(table), head_dim_(head_dim), tokens_(std::move(tokens)) {}

  std::int64_t tokens() const override { return std::ssize(tokens_); }
  void visit(Sides sides, const Visit& visit) override {
    for (std::size_t first = 0; first < tokens_.size(); first += 7) {
      std::vector<float> keys, values;
      std::vector<std::int64_t> rotations;
      for (std::size_t i = first; i < std::min(first + 7, tokens_.size()); ++i) {
        rotations.push_back(tokens_[i]);
        for (int c = 0; c < head_dim_; ++c) {
          if (has_keys(sides)) keys.push_back(key_element(table_, tokens_[i], c));
          if (has_values(sides)) values.push_back(value_element(table_, tokens_[i], c));
        }
      }
      visit({static_cast<std::int64_t>(first),
             0,
             {1, static_cast<int>(rotations.size()), head_dim_, keys, values, rotations}});
    }
  }
  void projected_norms(std::span<double> norms) override {
    ASSERT_EQ(norms.size(), tokens_.size());
    std::ranges::transform(tokens_, norms.begin(), [&](TokenIndex token) { return projected_norm(table_, token); });
  }

 private:
  int table_;
  int head_dim_;
  std::vector<TokenIndex> tokens_;
};

class TableDriver {
 public:
  enum class Order { kAscending, kDescending, kThreads };

  struct Token {
    TokenIndex id = 0;
    int run = 0;
  };

  TableDriver(RetentionPolicy& policy, const TableLayout& layout, MassSource mass)
      : policy_(&policy),
        layout_(layout),
        mass_(std::move(mass)),
        tables_(static_cast<std::size_t>(layout.tables())),
        rows_shown_(tables_.size()) {}

  // The same state, driving a clone.
  TableDriver(const TableDriver& other, RetentionPolicy& clone) : TableDriver(other) { policy_ = &clone; }

  TokenIndex next_id() const { return next_; }
  std::vector<TokenIndex> held(int table = 0) const {
    std::vector<TokenIndex> ids;
    for (const Token& token : tables_[static_cast<std::size_t>(table)]) ids.push_back(token.id);
    return ids;
  }
  std::vector<TokenIndex> run(int which, int table = 0) const {
    std::vector<TokenIndex> ids;
    for (const Token& token : tables_[static_cast<std::size_t>(table)])
      if (token.run == which) ids.push_back(token.id);
    return ids;
  }
  std::int64_t most_seen() const { return most_seen_; }  // by a pass of one token
  std::int64_t moves() const { return moves_; }
  std::int64_t drops() const { return drops_; }                         // tokens dropped, in all tables
  std::uint64_t most_state_bytes() const { return most_state_bytes_; }  // that the policy had at any time looked at
  std::int64_t most_rows() const { return most_rows_; }
  void set_order(Order order) { order_ = order; }
  void show_all_rows() { show_all_rows_ = true; }                // those that the policy does not want too
  void show_from(TokenIndex first) { show_from_ = first; }       // rows before it are not shown
  void split_chunks(std::uint64_t seed) { split_seed_ = seed; }  // each is executed in several passes
  std::int64_t rows_shown() const { return std::accumulate(rows_shown_.begin(), rows_shown_.end(), std::int64_t{0}); }

  // A chunk; the policy's own, where it asks for shorter ones.
  void pass(int rows, bool prompt = false, std::int64_t prompt_left = 0) {
    while (rows > 0) {
      const int first = chunk_rows(*policy_, rows);
      ASSERT_TRUE(first >= 1 && first <= rows);
      rows -= first;
      repeat();
      if (::testing::Test::HasFatalFailure()) return;
      run_chunk({next_, first, prompt, prompt_left + rows});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  // A prompt of `tokens` tokens in chunks.
  void prompt(std::int64_t tokens, int chunk) {
    while (tokens > 0) {
      const int rows = static_cast<int>(std::min<std::int64_t>(tokens, chunk));
      tokens -= rows;
      pass(rows, true, tokens);
    }
  }

  void generate(std::int64_t tokens) {
    for (std::int64_t i = 0; i < tokens; ++i) pass(1);
  }

 private:
  // Repeats the parts of the text that the policy names, on clones.
  void repeat() {
    RepeatsText* repeats = policy_->as<RepeatsText>();
    if (repeats == nullptr || repeats->next_part().tokens.empty()) return;
    while (!repeats->next_part().tokens.empty()) {
      const RepeatsText::Part part = repeats->next_part();
      const std::unique_ptr<RetentionPolicy> clone = policy_->clone();
      clone->as<RepeatsText>()->observe_part();
      TableDriver driver(*this, *clone);
      driver.pass(static_cast<int>(part.lead.size() + part.tokens.size()), true);
      if (::testing::Test::HasFatalFailure()) return;
      repeats->end_part(*clone);
    }
    for (int t = 0; t < layout_.tables(); ++t) {
      KeepPlan plan;
      repeats->evict(t, plan);
      apply(plan, tables_[static_cast<std::size_t>(t)]);
    }
    check_state();
    check_agreement();
  }

  void run_chunk(const PolicyChunk& chunk) {
    ASSERT_EQ(policy_->seen(), chunk.first);
    if (RepeatsText* repeats = policy_->as<RepeatsText>())
      repeats->take_text(std::vector<TokenId>(static_cast<std::size_t>(chunk.rows), 5));
    hidden_.assign(static_cast<std::size_t>(chunk.rows), {-1, -1});
    find_hidden(*policy_, chunk, hidden_);
    for (const IndexRange& hidden : hidden_)
      if (policy_->traits().compacts) {
        ASSERT_EQ(hidden, IndexRange{});
      }
    for (auto& table : tables_) {
      for (int r = 0; r < chunk.rows; ++r) table.push_back({next_ + r, 0});
      if (chunk.rows == 1) most_seen_ = std::max(most_seen_, static_cast<std::int64_t>(table.size()));
    }
    next_ += chunk.rows;
    most_rows_ = std::max<std::int64_t>(most_rows_, chunk.rows);
    for (int row = 0; split_seed_ != 0 && row < chunk.rows;) {
      const auto draw =
          hashed(split_seed_, 1, static_cast<std::uint64_t>(chunk.first), static_cast<std::uint64_t>(row));
      const int end = row + 1 + static_cast<int>(draw * (chunk.rows - row));
      for_each_table([&](int t) { observe(chunk, t, row, end); });
      check_state();
      row = end;
    }
    std::vector<KeepPlan> plans(tables_.size());
    for_each_table([&](int t) {
      if (split_seed_ == 0) observe(chunk, t, 0, chunk.rows);
      show_queries(chunk, t);
      show_keys(chunk, t);
      show_held(chunk, t);
      policy_->end_chunk(chunk, t, plans[static_cast<std::size_t>(t)]);
    });
    for (std::size_t t = 0; t < tables_.size(); ++t) apply(plans[t], tables_[t]);
    for (KeepPlan& plan : plans) plan.clear();
    for (int t = 0; t < layout_.tables(); ++t) policy_->finish_chunk(chunk, t, plans[static_cast<std::size_t>(t)]);
    for (std::size_t t = 0; t < tables_.size(); ++t) apply(plans[t], tables_[t]);
    check_state();
    check_agreement();
  }

  // Rows [begin, end) of the chunk have run.
  void observe(const PolicyChunk& chunk, int t, int begin, int end) {
    const std::size_t reductions = reductions_of(*policy_).size();
    if (reductions == 0) return;
    const std::vector<Token>& table = tables_[static_cast<std::size_t>(t)];
    const std::size_t before = table.size() - static_cast<std::size_t>(chunk.rows);
    std::vector<double> mass;
    for (int row = begin; row < end; ++row) {
      if (chunk.first + row < show_from_ || (!show_all_rows_ && !wants_row(*policy_, chunk, row))) continue;
      ++rows_shown_[static_cast<std::size_t>(t)];
      mass.clear();
      for (std::size_t i = 0; i <= before + static_cast<std::size_t>(row); ++i)
        mass.push_back(mass_(t, chunk.first + row, table[i].id));
      const std::vector<std::span<const double>> masses(reductions, mass);  // one source for all reductions
      policy_->as<ObservesMasses>()->observe(chunk, t, row, masses);
    }
  }

  void show_keys(const PolicyChunk& chunk, int t) {
    ReadsKv* reader = policy_->as<ReadsKv>();
    if (reader == nullptr) return;
    std::vector<float> keys, values;
    std::vector<std::int64_t> rotations;
    for (TokenIndex token = chunk.first; token < chunk.end(); ++token) {
      rotations.push_back(token);
      for (int i = 0; i < layout_.head_dim; ++i) {
        if (reader->wants_keys()) keys.push_back(key_element(t, token, i));
        if (reader->wants_values()) values.push_back(value_element(t, token, i));
      }
    }
    ASSERT_TRUE(layout_.lanes == 1 && layout_.head_dim > 0);
    reader->read_kv(chunk, t, {1, chunk.rows, layout_.head_dim, keys, values, rotations});
  }

  void show_queries(const PolicyChunk& chunk, int t) {
    SumsQueries* reader = policy_->as<SumsQueries>();
    if (reader == nullptr) return;
    std::int64_t rows = 0;
    for (int row = 0; row < chunk.rows; ++row) rows += reader->wants_queries(chunk, row);
    QueryAccumulator sums;
    sums.begin(layout_.heads, layout_.head_dim, rows);
    for (int row = 0; row < chunk.rows; ++row) {
      if (!reader->wants_queries(chunk, row)) continue;
      for (int head = 0; head < layout_.heads; ++head) {
        std::vector<float> query;
        for (int i = 0; i < layout_.head_dim; ++i) query.push_back(query_element(t, head, chunk.first + row, i));
        sums.add(head, query);
      }
    }
    if (rows > 0) reader->read_queries(chunk, t, sums.of(0, layout_.heads));
  }

  void show_held(const PolicyChunk& chunk, int t) {
    ReadsHeldKv* reader = policy_->as<ReadsHeldKv>();
    if (reader == nullptr || !reader->wants_held(chunk, t)) return;
    ASSERT_EQ(layout_.lanes, 1);
    DrivenKv kv(t, layout_.head_dim, held(t));
    reader->read_held(chunk, t, kv);
  }

  void check_state() {
    const std::uint64_t bytes = policy_->state_bytes();
    most_state_bytes_ = std::max(most_state_bytes_, bytes);
    ASSERT_LE(bytes, policy_->most_state_bytes(layout_, next_, static_cast<int>(most_rows_))) << next_;
  }

  // What the policy believes that the tables hold is what they hold.
  void check_agreement() const {
    ASSERT_EQ(policy_->seen(), next_);
    std::vector<IndexRange> ranges;
    for (int t = 0; t < layout_.tables(); ++t)
      for (std::size_t r = 0; r <= policy_->traits().run_capacities.size(); ++r) {
        ranges.clear();
        policy_->retained(t, static_cast<int>(r), ranges);
        ASSERT_EQ(ranges, ranges_of(run(static_cast<int>(r), t))) << "table " << t << " run " << r;
      }
  }

 public:
  static std::vector<IndexRange> ranges_of(const std::vector<TokenIndex>& tokens) {
    std::vector<IndexRange> ranges;
    for (const TokenIndex token : tokens)
      if (!ranges.empty() && ranges.back().end == token)
        ++ranges.back().end;
      else
        ranges.push_back({token, token + 1});
    return ranges;
  }

 private:
  template <class Task>
  void for_each_table(Task task) {
    const int count = layout_.tables();
    if (order_ == Order::kThreads) {
      std::vector<std::thread> threads;
      for (int t = 0; t < count; ++t) threads.emplace_back([&, t] { task(t); });
      for (std::thread& thread : threads) thread.join();
      return;
    }
    for (int i = 0; i < count; ++i) task(order_ == Order::kAscending ? i : count - 1 - i);
  }

  void apply(const KeepPlan& plan, std::vector<Token>& table) {
    const auto place = [&](TokenIndex id) {
      return std::find_if(table.begin(), table.end(), [&](const Token& token) { return token.id == id; });
    };
    for (std::size_t i = 0; i < plan.drop.size(); ++i) {
      if (i > 0) {
        ASSERT_LT(plan.drop[i - 1].end, plan.drop[i].begin);
      }
      ASSERT_FALSE(plan.drop[i].empty());
      for (TokenIndex token = plan.drop[i].begin; token < plan.drop[i].end; ++token) {
        ASSERT_NE(place(token), table.end()) << token;
        table.erase(place(token));
        ++drops_;
      }
    }
    const std::vector<std::int64_t> capacities = policy_->traits().run_capacities;
    for (std::size_t i = 0; i < plan.moves.size(); ++i) {
      const KeepPlan::Move& move = plan.moves[i];
      if (i > 0) {
        ASSERT_LT(plan.moves[i - 1].index, move.index);
      }
      ASSERT_NE(place(move.index), table.end()) << move.index;
      ASSERT_GE(move.run, 1);
      ASSERT_LE(static_cast<std::size_t>(move.run), capacities.size());
      ASSERT_LT(place(move.index)->run, move.run);
      place(move.index)->run = move.run;
      ++moves_;
    }
    // Each run is older than the one before it, but for the tokens that never leave run 0.
    std::vector<std::int64_t> held(capacities.size() + 1);
    int oldest_run = static_cast<int>(capacities.size());
    for (const Token& token : table) {
      ++held[static_cast<std::size_t>(token.run)];
      if (token.run == 0) continue;
      ASSERT_LE(token.run, oldest_run);
      oldest_run = token.run;
    }
    for (std::size_t run = 0; run < capacities.size(); ++run) ASSERT_LE(held[run + 1], capacities[run]);
  }

  RetentionPolicy* policy_;
  TableLayout layout_;
  MassSource mass_;
  std::vector<std::vector<Token>> tables_;
  TokenIndex next_ = 0;
  std::int64_t most_seen_ = 0;
  std::int64_t moves_ = 0;
  std::vector<std::int64_t> rows_shown_;  // by table
  Order order_ = Order::kAscending;
  bool show_all_rows_ = false;
  TokenIndex show_from_ = 0;
  std::uint64_t split_seed_ = 0;  // 0: a chunk is one pass
  std::int64_t drops_ = 0;
  std::uint64_t most_state_bytes_ = 0;
  std::int64_t most_rows_ = 1;
  std::vector<IndexRange> hidden_;
};

// One step of a schedule, and some that mix single steps, chunks of all sizes and prompts.
struct PassShape {
  int rows = 1;
  bool prompt = false;
  std::int64_t prompt_left = 0;
};

inline std::vector<PassShape> one_at_a_time(int tokens) {
  return std::vector<PassShape>(static_cast<std::size_t>(tokens));
}

inline void add_prompt(std::vector<PassShape>& schedule, int tokens, int chunk) {
  while (tokens > 0) {
    const int rows = std::min(tokens, chunk);
    tokens -= rows;
    schedule.push_back({rows, true, tokens});
  }
}

// Prompt, answer, prompt, answer, …
inline std::vector<PassShape> conversation(std::vector<int> lengths, int chunk) {
  std::vector<PassShape> schedule;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (i % 2 == 0)
      add_prompt(schedule, lengths[i], chunk);
    else
      for (int k = 0; k < lengths[i]; ++k) schedule.push_back({});
  }
  return schedule;
}

// A prompt that ended in the middle of its window of last queries, given up halfway, and what came instead.
inline std::vector<PassShape> given_up(int chunk) {
  std::vector<PassShape> schedule = conversation({50, 10, 60}, chunk);
  while (schedule.back().prompt_left < 2) schedule.pop_back();
  add_prompt(schedule, 32, chunk);
  for (int k = 0; k < 5; ++k) schedule.push_back({});
  return schedule;
}

inline std::vector<std::vector<PassShape>> schedules() {
  return {given_up(1),
          given_up(7),
          one_at_a_time(160),
          conversation({90, 40, 1, 15, 33, 20}, 1),
          conversation({97, 30, 7, 15, 40, 9}, 16),
          conversation({150, 30}, 256),
          conversation({10, 60, 10, 60}, 7)};
}

// The same passes through a policy and through its definition as the test reads it: `naive(table)` makes an object with
// pass(first, shape, mass) and the member `kept`.
template <class MakeNaive>
void compare_with(const std::string& spec, const MassSource& mass, const std::vector<PassShape>& schedule,
                  MakeNaive naive, const TableLayout& layout = {}) {
  SCOPED_TRACE(spec);
  const auto policy = policy_of_tables(spec, layout);
  ASSERT_NE(policy, nullptr);
  TableDriver driver(*policy, layout, mass);
  using Naive = decltype(naive(0));
  std::vector<Naive> expected;
  for (int t = 0; t < layout.tables(); ++t) expected.push_back(naive(t));
  TokenIndex first = 0;
  for (const PassShape& shape : schedule) {
    driver.pass(shape.rows, shape.prompt, shape.prompt_left);
    if (::testing::Test::HasFatalFailure()) return;
    for (int t = 0; t < layout.tables(); ++t) {
      auto& table = expected[static_cast<std::size_t>(t)];
      table.pass(first, shape, [&](TokenIndex query, TokenIndex key) { return mass(t, query, key); });
      ASSERT_EQ(driver.held(t), table.kept) << "after token " << first + shape.rows - 1 << ", table " << t;
    }
    first += shape.rows;
  }
}

using TableMass = std::function<double(TokenIndex query, TokenIndex key)>;

}  // namespace kvasir::test
