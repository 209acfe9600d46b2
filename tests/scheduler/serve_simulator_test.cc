// The simulator of bench/ keeps the promises that the tables of docs/operations/scheduling.md rest on.
#include <gtest/gtest.h>

#include "bench/simulated_server.h"

namespace kvasir::bench {
namespace {

SimulationOptions short_of_memory() {
  SimulationOptions options;
  options.requests = 3000;
  options.limits.stop_mark = 0.98;
  return options;
}

TEST(ServeSimulator, TheSameRunHasTheSameFigures) {
  const SimulationResult one = simulate(short_of_memory());
  const SimulationResult other = simulate(short_of_memory());
  EXPECT_EQ(one.finished, 3000);
  EXPECT_EQ(one.rejected, 0);
  EXPECT_EQ(one.seconds, other.seconds);
  EXPECT_EQ(one.passes, other.passes);
  EXPECT_EQ(one.generated, other.generated);
  EXPECT_EQ(one.recomputed, other.recomputed);
  EXPECT_EQ(one.preemptions, other.preemptions);
  EXPECT_EQ(one.gap_most, other.gap_most);
  SimulationOptions seeded = short_of_memory();
  seeded.seed = 2;
  EXPECT_NE(simulate(seeded).seconds, one.seconds);
}

TEST(ServeSimulator, NobodyIsPreemptedTwiceForOneToken) {
  SimulationOptions options = short_of_memory();
  const SimulationResult result = simulate(options);
  EXPECT_GT(result.preemptions, 20);
  EXPECT_EQ(result.preempted_twice, 0);
  options.limits.admission = Admission::kReserve;
  EXPECT_EQ(simulate(options).preemptions, 0);
}

// A floor is held while others want all of the memory, and a ceiling is not passed.
TEST(ServeSimulator, TenantsHaveTheirFloorsAndCeilings) {
  SimulationOptions options = short_of_memory();
  options.limits.stop_mark = 0.90;
  options.capacity = 64 * MemoryModel(options.memory).bytes(830);
  options.tenants = {{{options.capacity / 2, 0}, 0, 40}, {{0, options.capacity * 3 / 10}, 0, 40}, {{}, 0, 40}};
  const SimulationResult result = simulate(options);
  EXPECT_EQ(result.finished, 3000);
  EXPECT_GT(result.tenant_share[0], 0.45);
  EXPECT_LE(result.tenant_share[1], 0.30);
  EXPECT_EQ(result.preempted_twice, 0);
}

}  // namespace
}  // namespace kvasir::bench
