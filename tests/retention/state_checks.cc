#include "retention/state_checks.h"

#include <random>

namespace kvasir::test {
namespace {

std::vector<std::vector<TokenIndex>> all_held(const TableDriver& driver, const TableLayout& layout) {
  std::vector<std::vector<TokenIndex>> held;
  for (int t = 0; t < layout.tables(); ++t) held.push_back(driver.held(t));
  return held;
}

// Ends with a prompt, so that those that act at the end of prompts alone still do so behind any place of it.
std::vector<PassShape> stream() {
  return conversation({60, 24, 30, 24, 20, 24, 40}, 9);
}

bool wants_queries(const RetentionPolicy& policy, const PolicyChunk& chunk, int row) {
  return policy.as<SumsQueries>() != nullptr && policy.as<SumsQueries>()->wants_queries(chunk, row);
}

void pass(TableDriver& driver, const PassShape& shape) {
  driver.pass(shape.rows, shape.prompt, shape.prompt_left);
}

}  // namespace

BegunPolicy::BegunPolicy(const std::string& spec) {
  auto made = make_policy(spec);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return;
  policy = std::move(*made);
  if (policy->traits().compacts || policy->as<ObservesMasses>() != nullptr)
    layout = {.layers = 3, .per_layer = 2, .heads = 2, .head_dim = 4};
  policy->begin(layout);
}

std::vector<std::byte> saved_state(const RetentionPolicy& policy) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  policy.save(out);
  return bytes;
}

void check_restored(const std::string& spec) {
  SCOPED_TRACE(spec);
  const std::vector<PassShape> schedule = stream();
  BegunPolicy original(spec);
  TableDriver driver(*original.policy, original.layout, skewed_mass(5));
  for (std::size_t at = 0; at < schedule.size(); ++at) {
    SCOPED_TRACE(testing::Message() << "restored before chunk " << at << " of " << schedule.size());
    const std::vector<std::byte> bytes = saved_state(*original.policy);
    BegunPolicy again(spec);
    ByteReader in(bytes);
    const Status status = again.policy->restore(in);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(in.left(), 0u);
    EXPECT_EQ(saved_state(*again.policy), bytes);
    const auto clone = original.policy->clone();
    TableDriver expected(driver, *clone), restored(driver, *again.policy);
    for (std::size_t later = at; later < schedule.size(); ++later) {
      pass(expected, schedule[later]);
      pass(restored, schedule[later]);
      ASSERT_EQ(all_held(restored, again.layout), all_held(expected, again.layout)) << "chunk " << later;
      ASSERT_EQ(restored.moves(), expected.moves());
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(saved_state(*again.policy), saved_state(*clone));
    // A text is repeated before the chunk behind its prompt, and the last prompt ends the schedule.
    const std::size_t sixteenths = original.policy->as<RepeatsText>() != nullptr ? 8 : 15;
    if (spec.find("full") != 0 && original.policy->as<LeavesUnread>() == nullptr &&
        at * 16 <= sixteenths * schedule.size()) {
      EXPECT_GT(restored.drops(), driver.drops()) << "nothing was dropped behind this place";
    }
    pass(driver, schedule[at]);
  }
}

void check_damaged(const std::string& spec) {
  SCOPED_TRACE(spec);
  const std::vector<PassShape> schedule = stream();
  BegunPolicy original(spec);
  TableDriver driver(*original.policy, original.layout, skewed_mass(5));
  std::mt19937_64 random(7);
  for (std::size_t at = 0; at < schedule.size(); ++at) {
    pass(driver, schedule[at]);
    if (at % 23 != 5) continue;
    const std::vector<std::byte> sound = saved_state(*original.policy);
    int refused = 0;
    for (int round = 0; round < 120; ++round) {
      std::vector<std::byte> bytes = sound;
      const std::size_t place = random() % bytes.size();
      switch (random() % 5) {
        case 0: bytes.resize(place); break;
        case 1: bytes[place] ^= static_cast<std::byte>(1u << random() % 8); break;
        case 2: bytes[place] = static_cast<std::byte>(random() % 2 == 0 ? 0xFF : random()); break;
        case 3: bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(place)); break;
        default:
          for (std::size_t i = place; i < std::min(place + 8, bytes.size()); ++i)
            bytes[i] = static_cast<std::byte>(random() % 3 == 0 ? random() : 0xFF);
      }
      BegunPolicy damaged(spec);
      ByteReader in(bytes);
      const Status status = damaged.policy->restore(in);
      const auto tokens = static_cast<std::int64_t>(bytes.size() / sizeof(TokenIndex));
      ASSERT_LE(damaged.policy->state_bytes(), damaged.policy->most_state_bytes(damaged.layout, tokens, 1));
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kDataLoss);
        ++refused;
        continue;
      }
      // What the engine does: a state that does not agree with the page tables is refused as well.
      bool agrees = damaged.policy->seen() == driver.next_id();
      for (int t = 0; t < damaged.layout.tables(); ++t)
        for (std::size_t run = 0; run <= damaged.policy->traits().run_capacities.size(); ++run) {
          std::vector<IndexRange> ranges;
          damaged.policy->retained(t, static_cast<int>(run), ranges);
          agrees = agrees && ranges == TableDriver::ranges_of(driver.run(static_cast<int>(run), t));
        }
      if (!agrees) continue;
      // Other scores, maybe: other tokens are dropped, but every plan can be applied.
      TableDriver on(driver, *damaged.policy);
      for (std::size_t later = at + 1; later < std::min(at + 40, schedule.size()); ++later) pass(on, schedule[later]);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(refused, 20);
  }
  // The state of another policy, and of another layout.
  const std::vector<std::byte> sound = saved_state(*original.policy);
  const BegunPolicy other(spec == "full" ? "window" : "full");
  ByteReader in(sound);
  EXPECT_EQ(other.policy->restore(in).code(), StatusCode::kDataLoss);
  if (original.layout.tables() > 1) {
    const BegunPolicy smaller(spec);
    smaller.policy->begin({.layers = 2, .per_layer = 2, .heads = 2});
    ByteReader again(sound);
    EXPECT_EQ(smaller.policy->restore(again).code(), StatusCode::kDataLoss);
  }
}

