#include "retention/scored_checks.h"

#include "retention/state_checks.h"

namespace kvasir::test {
namespace {

const TableLayout kLayout{.layers = 3, .per_layer = 2, .heads = 2, .head_dim = 4};

std::vector<std::vector<TokenIndex>> all_held(const TableDriver& driver) {
  std::vector<std::vector<TokenIndex>> held;
  for (int t = 0; t < kLayout.tables(); ++t) held.push_back(driver.held(t));
  return held;
}

void check_clones(const std::string& spec) {
  const auto schedule = conversation({60, 30, 20, 40}, 9);
  const auto policy = policy_of_tables(spec, kLayout);
  TableDriver driver(*policy, kLayout, skewed_mass(5));
  for (std::size_t at = 0; at < schedule.size(); ++at) {
    driver.pass(schedule[at].rows, schedule[at].prompt, schedule[at].prompt_left);
    if (at % 7 != 3) continue;
    const auto original = policy->clone();
    const auto copy = policy->clone();
    EXPECT_EQ(copy->traits().spec, policy->traits().spec);
    EXPECT_EQ(copy->bound(), policy->bound());
    TableDriver first(driver, *original);
    TableDriver second(driver, *copy);
    for (std::size_t later = at + 1; later < schedule.size(); ++later) {
      first.pass(schedule[later].rows, schedule[later].prompt, schedule[later].prompt_left);
      second.pass(schedule[later].rows, schedule[later].prompt, schedule[later].prompt_left);
      ASSERT_EQ(all_held(first), all_held(second)) << spec;
    }
  }
  // The original went its own way meanwhile: a run without any clone ends the same.
  const auto alone = policy_of_tables(spec, kLayout);
  TableDriver undisturbed(*alone, kLayout, skewed_mass(5));
  for (const PassShape& shape : schedule) undisturbed.pass(shape.rows, shape.prompt, shape.prompt_left);
  EXPECT_EQ(all_held(undisturbed), all_held(driver)) << spec;
}

void check_order(const std::string& spec) {
  std::vector<std::vector<std::vector<TokenIndex>>> results;
  for (const auto order :
       {TableDriver::Order::kAscending, TableDriver::Order::kDescending, TableDriver::Order::kThreads}) {
    const auto policy = policy_of_tables(spec, kLayout);
    TableDriver driver(*policy, kLayout, skewed_mass(6));
    driver.set_order(order);
    for (const PassShape& shape : conversation({50, 12, 20, 5}, 16))
      driver.pass(shape.rows, shape.prompt, shape.prompt_left);
    results.push_back(all_held(driver));
  }
  EXPECT_EQ(results[0], results[1]) << spec;
  EXPECT_EQ(results[0], results[2]) << spec;
}

void check_bound(const std::string& spec) {
  const auto policy = policy_of_tables(spec, kLayout);
  if (!policy->bound().has_value()) return;
  for (const auto& mass : {skewed_mass(7), random_mass(8), random_mass(9, 3)}) {
    const auto fresh = policy_of_tables(spec, kLayout);
    TableDriver driver(*fresh, kLayout, mass);
    driver.generate(3 * *policy->bound() + 100);
    EXPECT_LE(driver.most_seen(), *policy->bound()) << spec;
    EXPECT_LT(driver.held().size(), static_cast<std::size_t>(driver.next_id())) << spec;
  }
}

}  // namespace

void check_scored_policy(const std::string& spec) {
  SCOPED_TRACE(spec);
  check_clones(spec);
  check_order(spec);
  check_bound(spec);
  check_state(spec);
}

}  // namespace kvasir::test