void check_splits(const std::string& spec) {
  SCOPED_TRACE(spec);
  const BegunPolicy whole(spec);
  TableDriver expected(*whole.policy, whole.layout, skewed_mass(5));
  std::vector<std::unique_ptr<BegunPolicy>> policies;
  std::vector<TableDriver> drivers;
  for (int i = 0; i < 4; ++i) {
    policies.push_back(std::make_unique<BegunPolicy>(spec));
    drivers.emplace_back(*policies.back()->policy, whole.layout, skewed_mass(5));
    drivers.back().split_chunks(1 + static_cast<std::uint64_t>(i));
    if (i % 2 == 1) drivers.back().set_order(TableDriver::Order::kDescending);
  }
  for (const PassShape& shape : conversation({60, 20, 5, 20, 50, 10}, 17)) {
    pass(expected, shape);
    for (TableDriver& driver : drivers) {
      pass(driver, shape);
      ASSERT_EQ(all_held(driver, whole.layout), all_held(expected, whole.layout));
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  for (const auto& policy : policies) EXPECT_EQ(saved_state(*policy->policy), saved_state(*whole.policy));
}

void check_exact_prefix(const std::string& spec) {
  SCOPED_TRACE(spec);
  EXPECT_EQ(BegunPolicy(spec).policy->exact_prefix(0), 0);
  for (const int n : {1, 2, 5, 8, 20, 26, 40, 61, 100}) {
    SCOPED_TRACE(n);
    std::int64_t exact = -1;
    for (const int chunk : {1, 7, 200}) {
      // A cold run: the first row that is wanted or does not see everything, and the tokens read when the first is
      // dropped.
      const BegunPolicy cold(spec);
      TableDriver driver(*cold.policy, cold.layout, skewed_mass(5));
      const std::int64_t claimed = cold.policy->exact_prefix(n);
      const bool shown = cold.policy->as<ReadsKv>() != nullptr || cold.policy->as<RepeatsText>() != nullptr;
      std::int64_t most = shown ? 0 : n;  // every token is to be shown to it
      for (int left = n; left > 0;) {
        PolicyChunk now{n - left, chunk_rows(*cold.policy, std::min(left, chunk)), true, 0};
        left -= now.rows;
        now.prompt_left = left;
        std::vector<IndexRange> hidden(static_cast<std::size_t>(now.rows));
        find_hidden(*cold.policy, now, hidden);
        for (int row = now.rows - 1; row >= 0; --row)
          if (wants_row(*cold.policy, now, row) || wants_queries(*cold.policy, now, row) ||
              !hidden[static_cast<std::size_t>(row)].empty())
            most = std::min<std::int64_t>(most, now.first + row);
        const std::int64_t drops = driver.drops();
        driver.pass(now.rows, true, left);
        if (testing::Test::HasFatalFailure()) return;
        if (driver.drops() > drops) most = std::min<std::int64_t>(most, now.end() - 1);
      }
      if (chunk == 1) {
        exact = most;
        EXPECT_EQ(claimed, exact);
      } else {
        EXPECT_LE(claimed, most) << "it holds for every size of chunks";
      }

      // A warm run, to which nothing before that token was shown, ends as the cold one.
      const BegunPolicy warm(spec);
      TableDriver from(*warm.policy, warm.layout, skewed_mass(5));
      from.show_from(claimed);
      from.prompt(n, chunk);
      for (TableDriver* each : {&driver, &from}) {
        each->generate(40);
        each->prompt(15, chunk);
      }
      ASSERT_EQ(all_held(from, warm.layout), all_held(driver, warm.layout));
    }
  }
}

void check_state(const std::string& spec) {
  check_restored(spec);
  check_damaged(spec);
  check_splits(spec);
  check_exact_prefix(spec);
}

}  // namespace kvasir::test
